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
	last, known, err := w.lastNumber()
	if err != nil {
		return false, err
	}
	if !known && m.Epoch == [16]byte{} {
		if last, err = w.takeOver(); err != nil {
			return false, err
		}
	}
	batches, err := w.storedBatches()
	if err != nil {
		return false, err
	}
	return m.Judge(last, batches), nil
}

// lastNumber returns the last number of the mark's epoch. known reports whether the epoch
// has a row.
func (w *batchWriter) lastNumber() (last uint64, known bool, err error) {
	m := w.b.Mark
	err = sqlitex.Execute(w.conn, "SELECT last FROM spillway_epochs WHERE spool = ? AND epoch = ?", &sqlitex.ExecOptions{
		Args: []any{m.Spool[:], m.Epoch[:]}, ResultFunc: func(stmt *sqlite.Stmt) error {
			last, known = uint64(stmt.ColumnInt64(0)), true
			return nil
		},
	})
	return last, known, err
}

// takeOver copies the mark that a build without epochs has left, and returns its last group.
func (w *batchWriter) takeOver() (last uint64, err error) {
	m := w.b.Mark
	present, err := integer(w.conn, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'spillway_spools'")
	if err != nil || present == 0 {
		return 0, err
	}
	after, found := uint64(0), false
	var results []byte
	err = sqlitex.Execute(w.conn, "SELECT after, sequence, results FROM spillway_spools WHERE id = ?", &sqlitex.ExecOptions{
		Args: []any{m.Spool[:]}, ResultFunc: func(stmt *sqlite.Stmt) error {
			after, last, found = uint64(stmt.ColumnInt64(0)), uint64(stmt.ColumnInt64(1)), true
			if stmt.ColumnType(2) != sqlite.TypeNull {
				results = columnBytes(stmt, 2)
			}
			return nil
		},
	})
	if err != nil || !found {
		return 0, err
	}
	err = w.writeBatch(queue.StoredBatch{First: after + 1, Last: last, Results: results})
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

// writeMark stores which groups the batch contains, and its results.
func (w *batchWriter) writeMark(results []byte) error {
	m := w.b.Mark
	return w.writeBatch(queue.StoredBatch{First: m.First, Sums: m.Sums, Last: m.First + uint64(len(m.Sums)) - 1, Results: results})
}

// writeBatch stores a batch and the last number of its epoch.
func (w *batchWriter) writeBatch(b queue.StoredBatch) error {
	m := w.b.Mark
	sums := make([]byte, 0, len(b.Sums)*sumBytes)
	for _, sum := range b.Sums {
		sums = append(sums, sum[:]...)
	}
	var results any
	if b.Results != nil {
		results = b.Results
	}
	err := w.exec("INSERT INTO spillway_drained (spool, epoch, last, first, sums, results, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
		m.Spool[:], m.Epoch[:], int64(b.Last), int64(b.First), sums, results, w.now.UnixMicro())
	if err != nil {
		return err
	}
	return w.exec("INSERT INTO spillway_epochs (spool, epoch, stream, last, updated_at) VALUES (?, ?, ?, ?, ?) "+
		"ON CONFLICT (spool, epoch) DO UPDATE SET stream = excluded.stream, last = excluded.last, updated_at = excluded.updated_at",
		m.Spool[:], m.Epoch[:], m.Name, int64(b.Last), w.now.UnixMicro())
}
