package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/stream"
)

// keyRow is the requests that the file has under one idempotency key, the newest first.
type keyRow struct{ requests []stream.StoredKey }

// findKeys sets the results of the requests whose keys the file has.
func (w *batchWriter) findKeys() error {
	w.keys = make(map[*stream.Entry]*keyRow)
	for _, e := range w.b.Keyed(nil) {
		row, err := w.readKey(e.Key, false)
		if err != nil {
			return err
		}
		if row != nil && w.b.Judge(e, row.requests, w.now) {
			continue
		}
		if key := e.Unscoped(); key != "" {
			old, err := w.readKey(key, true)
			if err != nil {
				return err
			}
			if old != nil && w.b.Judge(e, old.requests, w.now) {
				continue
			}
		}
		if row != nil {
			w.keys[e] = row
		}
	}
	return nil
}

// readKey returns the row of a key; nil if there is none. With old it returns only one that
// an earlier version wrote.
func (w *batchWriter) readKey(key string, old bool) (*keyRow, error) {
	var row *keyRow
	err := sqlitex.Execute(w.conn, "SELECT fingerprint, outcome, expires_at, accepted_at, earlier FROM spillway_requests WHERE stream = ? AND key = ? AND (accepted_at IS NULL OR NOT ?)", &sqlitex.ExecOptions{
		Args: []any{w.st.def.Name, key, old}, ResultFunc: func(stmt *sqlite.Stmt) error {
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
		var stored []stream.StoredKey
		if row := w.keys[e]; row != nil {
			stored = row.requests
		}
		newest, earlier, err := w.b.AddKey(e, stored, w.now)
		if err != nil {
			return err
		}
		if err := w.writeKey(e.Key, newest, earlier); err != nil {
			return err
		}
	}
	return nil
}

func (w *batchWriter) writeKey(key string, newest stream.StoredKey, others []stream.StoredKey) error {
	var earlier any
	if len(others) > 0 {
		text, err := json.Marshal(others)
		if err != nil {
			return fmt.Errorf("encode the earlier requests of an idempotency key: %w", err)
		}
		earlier = text
	}
	return w.exec("INSERT OR REPLACE INTO spillway_requests (stream, key, fingerprint, outcome, expires_at, accepted_at, earlier) VALUES (?, ?, ?, ?, ?, ?, ?)",
		w.st.def.Name, key, newest.Fingerprint, newest.Outcome, w.now.Add(w.b.KeyTTL).UnixMicro(), newest.Accepted.UnixMicro(), earlier)
}
