package sqlite

import (
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// spoolTable is created where it is missing, in the transaction of a spool's batch.
const spoolTable = `CREATE TABLE IF NOT EXISTS spillway_spools (
	id BLOB PRIMARY KEY,
	stream TEXT NOT NULL,
	after INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	results BLOB,
	updated_at INTEGER NOT NULL
) WITHOUT ROWID`

// mark stores which groups of a spool the batch takes. It reports true, with the
// Results set, when they are stored already.
func (w *batchWriter) mark() (stored bool, err error) {
	m := w.b.Mark
	if err := w.exec(spoolTable); err != nil {
		return false, err
	}
	err = sqlitex.Execute(w.conn, "SELECT after, sequence, results FROM spillway_spools WHERE id = ?", &sqlitex.ExecOptions{
		Args: []any{m.Spool[:]}, ResultFunc: func(stmt *sqlite.Stmt) error {
			var err error
			if stored, err = m.Compare(uint64(stmt.ColumnInt64(0)), uint64(stmt.ColumnInt64(1))); stored {
				err = w.b.SetResults(columnBytes(stmt, 2))
			}
			return err
		},
	})
	if stored || err != nil {
		return stored, err
	}
	return false, w.exec("INSERT OR REPLACE INTO spillway_spools (id, stream, after, sequence, updated_at) VALUES (?, ?, ?, ?, ?)",
		m.Spool[:], m.Name, int64(m.After), int64(m.Last), w.now.UnixMicro())
}

// keepResults stores the Results with what tells the batch again.
func (w *batchWriter) keepResults(results []byte) error {
	if w.b.Mark != nil {
		return w.exec("UPDATE spillway_spools SET results = ? WHERE id = ?", results, w.b.Mark.Spool[:])
	}
	return w.exec("UPDATE spillway_batches SET results = ? WHERE id = ?", results, w.b.ID[:])
}
