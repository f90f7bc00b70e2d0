package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
	"spillway/internal/serve/tables"
)

// Stream stores the records of one stream. It implements stream.Sink.
//
// A batch is one round trip: BEGIN, the batch id, the idempotency keys, the rows and
// COMMIT are sent together. If the server refuses one of them, the batch is repeated by
// streamtables, step by step. The rows are one INSERT ... SELECT FROM unnest(...) with one array
// per column, prepared once for any number of rows. COPY is not used, because it has no
// ON CONFLICT and needs three more round trips. Plain tables need fewer statements: see commitQuick.
//
// COMMIT may wait for a standby for as long as that is away. Nothing here ends the wait: the
// statement before it switches statement_timeout off, and no cancel request is sent.
type Stream struct {
	db     *DB
	schema *stream.Schema
	def    stream.Definition

	begin, commit, batch, keys *statement
	quickBatch                 *statement
	savepoint, release, back   *statement

	table    atomic.Pointer[checkedTable] // nil: the tables have to be checked
	resolved atomic.Pointer[string]       // the table with its schema; set by the check
	origins  atomic.Pointer[origins]      // of refusals; set by the check
	timeouts atomic.Pointer[timeouts]     // of the last batch; nil: none yet
}

var _ stream.Sink = (*Stream)(nil)

// Stream returns the stream.Sink of a stream. Mistakes that only the database can find are
// errors of Commit and Check.
func (db *DB) Stream(schema *stream.Schema) *Stream {
	def := schema.Definition()
	return &Stream{
		db: db, schema: schema, def: def,
		begin:  newStatement("BEGIN", noColumns),
		commit: newStatement("COMMIT", noColumns),
		batch: newStatement("INSERT INTO spillway_batches (id, created_at) "+
			"SELECT pinned.id, now() FROM (SELECT $3::uuid AS id, "+settingsList+settings(def)+") AS pinned", noColumns),
		quickBatch: newQuickBatch(def),
		keys:       newStatement(insertKeys, noColumns),
		savepoint:  newStatement("SAVEPOINT part", noColumns),
		release:    newStatement("RELEASE SAVEPOINT part", noColumns),
		back:       newStatement("ROLLBACK TO SAVEPOINT part", noColumns),
	}
}

// noColumns is for statements whose rows nobody reads as those of a feed.
func noColumns([]pgconn.FieldDescription) (*columns, error) { return &columns{}, nil }

// settingsList sets the timeouts of a transaction; "" keeps the session's.
const settingsList = "set_config('lock_timeout', COALESCE(NULLIF($1::text, ''), current_setting('lock_timeout')), true), " +
	"set_config('statement_timeout', COALESCE(NULLIF($2::text, ''), current_setting('statement_timeout')), true)"

// pinned returns the end of a SELECT list that sets the durability of a transaction, and yields it.
func pinned(fsync stream.Fsync) string {
	switch fsync {
	case stream.FsyncOn:
		return ", set_config('synchronous_commit', " +
			"CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
	case stream.FsyncOff:
		return ", set_config('synchronous_commit', 'off', true)"
	}
	return ", current_setting('synchronous_commit')"
}

// settings returns the end of a SELECT list that sets the durability of a batch, and how the arrays
// of its records are read.
func settings(def stream.Definition) string {
	if slices.ContainsFunc(def.Columns, func(c stream.Column) bool { return strings.HasSuffix(string(c.Type), "[]") }) {
		return ", set_config('array_nulls', 'on', true)" + pinned(def.Fsync)
	}
	return pinned(def.Fsync)
}

// Ping implements stream.Database. A server that is read-only does not answer.
func (st *Stream) Ping(ctx context.Context) error {
	if err := st.db.Ping(ctx); err != nil {
		return err
	}
	return st.db.askAgain(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		rows, err := tableSession{conn}.Rows(ctx, "SHOW transaction_read_only")
		if err == nil && len(rows) == 1 && rows[0][0] == "on" {
			st.db.pool.Renew()
			err = errors.New("the server or the role is read-only")
		}
		return err
	})
}

// Close does nothing: the connections belong to the DB.
func (st *Stream) Close() error { return nil }

// Check has the database prepare and explain the stream's statements, and creates the
// stream's own tables if they are missing. EXPLAIN checks the privileges of these statements
// without writing; the others are looked up.
func (st *Stream) Check(ctx context.Context) error {
	err := st.db.withConn(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		t, err := st.prepareTables(ctx, conn)
		if err != nil {
			return err
		}
		for _, s := range []*statement{st.batch, st.keys, t.rows} {
			if _, err := explainInsert(ctx, conn, s.sql); err != nil {
				return err
			}
		}
		return st.checkRights(ctx, conn)
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return nil
}

// Durability implements stream.Sink.
func (st *Stream) Durability(ctx context.Context) (stream.Durability, error) {
	var d stream.Durability
	err := st.db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		sent := time.Now()
		rows, err := texts(ctx, conn, "SELECT current_setting('fsync'), current_setting('full_page_writes'), "+
			"current_setting('synchronous_commit'), "+
			standbyNames+", (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
		if err != nil {
			return err
		}
		middle := sent.Add(time.Since(sent) / 2)
		row := rows[0]
		micros, err := strconv.ParseInt(row[4], 10, 64)
		if err != nil {
			return fmt.Errorf("read the server's clock: %w", err)
		}
		d.Clock = time.UnixMicro(micros).Sub(middle)
		commit := row[2]
		switch {
		case st.def.Fsync == stream.FsyncOn && commit == "off":
			commit = "on" // each transaction sets it
		case st.def.Fsync == stream.FsyncOff:
			commit = "off"
		}
		d.Level = levelOf(commit, row[3])
		for i, name := range []string{"fsync", "full_page_writes"} {
			if row[i] == "off" {
				d.Unsafe = append(d.Unsafe, name+"=off")
			}
		}
		if commit == "off" {
			d.Unsafe = append(d.Unsafe, unsynced)
		}
		if t := st.table.Load(); t != nil {
			d.Unsafe = append(d.Unsafe, t.unsafe...)
		}
		return nil
	})
	return d, err
}

// levelOf returns what a COMMIT waits for with these settings.
func levelOf(synchronousCommit, standbys string) string {
	if strings.TrimSpace(standbys) == "" {
		return stream.LevelLocal
	}
	switch synchronousCommit {
	case stream.LevelRemoteWrite, stream.LevelOn, stream.LevelRemoteApply:
		return synchronousCommit
	}
	return stream.LevelLocal
}

// Sweep implements stream.Sink. It waits for no standby.
func (st *Stream) Sweep(ctx context.Context, keep stream.Keep, limit int) (deleted int, err error) {
	err = st.db.withConn(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := st.prepareTables(ctx, conn); err != nil {
			return err
		}
		err := exec(ctx, conn, "BEGIN; SET LOCAL synchronous_commit = off")
		if err == nil {
			deleted, err = streamtables.Sweep(ctx, tableSession{conn}, dialect, st.def.Spooled, keep, limit)
		}
		if err != nil {
			return errors.Join(err, exec(ctx, conn, "ROLLBACK"))
		}
		return exec(ctx, conn, "COMMIT")
	})
	return deleted, err
}

// prepareTables creates the stream's own tables that are missing, and checks the table of the
// records, once.
func (st *Stream) prepareTables(ctx context.Context, conn *pgconn.PgConn) (*checkedTable, error) {
	if t := st.table.Load(); t != nil {
		return t, nil
	}
	if err := ensureTables(ctx, conn, streamtables.Own(dialect, st.def.Spooled)); err != nil {
		return nil, err
	}
	t, err := st.checkTable(ctx, conn)
	if err != nil {
		return nil, err
	}
	if err := st.resolve(ctx, conn); err != nil {
		return nil, fmt.Errorf("look up the idempotency keys of %s: %w", st.def.Table, err)
	}
	st.table.Store(t)
	return t, nil
}

// resolve finds the schema of the table.
func (st *Stream) resolve(ctx context.Context, conn *pgconn.PgConn) error {
	s := tableSession{conn}
	rows, err := s.Rows(ctx, "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "+
		"WHERE c.oid = "+quoteText(st.tableName())+"::regclass")
	if err != nil {
		return err
	}
	st.resolved.Store(&rows[0][0])
	return nil
}

// SQLSTATEs that a stream distinguishes.
const (
	stateUniqueViolation       = "23505"
	stateLockTimeout           = "55P03"
	stateUndefinedTable        = "42P01"
	stateInsufficientPrivilege = "42501"
	stateDatatypeMismatch      = "42804"
	stateNoUniqueIndex         = "42P10" // for ON CONFLICT
	// stateSequenceExhausted is a data exception, but of the sequence.
	stateSequenceExhausted = "2200H"
	stateOutOfRange        = "22003"
	classConstraint        = "23"
)

// isData reports whether the server refuses the rows themselves: data exceptions,
// constraints, limits, check options of views, row-level security, and errors that
// triggers raise. Temporary errors, and errors that an administrator must fix (missing
// tables and privileges, settings, a damaged server, an exhausted sequence), are not the
// rows' fault.
func isData(err *pgconn.PgError) bool {
	if isTemporary(err) || isOutdated(err) || failsWith(err, tableChanged) {
		return false
	}
	switch err.Routine {
	case "exec_stmt_raise", "ExecWithCheckOptions": // RAISE of PL/pgSQL; a policy or a check option
		return true
	}
	if err.Code == stateSequenceExhausted {
		return false
	}
	switch err.Code[:min(2, len(err.Code))] {
	case "0A", "0L", "0P", "25", "26", "28", "2B", "2D", "34", "3B", "3D", "3F", "42", "55", "57", "72", "F0", "HV", "XX":
		return false
	}
	return true
}

// refusalOf returns the refusal of a row that is inserted alone; nil for any other error. Of a
// batch with a Mark, any error that is not temporary counts as a refusal. It is unsure, because its
// reason may be the server's, unless it is a data exception or a constraint.
func (st *Stream) refusalOf(err error, marked bool) *stream.RowRefusal {
	var pgErr *pgconn.PgError
	if !isDefinite(err, &pgErr) || !marked && !isData(pgErr) || isTemporary(pgErr) || isOutdated(pgErr) {
		return nil
	}
	if failsWith(pgErr, tableChanged) {
		return nil
	}
	if failsWith(pgErr, rowsSkipped) {
		refusal := stream.SkippedRow(0, marked)
		return &refusal
	}
	fault := st.faultOf(pgErr)
	if fault == stream.ServersFault && !marked {
		return nil
	}
	st.forgetTable(pgErr)
	class := pgErr.Code[:min(2, len(pgErr.Code))]
	unsure := class != classDataException && class != classConstraint || fault != stream.RecordsFault
	return &stream.RowRefusal{Reason: pgErr.Message, Unsure: marked && unsure}
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

// forgetTable has the table checked again after an error that its change may have caused.
func (st *Stream) forgetTable(err *pgconn.PgError) {
	switch err.Code {
	case stateUndefinedTable, stateUndefinedColumn, stateDatatypeMismatch, stateNoUniqueIndex:
		st.table.Store(nil)
	}
}

// classify wraps the server's error about a transaction that was not committed.
func (st *Stream) classify(err error) error {
	var pgErr *pgconn.PgError
	if errors.Is(err, tables.ErrUnusable) {
		return err
	}
	if !errors.As(err, &pgErr) {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	if isTemporary(pgErr) {
		st.db.worthRetrying(err)
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	if st.faultOf(pgErr) == stream.ServersFault {
		return fmt.Errorf("%w: %w: %w", stream.ErrTransient, stream.ErrRefused, err)
	}
	st.forgetTable(pgErr)
	if failsWith(pgErr, tableChanged) {
		return fmt.Errorf("%w: %s was changed since it was checked", stream.ErrTransient, st.def.Table)
	}
	if isOutdated(pgErr) {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	return err
}
