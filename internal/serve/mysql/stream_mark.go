package mysql

import (
	"errors"
	"fmt"
	"strconv"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// errEnded is the error of a transaction that the server has ended on its own.
var errEnded = errors.New("the server has ended the transaction")

// mark compares the groups of a batch from a spool with those that the database has, and
// notes the last one. known reports that the database has some of them, or had them:
// nothing of the batch is to be stored.
func (w *batchWriter) mark() (known bool, err error) {
	m := w.b.Mark
	rows, err := w.se.texts(w.ctx, "SELECT `last` FROM spillway_epochs WHERE spool = ? AND epoch = ? FOR UPDATE", m.Spool[:], m.Epoch[:])
	if err != nil {
		return false, err
	}
	last, present := uint64(0), len(rows) > 0
	if present {
		if last, err = strconv.ParseUint(rows[0][0], 10, 64); err != nil {
			return false, fmt.Errorf("read spillway_epochs: %w", err)
		}
	}
	var batches []queue.StoredBatch
	if last >= m.First && len(m.Sums) > 0 {
		if batches, err = w.drained(); err != nil {
			return false, err
		}
	}
	if m.Judge(last, batches) {
		return true, nil
	}
	if !present {
		return false, w.insertEpoch()
	}
	_, err = w.se.exec(w.ctx, "UPDATE spillway_epochs SET `last` = ?, stream = ?, updated_at = UTC_TIMESTAMP(6) WHERE spool = ? AND epoch = ?",
		w.values(w.lastGroup(), []byte(m.Name), m.Spool[:], m.Epoch[:]))
	return false, err
}

// lastGroup returns the number of the batch's last group.
func (w *batchWriter) lastGroup() uint64 { return w.b.Mark.First + uint64(len(w.b.Mark.Sums)) - 1 }

// insertEpoch stores the epoch of the batch.
func (w *batchWriter) insertEpoch() error {
	m := w.b.Mark
	_, err := w.se.exec(w.ctx, "INSERT INTO spillway_epochs (spool, epoch, stream, `last`, updated_at) VALUES (?, ?, ?, ?, UTC_TIMESTAMP(6))",
		w.values(m.Spool[:], m.Epoch[:], []byte(m.Name), w.lastGroup()))
	return transientDuplicate(err)
}

// transientDuplicate wraps the error of a row that another process has inserted meanwhile.
func transientDuplicate(err error) error {
	if isRefusal(err, numDuplicate) {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	return err
}

// insertDrained stores which groups the batch has, and what became of their records.
func (w *batchWriter) insertDrained(results []byte) error {
	m := w.b.Mark
	sums := make([]byte, 0, 16*len(m.Sums))
	for _, sum := range m.Sums {
		sums = append(sums, sum[:]...)
	}
	var stored any
	if len(results) > 0 {
		stored = results
	}
	_, err := w.se.exec(w.ctx, "INSERT INTO spillway_drained (spool, epoch, `first`, `last`, sums, results, created_at) VALUES (?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6))",
		w.values(m.Spool[:], m.Epoch[:], m.First, w.lastGroup(), sums, stored))
	return transientDuplicate(err)
}

// drained returns the stored batches that overlap with the batch.
func (w *batchWriter) drained() ([]queue.StoredBatch, error) {
	m := w.b.Mark
	rows, err := w.se.texts(w.ctx, "SELECT `first`, `last`, sums, results FROM spillway_drained WHERE spool = ? AND epoch = ? AND `last` >= ? AND `first` <= ? ORDER BY `last`",
		m.Spool[:], m.Epoch[:], m.First, w.lastGroup())
	if err != nil {
		return nil, err
	}
	batches := make([]queue.StoredBatch, len(rows))
	for i, row := range rows {
		b := &batches[i]
		first, firstErr := strconv.ParseUint(row[0], 10, 64)
		last, lastErr := strconv.ParseUint(row[1], 10, 64)
		if err := errors.Join(firstErr, lastErr); err != nil {
			return nil, fmt.Errorf("read spillway_drained: %w", err)
		}
		b.First, b.Last, b.Results = first, last, []byte(row[3])
		for sums := []byte(row[2]); len(sums) >= 16; sums = sums[16:] {
			b.Sums = append(b.Sums, [16]byte(sums))
		}
	}
	return batches, nil
}

// checkAlive returns an error if the transaction of a batch with a Mark no longer runs. The
// next statement would then be committed alone.
func (w *batchWriter) checkAlive() error {
	m := w.b.Mark
	rows, err := w.se.texts(w.ctx, "SELECT `last` FROM spillway_epochs WHERE spool = ? AND epoch = ?", m.Spool[:], m.Epoch[:])
	if err != nil {
		return err
	}
	if len(rows) != 1 || rows[0][0] != strconv.FormatUint(w.lastGroup(), 10) {
		return errors.Join(errEnded, w.se.Close())
	}
	return nil
}
