package mysql

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/serve/stream"
)

// keyRow is the row of spillway_requests that a key has: the newest request, and earlier
// ones that are not the same request.
type keyRow struct {
	newest            stream.StoredKey
	earlier           []stream.StoredKey
	expires, accepted string    // as they were read
	now               time.Time // by the server
}

// earlierMax is the number of earlier requests that a key keeps.
const earlierMax = 1000

// findKeys sets the results of the requests whose idempotency keys exist.
func (w *batchWriter) findKeys(requests []*stream.Entry) error {
	clear(w.keys)
	for len(requests) > 0 {
		n := min(len(requests), w.st.most, 128)
		if err := w.findSomeKeys(requests[:n]); err != nil {
			return err
		}
		requests = requests[n:]
	}
	return nil
}

func (w *batchWriter) findSomeKeys(requests []*stream.Entry) error {
	byKey := make(map[string]*stream.Entry, len(requests))
	args := []any{[]byte(w.st.def.Name)}
	for _, e := range requests {
		byKey[e.Key] = e
		args = append(args, []byte(e.Key))
	}
	// The last key is repeated up to a power of two, so that there are few different
	// statements.
	marks := 1 << bits.Len(uint(len(requests)-1))
	for len(args) < marks+1 {
		args = append(args, args[len(args)-1])
	}
	rows, err := w.se.texts(w.ctx, "SELECT `key`, fingerprint, outcome, expires_at, accepted_at, earlier, UTC_TIMESTAMP(6) FROM spillway_requests WHERE stream = ? AND `key` IN (?"+
		strings.Repeat(",?", marks-1)+")", args...)
	if err != nil {
		return err
	}
	w.b.Progress()
	for _, row := range rows {
		e := byKey[row[0]]
		if e == nil {
			continue
		}
		found, err := w.readKey(row)
		if err != nil {
			return fmt.Errorf("read spillway_requests: %w", err)
		}
		if e.Judge(append([]stream.StoredKey{found.newest}, found.earlier...), found.now, w.b.KeyTTL) {
			continue
		}
		if w.keys == nil {
			w.keys = make(map[*stream.Entry]*keyRow)
		}
		w.keys[e] = found
	}
	return nil
}

// readKey reads the columns that findSomeKeys selects.
func (w *batchWriter) readKey(row []string) (*keyRow, error) {
	found := &keyRow{newest: stream.StoredKey{Fingerprint: []byte(row[1]), Outcome: []byte(row[2])}, expires: row[3], accepted: row[4]}
	expires, err := parseDatetime(row[3])
	if err != nil {
		return nil, err
	}
	found.newest.Accepted = expires.Add(-w.b.KeyTTL) // of a row that an earlier version wrote
	if row[4] != "" {
		if found.newest.Accepted, err = parseDatetime(row[4]); err != nil {
			return nil, err
		}
	}
	if row[5] != "" {
		if err := json.Unmarshal([]byte(row[5]), &found.earlier); err != nil {
			return nil, err
		}
	}
	found.now, err = parseDatetime(row[6])
	return found, err
}

// expiry is expires_at: a parameter after the present.
const expiry = "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"

// insertKeys stores the idempotency keys. If another process has stored one meanwhile, the
// batch is retried and finds it.
func (w *batchWriter) insertKeys(requests []*stream.Entry) error {
	fresh := requests
	if len(w.keys) > 0 {
		fresh = nil
		for _, e := range requests {
			if row := w.keys[e]; row == nil {
				fresh = append(fresh, e)
			} else if err := w.updateKey(e, row); err != nil {
				return err
			}
		}
	}
	for len(fresh) > 0 {
		n := powerBelow(min(len(fresh), w.st.most))
		w.args = w.args[:0]
		for _, e := range fresh[:n] {
			outcome, err := e.OutcomeNow()
			if err != nil {
				return err
			}
			w.push([]byte(w.st.def.Name))
			w.push([]byte(e.Key))
			w.push(e.Fingerprint[:])
			w.push(outcome)
			w.push(w.b.KeyTTL.Microseconds())
			w.push(datetimeOrNull(e.Accepted))
		}
		const row = "(?,?,?,?," + expiry + ",COALESCE(?,UTC_TIMESTAMP(6)))"
		_, err := w.se.exec(w.ctx, "INSERT INTO spillway_requests (stream, `key`, fingerprint, outcome, expires_at, accepted_at) VALUES "+row+strings.Repeat(","+row, n-1), w.args)
		var refused *mysql.MySQLError
		if errors.As(err, &refused) && refused.Number == numDuplicate {
			return fmt.Errorf("%w: %w", stream.ErrTransient, err)
		}
		if err != nil {
			return err
		}
		w.b.Progress()
		fresh = fresh[n:]
	}
	return nil
}

// updateKey stores a request whose key has a row with other requests. The newest of them is
// in the row, the others are in the column earlier.
func (w *batchWriter) updateKey(e *stream.Entry, row *keyRow) error {
	outcome, err := e.OutcomeNow()
	if err != nil {
		return err
	}
	newest := stream.StoredKey{Accepted: e.Accepted, Fingerprint: e.Fingerprint[:], Outcome: outcome}
	if newest.Accepted.IsZero() {
		newest.Accepted = row.now
	}
	older := row.newest
	if newest.Accepted.Before(older.Accepted) {
		newest, older = older, newest
	}
	all := append(row.earlier, older)
	if keep := time.Duration(w.st.keepKeys.Load()); keep > 0 {
		all = slices.DeleteFunc(all, func(k stream.StoredKey) bool { return row.now.Sub(k.Accepted) > w.b.KeyTTL+keep })
	}
	slices.SortFunc(all, func(a, b stream.StoredKey) int { return b.Accepted.Compare(a.Accepted) })
	earlier, err := json.Marshal(all[:min(len(all), earlierMax)])
	if err != nil {
		return fmt.Errorf("encode earlier requests of a key: %w", err)
	}
	var accepted any
	if row.accepted != "" {
		accepted = row.accepted
	}
	n, err := w.se.exec(w.ctx, "UPDATE spillway_requests SET fingerprint = ?, outcome = ?, expires_at = "+expiry+", accepted_at = ?, earlier = ? "+
		"WHERE stream = ? AND `key` = ? AND fingerprint = ? AND expires_at = ? AND accepted_at <=> ?",
		w.values(newest.Fingerprint, newest.Outcome, w.b.KeyTTL.Microseconds(), appendDatetime(nil, newest.Accepted), earlier,
			[]byte(w.st.def.Name), []byte(e.Key), row.newest.Fingerprint, row.expires, accepted))
	if err == nil && n != 1 {
		return fmt.Errorf("%w: another request with the same key was stored", stream.ErrTransient)
	}
	w.b.Progress()
	return err
}
