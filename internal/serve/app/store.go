package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/mysql"
	"spillway/internal/serve/postgres"
	"spillway/internal/serve/query"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/standby"
	"spillway/internal/serve/stream"
)

// store is one open database.
type store struct {
	connection
	tables
	url      database.URL
	gate     feed.Gate // leaves one connection to the refreshes
	optional bool      // a replica: the primary answers while it is down
	needed   bool      // serving requires it
	read     bool      // feeds or queries read it
	spooled  bool      // a stream writes to it through the spool

	answer atomic.Pointer[answer] // to the last probe; nil before it, and if nothing reads it
}

// connection is a database's pool.
type connection interface {
	Ping(context.Context) error
	Probe(context.Context) error
	Stats() database.Stats
	Close() error
}

// tables creates the engines' sources and sinks in a database.
type tables interface {
	feed(feed.Definition) (feed.Source, error)
	query(query.Definition) (querySource, error)
	stream(*stream.Schema) streamDatabase
	popups() popupTables
}

// querySource is a query's source that can check its statement.
type querySource interface {
	query.Source
	Check(context.Context) error
}

// stores opens each database once, by its URL.
type stores struct {
	pool database.Pool
	log  *slog.Logger
	open map[string]*store
}

// get returns the store at a URL. A database that does not answer is no error.
func (s *stores) get(ctx context.Context, text string) (*store, error) {
	url, err := database.Parse(text)
	if err != nil {
		return nil, exit.UsageError(err)
	}
	if st, ok := s.open[url.Raw()]; ok {
		return st, nil
	}
	st := &store{url: url, gate: feed.NewGate(s.pool.Max)}
	switch url.Driver {
	case database.Postgres:
		var db *postgres.DB
		db, err = postgres.Open(ctx, url, s.pool, s.log)
		st.connection, st.tables = db, adapt(db)
	case database.SQLite:
		var db *sqlite.DB
		db, err = sqlite.Open(ctx, url, s.pool, s.log)
		st.connection, st.tables = db, adapt(db)
	case database.MySQL:
		var db *mysql.DB
		if db, err = mysql.Open(ctx, url, s.pool, s.log); err != nil {
			err = exit.UsageError(err) // it connects later, so the URL is wrong
		}
		st.connection, st.tables = db, adapt(db)
	}
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", url, err)
	}
	s.open[url.Raw()] = st
	return st, nil
}

func (s *stores) close() {
	for _, st := range s.open {
		if err := st.Close(); err != nil {
			s.log.Warn("database cannot be closed", "database", st.url.String(), "error", err)
		}
	}
}

// adapter is an open database with the types of one adapter.
type adapter[F feed.Source, Q querySource, S streamDatabase, P popupTables] interface {
	connection
	Feed(feed.Definition) (F, error)
	Query(query.Definition) (Q, error)
	Stream(*stream.Schema) S
	Popups() P
}

// adapted gives an adapter the interface tables.
type adapted[F feed.Source, Q querySource, S streamDatabase, P popupTables] struct {
	db adapter[F, Q, S, P]
}

// adapt lets Go infer the types of adapted.
func adapt[F feed.Source, Q querySource, S streamDatabase, P popupTables](db adapter[F, Q, S, P]) tables {
	return adapted[F, Q, S, P]{db}
}

func (a adapted[F, Q, S, P]) feed(d feed.Definition) (feed.Source, error)   { return a.db.Feed(d) }
func (a adapted[F, Q, S, P]) query(d query.Definition) (querySource, error) { return a.db.Query(d) }
func (a adapted[F, Q, S, P]) stream(schema *stream.Schema) streamDatabase   { return a.db.Stream(schema) }
func (a adapted[F, Q, S, P]) popups() popupTables                           { return a.db.Popups() }

// streamDatabase is a stream's table and its database.
type streamDatabase interface {
	stream.Sink
	stream.Database
	Close() error
}

// replica is the read replica of the default database.
type replica struct {
	store *store
	reads *standby.Switch
}

// openReplica opens the read replica, if one is configured.
func (a *app) openReplica() error {
	url := a.cfg.Replica.Reveal()
	if url == "" {
		return nil
	}
	st, err := a.stores.get(a.ctx, url)
	if err != nil {
		return err
	}
	st.optional = true
	a.replica = &replica{store: st, reads: standby.New(st.url.String(), database.JudgeReplica, a.log)}
	return nil
}

// watch measures the replica's lag until ctx ends, if its database supports it.
func (r *replica) watch(ctx context.Context) error {
	database, ok := r.store.connection.(interface {
		Lag(context.Context) (lag time.Duration, known bool, err error)
	})
	if ok {
		r.reads.Watch(ctx, database.Lag)
	}
	return nil
}
