package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// step is one statement of a transaction and its arguments, all binary.
type step struct {
	*statement
	args [][]byte
}

// Commit implements stream.Sink.
func (st *Stream) Commit(ctx context.Context, b *stream.Batch) error {
	pooled, err := st.db.acquire(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	defer pooled.Release()
	conn := pooled.Conn().PgConn()
	if err := st.prepareTables(ctx, conn); err != nil {
		return st.classify(err)
	}
	b.Session = uint64(conn.PID())
	if b.Mark != nil {
		return st.drain(ctx, conn, b)
	}
	if b.RowByRow {
		return st.stepwise(ctx, conn, b)
	}
	keyed := b.Keyed(nil)
	steps := []step{{st.begin, nil}, {st.batch, batchArgs(b)}}
	if len(keyed) > 0 {
		args, err := encodeKeys(st.def.Name, keyed)
		if err != nil {
			return err
		}
		steps = append(steps, step{st.keys, args})
	}
	if rows := b.Rows(nil); len(rows) > 0 {
		steps = append(steps, step{st.rows, encodeRows(st.schema.Columns(), rows)})
	}
	if len(b.Forget) > 0 {
		steps = append(steps, step{st.forget, [][]byte{encodeIDs(b.Forget)}})
	}
	steps = append(steps, step{st.commit, nil})
	failed, err := st.pipeline(ctx, conn, steps)
	if err == nil {
		return nil
	}
	return st.recover(ctx, conn, b, failed, err)
}

// batchArgs returns the arguments of the statement that stores the batch id.
func batchArgs(b *stream.Batch) [][]byte {
	wait := []byte{} // the server's setting
	if b.LockWait > 0 {
		wait = strconv.AppendInt(wait, max(1, b.LockWait.Milliseconds()), 10)
	}
	return [][]byte{b.ID[:], wait}
}

// recover continues after the pipeline has failed at a step.
func (st *Stream) recover(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, failed int, err error) error {
	var pgErr *pgconn.PgError
	if !isDefinite(err, &pgErr) {
		if failed < 0 { // nothing was sent
			st.reset(conn)
			return st.classify(err)
		}
		st.reset(conn)
		return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
	}
	if failed >= 0 { // inside the transaction
		if err := exec(ctx, conn, "ROLLBACK"); err != nil {
			return fmt.Errorf("%w: %w", stream.ErrTransient, err)
		}
	}
	if isOutdated(pgErr) || pgErr.Code == stateNoPreparedStatement {
		st.dropPrepared(ctx, conn)
	}
	if failed == 1 && pgErr.Code == stateUniqueViolation {
		return st.readResults(ctx, conn, b)
	}
	if failed > 1 && isData(pgErr) {
		b.Progress()
		return st.stepwise(ctx, conn, b)
	}
	if failed > 1 {
		err = blocked(err)
	}
	return st.classify(err)
}

// blocked marks a lock timeout as one of a request of the batch. A lock timeout while the
// batch id is stored is due to another attempt of the same batch.
func blocked(err error) error {
	var pgErr *pgconn.PgError
	if isDefinite(err, &pgErr) && pgErr.Code == stateLockTimeout {
		return fmt.Errorf("%w: %w", stream.ErrBlocked, err)
	}
	return err
}

// reset makes the pool check its idle connections if this one is closed.
func (st *Stream) reset(conn *pgconn.PgConn) {
	if conn.IsClosed() {
		st.db.pool.Reset()
	}
}

func (st *Stream) dropPrepared(ctx context.Context, conn *pgconn.PgConn) {
	se := sessionOf(conn)
	for _, s := range []*statement{st.begin, st.commit, st.batch, st.forget, st.keys, st.rows, st.savepoint, st.release, st.back} {
		if _, ok := se.prepared[s.name]; ok {
			_ = se.drop(ctx, conn, s.name) // the next use reports an error
		}
	}
}

func exec(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	_, err := conn.Exec(ctx, sql).ReadAll()
	return err
}

// pipeline runs the steps in one round trip. On an error it returns the step that failed,
// or -1 if nothing was sent.
func (st *Stream) pipeline(ctx context.Context, conn *pgconn.PgConn, steps []step) (failed int, err error) {
	descriptions := make([]*pgconn.StatementDescription, len(steps))
	for i, s := range steps {
		if descriptions[i], err = st.describe(ctx, conn, s.statement); err != nil {
			return -1, err
		}
	}
	p := conn.StartPipeline(ctx)
	for i, s := range steps {
		send(p, s, descriptions[i])
	}
	err = p.Sync()
	done := 0
	for err == nil && done < len(steps) {
		var results any
		results, err = p.GetResults()
		if reader, ok := results.(*pgconn.ResultReader); err == nil && ok {
			_, err = reader.Close()
		}
		if err == nil {
			done++
		}
	}
	closed := p.Close()
	if err == nil { // the COMMIT was answered
		return 0, nil
	}
	var pgErr *pgconn.PgError
	if errors.As(closed, &pgErr) { // Close returns the refusal again
		closed = nil
	}
	return done, errors.Join(err, closed)
}

// describe prepares a statement on the connection. It returns nil while statements are not
// prepared.
func (st *Stream) describe(ctx context.Context, conn *pgconn.PgConn, s *statement) (*pgconn.StatementDescription, error) {
	if st.db.unprepared.active() {
		return nil, nil
	}
	p, err := sessionOf(conn).prepare(ctx, conn, s)
	if err != nil {
		return nil, err
	}
	return p.description, nil
}

// send adds a step to a pipeline.
func send(p *pgconn.Pipeline, s step, description *pgconn.StatementDescription) {
	if description == nil {
		p.SendQueryParams(s.sql, s.args, nil, formats(s), nil)
		return
	}
	p.SendQueryStatement(description, s.args, formats(s), nil)
}

// formats declares all arguments as binary.
func formats(s step) []int16 {
	if len(s.args) == 0 {
		return nil
	}
	return binaryFormat
}

// readResults reads the results of the attempt that was committed.
func (st *Stream) readResults(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	result := conn.ExecParams(ctx, "SELECT results FROM spillway_batches WHERE id = $1", [][]byte{b.ID[:]},
		[]uint32{pgtype.UUIDOID}, binaryFormat, binaryFormat).Read()
	if result.Err != nil {
		return fmt.Errorf("%w: read the results of a committed batch: %w", stream.ErrUnconfirmed, result.Err)
	}
	if len(result.Rows) == 0 {
		return fmt.Errorf("%w: the batch id no longer exists", stream.ErrTransient)
	}
	return b.SetResults(result.Rows[0][0])
}

// stepwise stores a batch that contains something the database refuses: an existing
// idempotency key, or rows. Each step is a round trip.
func (st *Stream) stepwise(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	err := st.tryStepwise(ctx, conn, b)
	var pgErr *pgconn.PgError
	switch {
	case err == nil || errors.Is(err, stream.ErrUnconfirmed) || isMoved(err):
		return err
	case isDefinite(err, &pgErr):
		if rollback := exec(ctx, conn, "ROLLBACK"); rollback != nil {
			return fmt.Errorf("%w: %w", stream.ErrTransient, err)
		}
		if pgErr.Code == stateUniqueViolation { // another process has stored the idempotency key
			return fmt.Errorf("%w: %w", stream.ErrTransient, err)
		}
	default:
		st.reset(conn)
	}
	return st.classify(err)
}

func (st *Stream) tryStepwise(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	b.Reset()
	// A constraint that is checked at COMMIT would fail the whole batch.
	if err := exec(ctx, conn, "BEGIN; SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
		return err
	}
	if b.Mark != nil {
		if stored, err := st.mark(ctx, conn, b); stored || err != nil {
			return err
		}
	} else if err := st.run(ctx, conn, step{st.batch, batchArgs(b)}); err != nil {
		var pgErr *pgconn.PgError
		if isDefinite(err, &pgErr) && pgErr.Code == stateUniqueViolation {
			if err := exec(ctx, conn, "ROLLBACK"); err != nil {
				return err
			}
			return st.readResults(ctx, conn, b)
		}
		return err
	}
	b.Progress()
	if err := st.fill(ctx, conn, b); err != nil {
		return blocked(err)
	}
	b.Progress()
	results, err := b.Results()
	if err != nil {
		return err
	}
	if results != nil && b.Mark != nil {
		if err := st.keepResults(ctx, conn, b, results); err != nil {
			return err
		}
	} else if results != nil {
		r := conn.ExecParams(ctx, "UPDATE spillway_batches SET results = $2 WHERE id = $1", [][]byte{b.ID[:], results},
			[]uint32{pgtype.UUIDOID, pgtype.ByteaOID}, binaryFormat, nil).Read()
		if r.Err != nil {
			return r.Err
		}
	}
	return st.confirm(ctx, conn)
}

// fill stores the rows and the idempotency keys.
func (st *Stream) fill(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	if err := st.findKeys(ctx, conn, b); err != nil {
		return err
	}
	if err := st.insertRows(ctx, conn, b); err != nil {
		return err
	}
	keyed := b.Keyed(nil)
	if len(keyed) == 0 {
		return nil
	}
	args, err := encodeKeys(st.def.Name, keyed)
	if err != nil {
		return err
	}
	return st.run(ctx, conn, step{st.keys, args})
}

// confirm commits.
func (st *Stream) confirm(ctx context.Context, conn *pgconn.PgConn) error {
	err := exec(ctx, conn, "COMMIT")
	var pgErr *pgconn.PgError
	if err == nil || isDefinite(err, &pgErr) {
		return err
	}
	st.reset(conn)
	return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
}

// run runs one step.
func (st *Stream) run(ctx context.Context, conn *pgconn.PgConn, s step) error {
	if st.db.unprepared.active() {
		return conn.ExecParams(ctx, s.sql, s.args, nil, formats(s), nil).Read().Err
	}
	p, err := sessionOf(conn).prepare(ctx, conn, s.statement)
	if err != nil {
		return err
	}
	return conn.ExecStatement(ctx, p.description, s.args, formats(s), nil).Read().Err
}

// findKeys sets the results of the requests whose idempotency keys exist, and deletes keys
// that have expired.
func (st *Stream) findKeys(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) error {
	keyed := b.Keyed(nil)
	if len(keyed) == 0 {
		return nil
	}
	byKey := make(map[string]*stream.Entry, len(keyed))
	keys := appendArrayHeader(nil, pgtype.TextOID, len(keyed))
	for _, e := range keyed {
		byKey[e.Key] = e
		keys = appendElement(keys, []byte(e.Key))
	}
	args := [][]byte{[]byte(st.def.Name), keys}
	oids := []uint32{pgtype.TextOID, pgtype.TextArrayOID}
	gone := conn.ExecParams(ctx, "DELETE FROM spillway_requests WHERE stream = $1 AND key = ANY($2) AND expires_at < now()", args, oids, binaryFormat, nil).Read()
	if gone.Err != nil {
		return gone.Err
	}
	found := conn.ExecParams(ctx, "SELECT key, fingerprint, outcome FROM spillway_requests WHERE stream = $1 AND key = ANY($2)", args, oids, binaryFormat, binaryFormat).Read()
	if found.Err != nil {
		return found.Err
	}
	for _, row := range found.Rows {
		if e := byKey[string(row[0])]; e != nil {
			e.Found(row[1], row[2])
		}
	}
	return nil
}

// spoolTable is created with the first batch of a spool if it is missing.
const spoolTable = `CREATE TABLE IF NOT EXISTS spillway_spools (
	id uuid PRIMARY KEY,
	stream text NOT NULL,
	after bigint NOT NULL,
	sequence bigint NOT NULL,
	results bytea,
	updated_at timestamptz NOT NULL DEFAULT now()
);`

// drain commits a batch of a spool step by step. Such batches are large and come one at a
// time.
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

// mark stores which groups of a spool the batch contains. If the database already has
// them, or overlapping ones, it ends the transaction.
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

// meet compares the batch with the existing row: after, sequence, results.
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
