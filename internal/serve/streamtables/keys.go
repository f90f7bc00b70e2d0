package streamtables

import (
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// The number of keys of one statement, powers of two.
const (
	readMax   = 1024
	insertMax = 512
)

// keyRow is the row of a key under which requests were stored, but none that is the same.
type keyRow struct {
	requests []stream.StoredKey // the newest first
	now      time.Time          // of the database
}

// findKeys sets the Results of the requests that were stored before. It returns the rows of the
// keys under which only other requests were, and locks them until the transaction ends.
func (w *writer) findKeys(ctx context.Context) (map[*stream.Entry]*keyRow, error) {
	others, err := w.readKeys(ctx, w.b.Keyed(nil), "")
	if err != nil || len(others) == 0 {
		return nil, err
	}
	// The lock also waits for other transactions that change the rows, and returns what they have committed.
	var requests []*stream.Entry
	for _, e := range w.b.Keyed(nil) {
		if others[e] != nil {
			requests = append(requests, e)
		}
	}
	return w.readKeys(ctx, requests, " ORDER BY request_key"+w.d.ForUpdate)
}

// readKeys does what findKeys does for some requests. The statement has that end.
func (w *writer) readKeys(ctx context.Context, requests []*stream.Entry, end string) (map[*stream.Entry]*keyRow, error) {
	others := make(map[*stream.Entry]*keyRow)
	for part := range slices.Chunk(requests, readMax) {
		byKey := make(map[string]*stream.Entry, len(part))
		var keys []any
		for _, e := range part {
			byKey[e.Key] = e
			keys = append(keys, []byte(e.Key))
		}
		in, keys := w.d.In(keys)
		rows, err := w.Rows(ctx, "SELECT request_key, fingerprint, outcome, accepted_at, earlier, "+w.d.Now+
			" FROM spillway_requests WHERE stream = ? AND request_key "+in+end,
			append([]any{w.table}, keys...)...)
		if err != nil {
			return nil, err
		}
		w.b.Progress()
		for _, row := range rows {
			k, err := readKey(row)
			if err != nil {
				return nil, fmt.Errorf("read spillway_requests: %w", err)
			}
			if e := byKey[row[0]]; !w.b.FindKey(e, k.requests, k.now) {
				others[e] = k
			}
		}
	}
	return others, nil
}

// readKey reads the columns that readKeys selects.
func readKey(row tables.Row) (*keyRow, error) {
	accepted, err := row.Time(3)
	if err != nil {
		return nil, err
	}
	k := &keyRow{requests: []stream.StoredKey{{Accepted: accepted, Fingerprint: []byte(row[1]), Outcome: []byte(row[2])}}}
	if k.now, err = row.Time(5); err != nil || row[4] == "" {
		return k, err
	}
	var earlier []stream.StoredKey
	if err := json.Unmarshal([]byte(row[4]), &earlier); err != nil {
		return nil, err
	}
	k.requests = append(k.requests, earlier...)
	return k, nil
}

// storeKeys stores the requests that have a key. rows are those that findKeys returned.
func (w *writer) storeKeys(ctx context.Context, rows map[*stream.Entry]*keyRow) error {
	var fresh []*stream.Entry
	for _, e := range w.b.Keyed(nil) {
		row := rows[e]
		if row == nil {
			fresh = append(fresh, e)
			continue
		}
		if err := w.updateKey(ctx, e, row); err != nil {
			return err
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return w.raced(w.InsertKeys(ctx, fresh))
}

// InsertKeys stores requests under keys that have no row, for databases that take one row after
// the other. It uses few different statements, because they stay prepared.
func InsertKeys(ctx context.Context, s tables.Session, d tables.Dialect, table string, b *stream.Batch, requests []*stream.Entry) error {
	row := "(?, ?, ?, ?, COALESCE(?, " + d.Now + "), " + d.Later + ")"
	for len(requests) > 0 {
		n := 1 << (bits.Len(uint(min(len(requests), insertMax))) - 1)
		var args []any
		for _, e := range requests[:n] {
			outcome, err := e.OutcomeNow()
			if err != nil {
				return err
			}
			var accepted any // NULL: now
			if !e.Accepted.IsZero() {
				accepted = e.Accepted
			}
			args = append(args, table, []byte(e.Key), e.Fingerprint[:], outcome, accepted, b.KeyTTL.Microseconds())
		}
		_, err := s.Exec(ctx, "INSERT INTO spillway_requests (stream, request_key, fingerprint, outcome, accepted_at, expires_at) VALUES "+
			row+strings.Repeat(", "+row, n-1), args...)
		if err != nil {
			return err
		}
		b.Progress()
		requests = requests[n:]
	}
	return nil
}

// updateKey stores a request under a key that has a row: the request that was accepted last is
// in the row's columns, the others are in its column earlier.
func (w *writer) updateKey(ctx context.Context, e *stream.Entry, row *keyRow) error {
	newest, others, err := w.b.AddKey(e, row.requests, row.now)
	if err != nil {
		return err
	}
	earlier, err := json.Marshal(others)
	if err != nil {
		return fmt.Errorf("encode earlier requests of a key: %w", err)
	}
	_, err = w.Exec(ctx, "UPDATE spillway_requests SET fingerprint = ?, outcome = ?, accepted_at = ?, earlier = ?, "+
		"expires_at = "+w.d.Later+" WHERE stream = ? AND request_key = ?",
		newest.Fingerprint, newest.Outcome, newest.Accepted, earlier, w.b.KeyTTL.Microseconds(), w.table, []byte(e.Key))
	w.b.Progress()
	return err
}
