package sqlite

import (
	"fmt"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

const sumBytes = len(queue.Group{}.Sum)

// judgeMark compares the groups of a drained batch with what the file has. found reports
// that it has the first of them: nothing may be stored then.
func (w *batchWriter) judgeMark() (found bool, err error) {
	m := w.b.Mark
	last, err := w.lastNumber()
	if err != nil {
		return false, err
	}
	batches, err := w.storedBatches()
	if err != nil {
		return false, err
	}
	return m.Judge(last, batches), nil
}

// lastNumber returns the last number of the mark's epoch.
func (w *batchWriter) lastNumber() (last uint64, err error) {
	m := w.b.Mark
	err = sqlitex.Execute(w.conn, "SELECT last FROM spillway_epochs WHERE spool = ? AND epoch = ?", &sqlitex.ExecOptions{
		Args: []any{m.Spool[:], m.Epoch[:]}, ResultFunc: func(stmt *sqlite.Stmt) error {
			last = uint64(stmt.ColumnInt64(0))
			return nil
		},
	})
	return last, err
}

// storedBatches returns the batches of the epoch that overlap with the mark.
func (w *batchWriter) storedBatches() ([]queue.StoredBatch, error) {
	m := w.b.Mark
	var batches []queue.StoredBatch
	err := sqlitex.Execute(w.conn, "SELECT first, last, sums, results FROM spillway_drained WHERE spool = ? AND epoch = ? AND last >= ? AND first <= ? ORDER BY last", &sqlitex.ExecOptions{
		Args: []any{m.Spool[:], m.Epoch[:], int64(m.First), int64(m.First) + int64(len(m.Sums)) - 1}, ResultFunc: func(stmt *sqlite.Stmt) error {
			b := queue.StoredBatch{First: uint64(stmt.ColumnInt64(0)), Last: uint64(stmt.ColumnInt64(1)), Results: columnBytes(stmt, 3)}
			sums := columnBytes(stmt, 2)
			if len(sums)%sumBytes != 0 {
				return fmt.Errorf("spillway_drained has %d bytes of checksums for groups %d to %d", len(sums), b.First, b.Last)
			}
			for len(sums) > 0 {
				b.Sums = append(b.Sums, [sumBytes]byte(sums))
				sums = sums[sumBytes:]
			}
			batches = append(batches, b)
			return nil
		},
	})
	return batches, err
}

// writeMark stores which groups the batch contains, its results, and the last number of its
// epoch.
func (w *batchWriter) writeMark(results []byte) error {
	m := w.b.Mark
	last := int64(m.First) + int64(len(m.Sums)) - 1
	sums := make([]byte, 0, len(m.Sums)*sumBytes)
	for _, sum := range m.Sums {
		sums = append(sums, sum[:]...)
	}
	var stored any
	if results != nil {
		stored = results
	}
	err := w.exec("INSERT INTO spillway_drained (spool, epoch, last, first, sums, results, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
		m.Spool[:], m.Epoch[:], last, int64(m.First), sums, stored, w.now.UnixMicro())
	if err != nil {
		return err
	}
	return w.exec("INSERT INTO spillway_epochs (spool, epoch, stream, last, updated_at) VALUES (?, ?, ?, ?, ?) "+
		"ON CONFLICT (spool, epoch) DO UPDATE SET stream = excluded.stream, last = excluded.last, updated_at = excluded.updated_at",
		m.Spool[:], m.Epoch[:], m.Name, last, w.now.UnixMicro())
}
