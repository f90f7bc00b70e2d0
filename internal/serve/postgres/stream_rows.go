package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/stream"
)

const (
	rowsMax   = 1000 // of one statement of a batch that goes step by step
	singlyMax = 128  // rows that are inserted each alone in one round trip
)

// insertRows inserts a batch's rows. Of those that the server refuses it halves what is
// too much for one round trip, and has a refused part's rows inserted each alone.
func (st *Stream) insertRows(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	for rows := b.Rows(nil); len(rows) > 0; {
		part := rows[:min(len(rows), rowsMax)]
		rows = rows[len(part):]
		insert := func(low, high int) (*stream.Refused, error) {
			if b.RowByRow {
				return &stream.Refused{}, nil
			}
			defer b.Progress()
			return st.insertRange(ctx, conn, part[low:high])
		}
		singly := func(low, high int) error { return st.insertSingly(ctx, conn, b, part[low:high]) }
		if err := stream.Bisect(len(part), singlyMax, insert, singly); err != nil {
			return err
		}
	}
	return nil
}

// insertRange inserts rows, or none of them.
func (st *Stream) insertRange(ctx context.Context, conn *pgconn.PgConn, rows []stream.Row) (*stream.Refused, error) {
	_, err := st.pipeline(ctx, conn, []step{
		{st.savepoint, nil}, {st.rows, encodeRows(st.schema.Columns(), rows)}, {st.release, nil},
	})
	if err == nil {
		return nil, nil
	}
	var pgErr *pgconn.PgError
	if !isDefinite(err, &pgErr) || !isData(pgErr) {
		return nil, err
	}
	if err := exec(ctx, conn, "ROLLBACK TO SAVEPOINT part"); err != nil {
		return nil, err
	}
	return &stream.Refused{Reason: pgErr.Message}, nil
}

// insertSingly inserts each of the rows alone, in one round trip. Behind a row that is
// stored the savepoint is made anew, and before the next row, whatever became of this
// one, the transaction goes back to it: that undoes the row that failed, or nothing.
func (st *Stream) insertSingly(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, rows []stream.Row) error {
	statements := []*statement{st.rows, st.release, st.savepoint, st.back}
	descriptions := make([]*pgconn.StatementDescription, len(statements))
	for i, s := range statements {
		var err error
		if descriptions[i], err = st.describe(ctx, conn, s); err != nil {
			return err
		}
	}
	rowOf, release, savepoint, back := descriptions[0], descriptions[1], descriptions[2], descriptions[3]
	p := conn.StartPipeline(ctx)
	send(p, step{st.savepoint, nil}, savepoint)
	p.SendPipelineSync()
	for i := range rows {
		send(p, step{st.back, nil}, back)
		send(p, step{st.rows, encodeRows(st.schema.Columns(), rows[i:i+1])}, rowOf)
		send(p, step{st.release, nil}, release)
		send(p, step{st.savepoint, nil}, savepoint)
		p.SendPipelineSync()
	}
	send(p, step{st.back, nil}, back)
	send(p, step{st.release, nil}, release)
	p.SendPipelineSync()
	err := p.Flush()
	if err == nil {
		err = takeSingly(p, b, rows)
	}
	closed := p.Close()
	var pgErr *pgconn.PgError
	if errors.As(closed, &pgErr) { // Close reports a refusal once more
		closed = nil
	}
	return errors.Join(err, closed)
}

// takeSingly reads what became of the rows.
func takeSingly(p *pgconn.Pipeline, b *stream.Batch, rows []stream.Row) error {
	if err := untilSync(p); err != nil {
		return err
	}
	for _, r := range rows {
		err := untilSync(p)
		b.Progress()
		if err != nil {
			var pgErr *pgconn.PgError
			if !isDefinite(err, &pgErr) || !isData(pgErr) {
				return err
			}
			r.Entry.Result.Refused = append(r.Entry.Result.Refused, stream.RowRefusal{Row: r.Row, Reason: pgErr.Message})
		}
	}
	return untilSync(p)
}

// untilSync reads the results up to the next sync, and returns the server's first
// refusal among them.
func untilSync(p *pgconn.Pipeline) error {
	var refused error
	for {
		results, err := p.GetResults()
		if reader, ok := results.(*pgconn.ResultReader); err == nil && ok {
			_, err = reader.Close()
		}
		var pgErr *pgconn.PgError
		switch {
		case err != nil && !errors.As(err, &pgErr):
			return err
		case err != nil && refused == nil:
			refused = err
		case err != nil:
		case results == nil:
			return errors.New("the pipeline ended early")
		}
		if _, ok := results.(*pgconn.PipelineSync); ok {
			return refused
		}
	}
}
