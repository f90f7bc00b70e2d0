package mysql

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"strings"
	"time"

	"spillway/internal/serve/stream"
)

// keyRow is the row of spillway_requests that a key has: the newest request, and earlier
// ones that are not the same request.
type keyRow struct {
	requests          []stream.StoredKey // the newest first
	expires, accepted string             // as they were read
	now               time.Time          // by the server
}

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
	marks := 1 << bits.Len(uint(len(args)-2))
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
		found, err := readKeyRow(row)
		if err != nil {
			return fmt.Errorf("read spillway_requests: %w", err)
		}
		e := byKey[row[0]]
		if w.b.Judge(e, found.requests, found.now) {
			continue
		}
		if w.keys == nil {
			w.keys = make(map[*stream.Entry]*keyRow)
		}
		w.keys[e] = found
	}
	return nil
}

// readKeyRow reads the columns that findSomeKeys selects.
func readKeyRow(row []string) (*keyRow, error) {
	accepted, err := parseDatetime(row[4])
	if err != nil {
		return nil, err
	}
	found := &keyRow{expires: row[3], accepted: row[4]}
	found.requests = []stream.StoredKey{{Accepted: accepted, Fingerprint: []byte(row[1]), Outcome: []byte(row[2])}}
	if row[5] != "" {
		var earlier []stream.StoredKey
		if err := json.Unmarshal([]byte(row[5]), &earlier); err != nil {
			return nil, err
		}
		found.requests = append(found.requests, earlier...)
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
		if isRefusal(err, numDuplicate) {
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
	newest, others, err := w.b.AddKey(e, row.requests, row.now)
	if err != nil {
		return err
	}
	earlier, err := json.Marshal(others)
	if err != nil {
		return fmt.Errorf("encode earlier requests of a key: %w", err)
	}
	n, err := w.se.exec(w.ctx, "UPDATE spillway_requests SET fingerprint = ?, outcome = ?, expires_at = "+expiry+", accepted_at = ?, earlier = ? "+
		"WHERE stream = ? AND `key` = ? AND fingerprint = ? AND expires_at = ? AND accepted_at = ?",
		w.values(newest.Fingerprint, newest.Outcome, w.b.KeyTTL.Microseconds(), appendDatetime(nil, newest.Accepted), earlier,
			[]byte(w.st.def.Name), []byte(e.Key), row.requests[0].Fingerprint, row.expires, row.accepted))
	if err == nil && n != 1 {
		return fmt.Errorf("%w: another request with the same key was stored", stream.ErrTransient)
	}
	w.b.Progress()
	return err
}
