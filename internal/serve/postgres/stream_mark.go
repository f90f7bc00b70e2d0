package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// judgeMark locks the row of the batch's epoch until the transaction ends. It returns true
// if the database has groups of the batch, or had them.
func (st *Stream) judgeMark(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) (known bool, err error) {
	m := b.Mark
	if err := st.run(ctx, conn, step{st.settings, st.timeoutsOf(b).texts[:], nil}); err != nil {
		return false, err
	}
	last, err := lockEpoch(ctx, conn, m)
	if err != nil {
		return false, fmt.Errorf("read spillway_epochs: %w", err)
	}
	var batches []queue.StoredBatch
	if last >= m.First {
		if batches, err = readDrained(ctx, conn, m); err != nil {
			return false, fmt.Errorf("read spillway_drained: %w", err)
		}
	}
	return m.Judge(last, batches), nil
}

// lockEpoch returns the last number of the batch's epoch, and inserts the epoch if it is
// unknown.
func lockEpoch(ctx context.Context, conn *pgconn.PgConn, m *queue.Mark) (last uint64, err error) {
	const find = "SELECT last FROM spillway_epochs WHERE spool = $1::uuid AND epoch = $2::uuid FOR UPDATE"
	rows, err := rowsOf(ctx, conn, find, m.Spool[:], m.Epoch[:])
	if err != nil {
		return 0, err
	}
	if len(rows) == 1 {
		return decodeNumber(rows[0][0])
	}
	// Another process that inserts the row at the same time fails this transaction.
	_, err = rowsOf(ctx, conn, "INSERT INTO spillway_epochs (spool, epoch, stream, last) VALUES ($1::uuid, $2::uuid, $3::text, 0)",
		m.Spool[:], m.Epoch[:], []byte(m.Name))
	return 0, err
}

// readDrained returns the stored batches that overlap with the batch.
func readDrained(ctx context.Context, conn *pgconn.PgConn, m *queue.Mark) ([]queue.StoredBatch, error) {
	rows, err := rowsOf(ctx, conn, "SELECT first, last, sums, results FROM spillway_drained "+
		"WHERE spool = $1::uuid AND epoch = $2::uuid AND last >= $3::bigint AND first <= $4::bigint ORDER BY last",
		m.Spool[:], m.Epoch[:], encodeNumber(m.First), encodeNumber(lastOf(m)))
	if err != nil {
		return nil, err
	}
	batches := make([]queue.StoredBatch, len(rows))
	for i, row := range rows {
		b := &batches[i]
		var errs [2]error
		b.First, errs[0] = decodeNumber(row[0])
		b.Last, errs[1] = decodeNumber(row[1])
		if err := errors.Join(errs[:]...); err != nil {
			return nil, err
		}
		for sum := range slices.Chunk(row[2], 16) {
			b.Sums = append(b.Sums, [16]byte(sum))
		}
		b.Results = row[3]
	}
	return batches, nil
}

// markSteps returns the steps that store which groups the batch has.
func (st *Stream) markSteps(m *queue.Mark, results []byte) []step {
	last := encodeNumber(lastOf(m))
	sums := make([]byte, 0, 16*len(m.Sums))
	for _, sum := range m.Sums {
		sums = append(sums, sum[:]...)
	}
	return []step{
		{st.drained, [][]byte{m.Spool[:], m.Epoch[:], last, encodeNumber(m.First), sums, results}, nil},
		{st.mark, [][]byte{m.Spool[:], m.Epoch[:], []byte(m.Name), last}, nil},
	}
}

// lastOf returns the number of the last group of a batch.
func lastOf(m *queue.Mark) uint64 { return m.First + uint64(len(m.Sums)) - 1 }

func encodeNumber(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func decodeNumber(data []byte) (uint64, error) {
	if len(data) != 8 {
		return 0, fmt.Errorf("read a number of %d bytes", len(data))
	}
	return binary.BigEndian.Uint64(data), nil
}

// rowsOf runs a statement that is not prepared and returns its rows, all binary.
func rowsOf(ctx context.Context, conn *pgconn.PgConn, sql string, args ...[]byte) ([][][]byte, error) {
	var formats []int16
	if len(args) > 0 {
		formats = binaryFormat
	}
	result := conn.ExecParams(ctx, sql, args, nil, formats, binaryFormat).Read()
	return result.Rows, result.Err
}
