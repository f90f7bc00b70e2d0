package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
)

// streamTables are created if they are missing. Without the right to create tables, an
// administrator creates them.
const streamTables = `CREATE TABLE IF NOT EXISTS spillway_batches (
	id uuid PRIMARY KEY,
	created_at timestamptz NOT NULL DEFAULT now(),
	results bytea
);
CREATE TABLE IF NOT EXISTS spillway_requests (
	stream text NOT NULL,
	key text COLLATE "C" NOT NULL,
	fingerprint bytea NOT NULL,
	outcome bytea NOT NULL,
	expires_at timestamptz NOT NULL,
	PRIMARY KEY (stream, key)
);
CREATE INDEX IF NOT EXISTS spillway_requests_expires_at ON spillway_requests (expires_at);`

// Stream stores the records of one stream. It implements stream.Sink.
//
// A batch is one round trip: BEGIN, the batch id, the idempotency keys, the rows and
// COMMIT are sent together. If the server refuses one of them, the batch is repeated step
// by step. The rows are one INSERT ... SELECT FROM unnest(...) with one array per column,
// prepared once for any number of rows. COPY is not used, because it has no ON CONFLICT
// and needs three more round trips.
type Stream struct {
	db     *DB
	schema *stream.Schema
	def    stream.Definition

	begin, commit, batch, forget, keys, rows *statement
	savepoint, release, back                 *statement

	ready atomic.Bool // the tables exist
}

var _ stream.Sink = (*Stream)(nil)

// Stream returns the stream.Sink of a stream. Mistakes that only the database can find are
// errors of Commit and Check.
func (db *DB) Stream(schema *stream.Schema) *Stream {
	def := schema.Definition()
	none := func([]pgconn.FieldDescription) (*columns, error) { return &columns{}, nil }
	pin := pinned(def.Fsync)
	return &Stream{
		db: db, schema: schema, def: def,
		begin:  newStatement("BEGIN", none),
		commit: newStatement("COMMIT", none),
		batch: newStatement("INSERT INTO spillway_batches (id) SELECT pinned.id FROM (SELECT $1::uuid AS id, "+
			"set_config('lock_timeout', COALESCE(NULLIF($2::text, ''), current_setting('lock_timeout')), true)"+pin+") AS pinned", none),
		forget: newStatement("DELETE FROM spillway_batches WHERE id = ANY($1::uuid[])", none),
		keys: newStatement("INSERT INTO spillway_requests (stream, key, fingerprint, outcome, expires_at) "+
			"SELECT $1::text, * FROM unnest($2::text[], $3::bytea[], $4::bytea[], $5::timestamptz[])", none),
		rows:      newStatement(insertRows(schema), none),
		savepoint: newStatement("SAVEPOINT part", none),
		release:   newStatement("RELEASE SAVEPOINT part", none),
		back:      newStatement("ROLLBACK TO SAVEPOINT part", none),
	}
}

// pinned returns the end of a SELECT list that sets the durability of a transaction.
func pinned(fsync stream.Fsync) string {
	switch fsync {
	case stream.FsyncOn:
		return ", set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
	case stream.FsyncOff:
		return ", set_config('synchronous_commit', 'off', true)"
	}
	return ""
}

// insertRows writes the INSERT of any number of rows.
func insertRows(schema *stream.Schema) string {
	def := schema.Definition()
	var names, arrays []string
	for i, c := range schema.Columns() {
		names = append(names, quoteIdentifier(c.Name))
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, arrayTypes[c.Type].name))
	}
	list := strings.Join(names, ", ")
	sql := fmt.Sprintf("INSERT INTO %s (%s) SELECT * FROM unnest(%s) AS r(%s)",
		plans.ParseTableName(def.Table).SQL(plans.Postgres), list, strings.Join(arrays, ", "), list)
	if len(def.Key) > 0 {
		var key []string
		for _, name := range def.Key {
			key = append(key, quoteIdentifier(name))
		}
		sql += " ON CONFLICT (" + strings.Join(key, ", ") + ") DO NOTHING"
	}
	return sql
}

// Ping implements stream.Database.
func (st *Stream) Ping(ctx context.Context) error { return st.db.Ping(ctx) }

// Close does nothing: the connections belong to the DB.
func (st *Stream) Close() error { return nil }

// Check has the database prepare and explain the stream's statements, and creates the
// stream's own tables if they are missing. EXPLAIN checks the privileges without writing;
// preparing a statement does not.
func (st *Stream) Check(ctx context.Context) error {
	err := st.withConn(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := st.prepareTables(ctx, conn); err != nil {
			return err
		}
		for _, s := range []*statement{st.batch, st.keys, st.rows} {
			d, err := conn.Prepare(ctx, "", s.sql, nil)
			if err != nil {
				return err
			}
			nulls := make([][]byte, len(d.ParamOIDs))
			if err := conn.ExecParams(ctx, "EXPLAIN "+s.sql, nulls, d.ParamOIDs, nil, nil).Read().Err; err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return nil
}

// withConn runs work on one connection of the pool.
func (st *Stream) withConn(ctx context.Context, work func(context.Context, *pgconn.PgConn) error) error {
	pooled, err := st.db.acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release()
	return work(ctx, pooled.Conn().PgConn())
}

// prepareTables creates the stream's own tables once. A lock serializes the streams of one
// database, because concurrent CREATE IF NOT EXISTS can fail.
func (st *Stream) prepareTables(ctx context.Context, conn *pgconn.PgConn) error {
	if st.ready.Load() {
		return nil
	}
	present := conn.ExecParams(ctx, "SELECT to_regclass('spillway_batches') IS NOT NULL AND to_regclass('spillway_requests') IS NOT NULL", nil, nil, nil, nil).Read()
	if present.Err != nil {
		return present.Err
	}
	if string(present.Rows[0][0]) != "t" {
		const lock = 0x7370696c6c // an advisory lock of this program
		sql := fmt.Sprintf("BEGIN; SELECT pg_advisory_xact_lock(%d); %s COMMIT", lock, streamTables)
		if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
			_, _ = conn.Exec(ctx, "ROLLBACK").ReadAll() // the first error is returned
			return fmt.Errorf("create the tables spillway_batches and spillway_requests: %w", err)
		}
	}
	st.ready.Store(true)
	return nil
}

// Durability implements stream.Sink.
func (st *Stream) Durability(ctx context.Context) (stream.Durability, error) {
	var d stream.Durability
	err := st.withConn(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		result := conn.ExecParams(ctx, "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')", nil, nil, nil, nil).Read()
		if result.Err != nil {
			return result.Err
		}
		row := result.Rows[0]
		commit := string(row[2])
		switch st.def.Fsync {
		case stream.FsyncOn:
			commit = "on" // or a stronger one; each transaction sets it
		case stream.FsyncOff:
			commit = "off"
		}
		for i, name := range []string{"fsync", "full_page_writes"} {
			if string(row[i]) == "off" {
				d.Unsafe = append(d.Unsafe, name+"=off")
			}
		}
		if commit == "off" {
			d.Unsafe = append(d.Unsafe, "synchronous_commit=off")
		}
		return nil
	})
	return d, err
}

// Sweep implements stream.Sink.
func (st *Stream) Sweep(ctx context.Context, now, batches time.Time, limit int) (int, error) {
	total := 0
	err := st.withConn(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := st.prepareTables(ctx, conn); err != nil {
			return err
		}
		steps := []struct {
			sql    string
			before time.Time
		}{
			{"DELETE FROM spillway_batches WHERE ctid = ANY(ARRAY(SELECT ctid FROM spillway_batches WHERE created_at < $1::timestamptz LIMIT $2::bigint FOR UPDATE SKIP LOCKED))", batches},
			{"DELETE FROM spillway_requests WHERE ctid = ANY(ARRAY(SELECT ctid FROM spillway_requests WHERE expires_at < $1::timestamptz LIMIT $2::bigint FOR UPDATE SKIP LOCKED))", now},
		}
		for _, step := range steps {
			args := [][]byte{[]byte(step.before.UTC().Format(time.RFC3339Nano)), fmt.Append(nil, limit)}
			result := conn.ExecParams(ctx, step.sql, args, nil, nil, nil).Read()
			if result.Err != nil {
				return result.Err
			}
			total += int(result.CommandTag.RowsAffected())
		}
		return nil
	})
	return total, err
}

// SQLSTATEs that a stream distinguishes.
const (
	stateUniqueViolation = "23505"
	stateLockTimeout     = "55P03"
	stateDeadlock        = "40P01"
)

// isData reports whether the server refuses the rows themselves: data exceptions,
// constraints, limits, check options of views, row-level security, and errors that
// triggers raise. Temporary errors, and errors that an administrator must fix (missing
// tables and privileges, settings, a damaged server), are not the rows' fault.
func isData(err *pgconn.PgError) bool {
	if isTemporary(err) || isOutdated(err) {
		return false
	}
	switch err.Routine {
	case "exec_stmt_raise", "ExecWithCheckOptions": // RAISE of PL/pgSQL; a policy or a check option
		return true
	}
	switch err.Code[:min(2, len(err.Code))] {
	case "0A", "0L", "0P", "25", "26", "28", "2B", "2D", "34", "3B", "3D", "3F", "42", "55", "57", "72", "F0", "HV", "XX":
		return false
	}
	return true
}

// isTemporary reports whether the server may accept the same transaction later.
func isTemporary(err *pgconn.PgError) bool {
	switch err.Code {
	case stateLockTimeout, "57014", "25006", "57P01", "57P02", "57P03", "57P05", "42P05", stateNoPreparedStatement, stateProtocolViolation:
		// A lock or statement timeout, a standby before its promotion, a restart, or a
		// pooler that loses statements.
		return true
	}
	switch err.Code[:min(2, len(err.Code))] {
	case "40", "53", "08", "58": // serialization, resources, connection, system
		return true
	}
	return false
}

// isDefinite reports whether an error proves that the transaction was not committed: the
// server refused a statement and the session goes on. A FATAL error can follow a commit.
func isDefinite(err error, to **pgconn.PgError) bool {
	return errors.As(err, to) && (*to).SeverityUnlocalized == "ERROR"
}

// classify wraps the server's error about a transaction that was not committed.
func (st *Stream) classify(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	if isTemporary(pgErr) {
		st.db.worthRetrying(err)
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	if pgErr.Code == "42P01" { // one of the stream's own tables may have been dropped
		st.ready.Store(false)
	}
	if isOutdated(pgErr) {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	return err
}
