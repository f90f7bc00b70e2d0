package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// preparedPerConnection is the number of statements that one connection keeps prepared.
// The least recently used one is dropped first.
const preparedPerConnection = 128

// sessionKey is the key of the session in the connection's custom data.
const sessionKey = "spillway.session"

// session holds the statements prepared on one connection. It belongs to the holder of the
// connection.
type session struct {
	prepared *simplelru.LRU[string, *prepared] // by statement.name; feeds with one text and format share it

	descriptions []*pgconn.StatementDescription // of Stream.describe
}

// prepared is a statement on one connection.
type prepared struct {
	description *pgconn.StatementDescription
	columns     *columns
	trust       map[*statement]*trust // of quick batches; nil: none
}

func sessionOf(conn *pgconn.PgConn) *session {
	data := conn.CustomData()
	if s, ok := data[sessionKey].(*session); ok {
		return s
	}
	kept, _ := simplelru.NewLRU[string, *prepared](preparedPerConnection, nil) // the size is positive
	s := &session{prepared: kept}
	data[sessionKey] = s
	return s
}

// prepare returns s prepared on the connection.
func (se *session) prepare(ctx context.Context, conn *pgconn.PgConn, s *statement) (*prepared, error) {
	if p, ok := se.prepared.Get(s.name); ok {
		return p, nil
	}
	if oldest, _, ok := se.prepared.GetOldest(); ok && se.prepared.Len() >= preparedPerConnection {
		if err := se.drop(ctx, conn, oldest); err != nil {
			return nil, err
		}
	}
	description, err := conn.Prepare(ctx, s.name, s.sql, nil)
	if err != nil {
		return nil, err
	}
	if s.types != nil {
		description.Fields = slices.Clone(description.Fields) // the slice belongs to the connection
		if err := s.types.learn(ctx, conn, s.types.unknown(description.Fields)); err != nil {
			return nil, errors.Join(err, conn.Deallocate(ctx, s.name))
		}
	}
	c, err := s.columns(description.Fields)
	if err != nil {
		return nil, errors.Join(err, conn.Deallocate(ctx, s.name))
	}
	p := &prepared{description: description, columns: c}
	se.prepared.Add(s.name, p)
	return p, nil
}

func (se *session) drop(ctx context.Context, conn *pgconn.PgConn, name string) error {
	se.prepared.Remove(name)
	if err := conn.Deallocate(ctx, name); err != nil {
		return fmt.Errorf("drop a prepared statement: %w", err)
	}
	return nil
}

// execution is one statement on one connection.
type execution struct {
	conn   *pgconn.PgConn
	giveUp context.CancelFunc // ends the context that the statement runs in
	to     feed.RowHandler
}

func (r *execution) prepared(ctx context.Context, s *statement, args [][]byte) error {
	conn := r.conn
	se := sessionOf(conn)
	p, err := se.prepare(ctx, conn, s)
	if err != nil {
		return err
	}
	err = r.takeRows(conn.ExecStatement(ctx, p.description, args, nil, nil), p.columns)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && isStale(pgErr) {
		return errors.Join(err, se.drop(ctx, conn, s.name))
	}
	return err
}

// unprepared runs a statement without preparing it, in one round trip.
func (r *execution) unprepared(ctx context.Context, s *statement, args [][]byte) error {
	result := r.conn.ExecParams(ctx, s.sql, args, nil, nil, nil)
	fields := result.FieldDescriptions()
	if len(fields) == 0 { // the statement failed
		_, err := result.Close()
		return err
	}
	if s.types != nil {
		if unknown := s.types.unknown(fields); len(unknown) > 0 {
			_, err := result.Close()
			if err == nil {
				err = s.types.learn(ctx, r.conn, unknown)
			}
			if err != nil {
				return err
			}
			return r.unprepared(ctx, s, args)
		}
	}
	c := s.last.Load()
	if c == nil || !c.matches(fields) {
		var err error
		if c, err = s.columns(fields); err != nil {
			_, closeErr := result.Close()
			return errors.Join(err, closeErr)
		}
		s.last.Store(c)
	}
	return r.takeRows(result, c)
}

// handlerError is an error of the row handler. The remaining rows do not matter.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// takeRows passes all rows to the handler and closes the result. If the handler returns an
// error, the statement is cancelled, because millions of rows may remain.
func (r *execution) takeRows(result *pgconn.ResultReader, c *columns) error {
	var err error
	current := &row{columns: c}
	for err == nil && result.NextRow() {
		current.values = result.Values()
		if len(current.values) != len(c.forms) {
			err = fmt.Errorf("a row has %d columns instead of %d", len(current.values), len(c.forms))
			break
		}
		if refused := r.to.Row(current); refused != nil {
			r.giveUp()
			_, _ = result.Close() // the remaining rows and the confirmation of the cancel request
			return &handlerError{refused}
		}
	}
	_, closeErr := result.Close()
	return errors.Join(err, closeErr)
}

// texts is database.PostgresTexts.
func texts(ctx context.Context, conn *pgconn.PgConn, sql string, args ...string) ([][]string, error) {
	return database.PostgresTexts(ctx, conn, sql, args...)
}
