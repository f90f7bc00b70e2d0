package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// finishList prepares a transaction for COMMIT: statement_timeout does not end the wait for a
// standby, and the server's warnings are sent. A deferred constraint still waits for a lock
// only as long as a statement may: lock_timeout ends no wait for a standby, and its error
// proves that nothing was committed. A trigger may have changed synchronous_commit. The list returns
// what the COMMIT waits for.
func finishList(fsync stream.Fsync) string {
	return finishSettings + pinned(fsync) + ", " + standbyNames
}

const finishSettings = "set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN " +
	"current_setting('statement_timeout') ELSE current_setting('lock_timeout') END, true), " +
	"set_config('statement_timeout', '0', true), set_config('client_min_messages', 'warning', true)"

// standbyNames selects synchronous_standby_names, or nothing if the server has no WAL senders:
// then it waits for no standby.
const standbyNames = "CASE current_setting('max_wal_senders') WHEN '0' THEN '' ELSE current_setting('synchronous_standby_names') END"

// unsynced is the setting with which a COMMIT does not wait for the disk.
const unsynced = "synchronous_commit=off"

// step is one statement of a transaction and its arguments, all binary.
type step struct {
	*statement
	args [][]byte
	read func(*pgconn.Result) // gets the result; nil: it does not matter
}

// commit is one COMMIT, which may wait for a synchronous standby for as long as that is
// away. Nothing on this side ends it but the end of its context, and that only closes the
// connection.
type commit struct {
	conn  *pgconn.PgConn
	guard *database.CommitGuard
	level string // what it waited for
	tag   string
	// implicit: there is no COMMIT, and the server commits when it has run all steps.
	implicit bool
}

// append appends the statement that selects finishList, and COMMIT.
func (c *commit) append(steps []step, finish step, statement *statement) []step {
	finish.read = func(r *pgconn.Result) {
		c.readLevel(r, 3)
		c.guard.ClearWarning() // what follows is about COMMIT
	}
	return append(steps, finish, step{statement, nil, func(r *pgconn.Result) { c.tag = r.CommandTag.String() }})
}

// readLevel reads synchronous_commit and standbyNames from a row.
func (c *commit) readLevel(r *pgconn.Result, first int) {
	if len(r.Rows) != 1 {
		return
	}
	setting, names := string(r.Rows[0][first]), string(r.Rows[0][first+1])
	if c.level = levelOf(setting, names); setting == "off" {
		c.level = "not fsynced: " + unsynced
	}
}

// run runs the steps in one round trip, and returns the one that failed. An error of the
// server proves that nothing was committed. Other errors wrap stream.ErrTransient or
// stream.ErrUnconfirmed.
func (c *commit) run(ctx context.Context, steps []step, descriptions []*pgconn.StatementDescription) (failed int, err error) {
	c.guard.Begin()
	defer c.guard.End()
	failed, err = pipeline(ctx, c.conn, steps, descriptions)
	before := len(steps) // steps that are answered before the server commits
	if !c.implicit {
		before--
		if failed == len(steps) { // COMMIT was answered
			err = nil
		}
	}
	var pgErr *pgconn.PgError
	switch {
	case err == nil && !c.implicit && c.tag != "COMMIT": // the transaction was rolled back
		return failed, fmt.Errorf("%w: COMMIT was answered with %s", stream.ErrTransient, c.tag)
	case err == nil && c.guard.Warning() != "":
		return failed, fmt.Errorf("%w: COMMIT was answered with a warning: %s", stream.ErrUnconfirmed, c.guard.Warning())
	case err == nil || isDefinite(err, &pgErr):
		return failed, err
	case failed < before && errors.As(err, &pgErr) && beforeCommit(pgErr):
		return failed, fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	return failed, fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
}

// beforeCommit reports whether a fatal error that came before the answer to the statement before
// COMMIT proves that COMMIT was not executed. PostgreSQL sends answers and errors in order; its own
// errors name a routine. A pooler may lose answers, but not of a client that had no server.
func beforeCommit(err *pgconn.PgError) bool {
	if err.Routine != "" || err.Code == "57P03" {
		return true
	}
	for _, start := range []string{
		"server login ", "query_wait_timeout", "no working server connection", "pgbouncer cannot connect to server",
	} {
		if strings.HasPrefix(err.Message, start) {
			return true
		}
	}
	return false
}

// recheck lowers the level after COMMIT was answered. If synchronous_standby_names is emptied
// while a COMMIT waits, the server answers it as if the standby had it. Without an answer
// within limit, the level is local.
func (c *commit) recheck(ctx context.Context, limit time.Duration) {
	if c.level == stream.LevelLocal || strings.HasSuffix(c.level, unsynced) {
		return
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	names := c.conn.ExecParams(ctx, "SELECT "+standbyNames, nil, nil, nil, nil).Read()
	if names.Err != nil || len(names.Rows) != 1 {
		c.level = stream.LevelLocal
		return
	}
	c.level = levelOf(c.level, string(names.Rows[0][0]))
}

// pipeline runs the steps in one round trip. On an error it returns the step that failed, or how many there are
// if that was what follows them.
func pipeline(ctx context.Context, conn *pgconn.PgConn, steps []step, descriptions []*pgconn.StatementDescription) (failed int, err error) {
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
			err = take(reader, steps[done].read)
		}
		if err == nil {
			done++
		}
	}
	if err == nil {
		_, err = p.GetResults() // the server is ready
	}
	closed := p.Close()
	if _, ok := errors.AsType[*pgconn.PgError](closed); ok { // Close returns the refusal again
		closed = nil
	}
	return done, errors.Join(err, closed)
}

// take reads a result to its end.
func take(reader *pgconn.ResultReader, read func(*pgconn.Result)) error {
	if read == nil {
		_, err := reader.Close()
		return err
	}
	result := reader.Read()
	if result.Err == nil {
		read(result)
	}
	return result.Err
}

// send adds a step to a pipeline.
func send(p *pgconn.Pipeline, s step, description *pgconn.StatementDescription) {
	if description == nil {
		p.SendQueryParams(s.sql, s.args, nil, formats(s), nil)
		return
	}
	p.SendQueryStatement(description, s.args, formats(s), nil)
}

// sendNamed is send for a pipeline that goes on behind an error: pgconn confuses the descriptions of
// the statements that the server then skips.
func sendNamed(p *pgconn.Pipeline, s step, description *pgconn.StatementDescription) {
	if description == nil {
		send(p, s, nil)
		return
	}
	p.SendQueryPrepared(description.Name, s.args, formats(s), nil)
}

// formats declares all arguments as binary.
func formats(s step) []int16 {
	if len(s.args) == 0 {
		return nil
	}
	return binaryFormat
}
