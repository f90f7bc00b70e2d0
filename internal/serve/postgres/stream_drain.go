package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// spoolTable is created where it is missing when the first batch of a spool comes.
const spoolTable = `CREATE TABLE IF NOT EXISTS spillway_spools (
	id uuid PRIMARY KEY,
	stream text NOT NULL,
	after bigint NOT NULL,
	sequence bigint NOT NULL,
	results bytea,
	updated_at timestamptz NOT NULL DEFAULT now()
);`

// drain commits a batch that comes from a spool: step by step, for one such batch is
// large and they come one after the other.
func (st *Stream) drain(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	present := conn.ExecParams(ctx, "SELECT to_regclass('spillway_spools') IS NOT NULL", nil, nil, nil, nil).Read()
	if present.Err != nil {
		return st.classify(present.Err)
	}
	if string(present.Rows[0][0]) != "t" {
		if err := exec(ctx, conn, spoolTable); err != nil {
			return st.classify(fmt.Errorf("create the table spillway_spools: %w", err))
		}
	}
	return st.stepwise(ctx, conn, b)
}

func isMoved(err error) bool {
	var moved *queue.Moved
	return errors.As(err, &moved)
}

// mark stores which groups the batch takes. When they are stored already, or others of
// them, it ends the transaction.
func (st *Stream) mark(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) (stored bool, err error) {
	m := b.Mark
	if pin := pinned(st.def.Fsync); pin != "" {
		if err := exec(ctx, conn, "SELECT true"+pin); err != nil {
			return false, err
		}
	}
	id := fmt.Appendf(nil, "%x", m.Spool)
	row := conn.ExecParams(ctx, "SELECT after, sequence, results FROM spillway_spools WHERE id = $1::uuid FOR UPDATE",
		[][]byte{id}, nil, nil, []int16{0, 0, 1}).Read()
	if row.Err != nil {
		return false, row.Err
	}
	sql := "INSERT INTO spillway_spools (id, stream, after, sequence) VALUES ($1::uuid, $2::text, $3::bigint, $4::bigint)"
	if len(row.Rows) == 1 {
		if stored, err = st.meet(b, row.Rows[0]); stored || err != nil {
			return stored, errors.Join(err, exec(ctx, conn, "ROLLBACK"))
		}
		sql = "UPDATE spillway_spools SET stream = $2::text, after = $3::bigint, sequence = $4::bigint, results = NULL, updated_at = now() WHERE id = $1::uuid"
	}
	args := [][]byte{id, []byte(m.Name), strconv.AppendUint(nil, m.After, 10), strconv.AppendUint(nil, m.Last, 10)}
	return false, conn.ExecParams(ctx, sql, args, nil, nil, nil).Read().Err
}

// meet compares the batch with the row that is there: after, sequence, results.
func (st *Stream) meet(b *stream.Batch, row [][]byte) (stored bool, err error) {
	after, err := strconv.ParseUint(string(row[0]), 10, 64)
	if err != nil {
		return false, fmt.Errorf("read spillway_spools: %w", err)
	}
	last, err := strconv.ParseUint(string(row[1]), 10, 64)
	if err != nil {
		return false, fmt.Errorf("read spillway_spools: %w", err)
	}
	if stored, err = b.Mark.Compare(after, last); stored {
		err = b.SetResults(row[2])
	}
	return stored, err
}

func (st *Stream) keepResults(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, results []byte) error {
	return conn.ExecParams(ctx, "UPDATE spillway_spools SET results = $2::bytea WHERE id = $1::uuid",
		[][]byte{fmt.Appendf(nil, "%x", b.Mark.Spool), results}, nil, []int16{0, 1}, nil).Read().Err
}
