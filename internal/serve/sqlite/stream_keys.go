package sqlite

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/stream"
)

const (
	// earlierMax is the number of requests that a key remembers.
	earlierMax = 1000
	// earlierKept is how long they are kept before the first Sweep says it.
	earlierKept = 7 * 24 * time.Hour
)

// keyRow is the requests that the file has under one idempotency key, the newest first.
type keyRow struct{ requests []stream.StoredKey }

// findKeys sets the results of the requests whose keys the file has.
func (w *batchWriter) findKeys() error {
	w.keys = make(map[*stream.Entry]*keyRow)
	for _, e := range w.b.Keyed(nil) {
		row, err := w.readKey(e.Key)
		if err != nil {
			return err
		}
		if row != nil && !e.Judge(row.requests, w.now, w.b.KeyTTL) {
			w.keys[e] = row
		}
	}
	return nil
}

// readKey returns the row of a key; nil if there is none.
func (w *batchWriter) readKey(key string) (*keyRow, error) {
	var row *keyRow
	err := sqlitex.Execute(w.conn, "SELECT fingerprint, outcome, expires_at, accepted_at, earlier FROM spillway_requests WHERE stream = ? AND key = ?", &sqlitex.ExecOptions{
		Args: []any{w.st.def.Name, key}, ResultFunc: func(stmt *sqlite.Stmt) error {
			newest := stream.StoredKey{Fingerprint: columnBytes(stmt, 0), Outcome: columnBytes(stmt, 1), Accepted: time.UnixMicro(stmt.ColumnInt64(3))}
			if stmt.ColumnType(3) == sqlite.TypeNull { // an earlier version wrote it
				newest.Accepted = time.UnixMicro(stmt.ColumnInt64(2)).Add(-w.b.KeyTTL)
			}
			row = &keyRow{requests: []stream.StoredKey{newest}}
			if stmt.ColumnType(4) == sqlite.TypeNull {
				return nil
			}
			var earlier []stream.StoredKey
			if err := json.Unmarshal(columnBytes(stmt, 4), &earlier); err != nil {
				return fmt.Errorf("read the earlier requests of an idempotency key: %w", err)
			}
			row.requests = append(row.requests, earlier...)
			return nil
		},
	})
	return row, err
}

// writeKeys stores the keys that were not found with the outcomes of their requests. Other
// requests under the same keys are kept with them.
func (w *batchWriter) writeKeys() error {
	for _, e := range w.b.Keyed(nil) {
		outcome, err := e.OutcomeNow()
		if err != nil {
			return err
		}
		accepted := e.Accepted
		if accepted.IsZero() {
			accepted = w.now
		}
		requests := []stream.StoredKey{{Accepted: accepted.UTC(), Fingerprint: e.Fingerprint[:], Outcome: outcome}}
		if row := w.keys[e]; row != nil {
			requests = w.st.merge(requests[0], row.requests, w.now.Add(-w.b.KeyTTL))
		}
		if err := w.writeKey(e.Key, requests); err != nil {
			return err
		}
	}
	return nil
}

// merge adds a request to those of its key, and returns them with the newest first. It drops
// other requests than these two if they were accepted so long before a time that a Sweep
// would delete them, and if there are too many.
func (st *Stream) merge(added stream.StoredKey, requests []stream.StoredKey, before time.Time) []stream.StoredKey {
	oldest := before.Add(-st.keepKeys())
	kept := []stream.StoredKey{added}
	for i, r := range requests {
		if i == 0 || len(kept) < earlierMax && !r.Accepted.Before(oldest) {
			kept = append(kept, r)
		}
	}
	slices.SortStableFunc(kept, func(a, b stream.StoredKey) int { return b.Accepted.Compare(a.Accepted) })
	return kept
}

// keepKeys returns how long keys are kept after they expire.
func (st *Stream) keepKeys() time.Duration {
	if kept := time.Duration(st.keysKept.Load()); kept > 0 {
		return kept
	}
	return earlierKept
}

func (w *batchWriter) writeKey(key string, requests []stream.StoredKey) error {
	var earlier any
	if len(requests) > 1 {
		text, err := json.Marshal(requests[1:])
		if err != nil {
			return fmt.Errorf("encode the earlier requests of an idempotency key: %w", err)
		}
		earlier = text
	}
	newest := requests[0]
	return w.exec("INSERT OR REPLACE INTO spillway_requests (stream, key, fingerprint, outcome, expires_at, accepted_at, earlier) VALUES (?, ?, ?, ?, ?, ?, ?)",
		w.st.def.Name, key, newest.Fingerprint, newest.Outcome, w.now.Add(w.b.KeyTTL).UnixMicro(), newest.Accepted.UnixMicro(), earlier)
}
