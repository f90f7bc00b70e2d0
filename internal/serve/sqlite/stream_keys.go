package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/stream"
)

// findKeys sets the results of the requests whose keys the file has.
func (w *batchWriter) findKeys() error {
	w.keys = make(map[*stream.Entry][]stream.StoredKey)
	for _, e := range w.b.Keyed(nil) {
		stored, err := w.readKey(e.Key)
		if err != nil {
			return err
		}
		if !w.b.Judge(e, stored, w.now) {
			w.keys[e] = stored
		}
	}
	return nil
}

// readKey returns the requests that the file has under a key, the newest first.
func (w *batchWriter) readKey(key string) (stored []stream.StoredKey, err error) {
	err = sqlitex.Execute(w.conn, "SELECT fingerprint, outcome, accepted_at, earlier FROM spillway_requests WHERE stream = ? AND key = ?", &sqlitex.ExecOptions{
		Args: []any{w.st.def.Name, key}, ResultFunc: func(stmt *sqlite.Stmt) error {
			newest := stream.StoredKey{Fingerprint: columnBytes(stmt, 0), Outcome: columnBytes(stmt, 1), Accepted: time.UnixMicro(stmt.ColumnInt64(2))}
			stored = []stream.StoredKey{newest}
			if stmt.ColumnType(3) == sqlite.TypeNull {
				return nil
			}
			var earlier []stream.StoredKey
			if err := json.Unmarshal(columnBytes(stmt, 3), &earlier); err != nil {
				return fmt.Errorf("read the earlier requests of an idempotency key: %w", err)
			}
			stored = append(stored, earlier...)
			return nil
		},
	})
	return stored, err
}

// writeKeys stores the keys that were not found with the outcomes of their requests. Other
// requests under the same keys are kept with them.
func (w *batchWriter) writeKeys() error {
	for _, e := range w.b.Keyed(nil) {
		newest, earlier, err := w.b.AddKey(e, w.keys[e], w.now)
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
