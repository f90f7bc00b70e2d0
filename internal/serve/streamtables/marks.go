package streamtables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/tables"
)

// judgeMark compares the groups of the batch with those that the database has. It locks the row of their epoch until the transaction ends,
// and notes the batch's last number in it, unless it returns true. The comment of the package queue explains the words.
func (w *writer) judgeMark(ctx context.Context) (known bool, err error) {
	m := w.b.Mark
	if before := int64(m.First) - 1; before > 0 { // most batches follow the last one of their epoch
		follows, err := w.updateEpoch(ctx, before)
		if err != nil || follows {
			return m.Judge(uint64(before), nil), err
		}
	}
	rows, err := w.Rows(ctx, "SELECT last FROM spillway_epochs WHERE spool = ? AND epoch = ?"+w.d.ForUpdate, m.Spool, m.Epoch)
	if err != nil {
		return false, fmt.Errorf("read spillway_epochs: %w", err)
	}
	last := int64(0)
	if len(rows) == 1 {
		if last, err = rows[0].Integer(0); err != nil {
			return false, err
		}
	}
	var batches []queue.StoredBatch
	if len(m.Sums) > 0 && uint64(last) >= m.First {
		if batches, err = w.storedBatches(ctx); err != nil {
			return false, fmt.Errorf("read spillway_drained: %w", err)
		}
	}
	if m.Judge(uint64(last), batches) {
		return true, nil
	}
	if len(rows) == 1 {
		_, err = w.updateEpoch(ctx, last)
		return false, err
	}
	_, err = w.Exec(ctx, "INSERT INTO spillway_epochs (stream, last, spool, epoch, updated_at) VALUES (?, ?, ?, ?, "+w.d.Now+")",
		m.Name, lastOf(m), m.Spool, m.Epoch)
	return false, w.raced(err)
}

// updateEpoch notes the batch's last number in the row of its epoch, if the number there is last.
func (w *writer) updateEpoch(ctx context.Context, last int64) (updated bool, err error) {
	m := w.b.Mark
	n, err := w.Exec(ctx, "UPDATE spillway_epochs SET stream = ?, last = ?, updated_at = "+w.d.Now+
		" WHERE spool = ? AND epoch = ? AND last = ?", m.Name, lastOf(m), m.Spool, m.Epoch, last)
	if err != nil {
		return false, fmt.Errorf("update spillway_epochs: %w", err)
	}
	return n > 0, nil
}

// lastOf returns the number of the last group of a batch.
func lastOf(m *queue.Mark) int64 { return int64(m.First) + int64(len(m.Sums)) - 1 }

// storedBatches returns the batches that overlap with the batch.
func (w *writer) storedBatches(ctx context.Context) ([]queue.StoredBatch, error) {
	m := w.b.Mark
	rows, err := w.Rows(ctx, "SELECT first, last, sums, results FROM spillway_drained "+
		"WHERE spool = ? AND epoch = ? AND last >= ? AND first <= ? ORDER BY last",
		m.Spool, m.Epoch, int64(m.First), lastOf(m))
	if err != nil {
		return nil, err
	}
	batches := make([]queue.StoredBatch, len(rows))
	for i, row := range rows {
		if batches[i], err = readBatch(row); err != nil {
			return nil, err
		}
	}
	return batches, nil
}

func readBatch(row tables.Row) (queue.StoredBatch, error) {
	first, firstErr := row.Integer(0)
	last, lastErr := row.Integer(1)
	b := queue.StoredBatch{First: uint64(first), Last: uint64(last), Results: []byte(row[3])}
	sums := []byte(row[2])
	if err := errors.Join(firstErr, lastErr); err != nil || len(sums)%sumBytes != 0 {
		return b, errors.Join(err, fmt.Errorf("%d bytes of sums for the groups %d to %d", len(sums), first, last))
	}
	for sum := range slices.Chunk(sums, sumBytes) {
		b.Sums = append(b.Sums, [sumBytes]byte(sum))
	}
	return b, nil
}

// sumBytes is the size of queue.Group.Sum.
const sumBytes = 16

// insertDrained stores which groups the batch has, and what became of their records.
func (w *writer) insertDrained(ctx context.Context, results []byte) error {
	m := w.b.Mark
	sums := make([]byte, 0, sumBytes*len(m.Sums))
	for _, sum := range m.Sums {
		sums = append(sums, sum[:]...)
	}
	var stored any // NULL
	if results != nil {
		stored = results
	}
	_, err := w.Exec(ctx, "INSERT INTO spillway_drained (spool, epoch, last, first, sums, results, created_at) "+
		"VALUES (?, ?, ?, ?, ?, ?, "+w.d.Now+")",
		m.Spool, m.Epoch, lastOf(m), int64(m.First), sums, stored)
	return w.raced(err)
}
