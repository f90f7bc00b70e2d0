package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/mysql"
	"spillway/internal/serve/postgres"
	"spillway/internal/serve/query"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/stream"
)

// store is one open database, whatever its kind.
type store struct {
	url      database.URL
	optional bool      // a replica: the others answer for it while it is down
	needed   bool      // something cannot be served without it
	spooled  bool      // a stream reaches it through the spool
	gate     feed.Gate // leaves one connection to the refreshes
	ping     func(context.Context) error
	probe    func(context.Context) error
	stats    func() database.Stats
	feed     func(feed.Definition) (feed.Source, error)
	query    func(query.Definition) (source query.Source, check func(context.Context) error, err error)
	stream   func(*stream.Schema) streamSink
	popups   func() popupTables
	lag      func(context.Context) (lag time.Duration, known bool, err error) // nil: it cannot be a replica
	close    func()
}

// stores opens each database once, by its URL.
type stores struct {
	pool database.Pool
	log  *slog.Logger
	open map[string]*store
}

// get returns the store at a URL. A database that is down is no error here.
func (s *stores) get(ctx context.Context, text string) (*store, error) {
	url, err := database.Parse(text)
	if err != nil {
		return nil, UsageError{err}
	}
	if st, ok := s.open[url.Raw()]; ok {
		return st, nil
	}
	var st *store
	switch url.Driver {
	case database.Postgres:
		st, err = openPostgres(ctx, url, s.pool, s.log)
	case database.SQLite:
		st, err = openSQLite(ctx, url, s.pool, s.log)
	case database.MySQL:
		st, err = openMySQL(ctx, url, s.pool, s.log)
	}
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", url, err)
	}
	st.url, st.gate = url, feed.NewGate(s.pool.Max)
	s.open[url.Raw()] = st
	return st, nil
}

func (s *stores) close() {
	for _, st := range s.open {
		st.close()
	}
}

func openPostgres(ctx context.Context, url database.URL, pool database.Pool, log *slog.Logger) (*store, error) {
	db, err := postgres.Open(ctx, url, pool, log)
	if err != nil {
		return nil, err
	}
	return &store{
		ping: db.Ping, probe: db.Probe, stats: db.Stats, lag: db.Lag, close: db.Close,
		popups: func() popupTables { return db.Popups() },
		feed:   func(d feed.Definition) (feed.Source, error) { return db.Feed(d) },
		stream: func(schema *stream.Schema) streamSink {
			sink := db.Stream(schema)
			return streamSink{sink, func(ctx context.Context) error {
				if err := sink.Check(ctx); err != nil {
					return err
				}
				return sink.CheckPrivileges(ctx)
			}, func() {}}
		},
		query: func(d query.Definition) (query.Source, func(context.Context) error, error) {
			q, err := db.Query(d)
			if err != nil {
				return nil, nil, err
			}
			return q, q.Check, nil
		},
	}, nil
}

func openMySQL(ctx context.Context, url database.URL, pool database.Pool, log *slog.Logger) (*store, error) {
	db, err := mysql.Open(ctx, url, pool, log)
	if err != nil {
		return nil, UsageError{err} // it connects later: only the URL can be wrong
	}
	return &store{
		ping: db.Ping, probe: db.Probe, stats: db.Stats, lag: db.Lag,
		close: func() {
			if err := db.Close(); err != nil {
				log.Warn("database cannot be closed", "database", url.String(), "error", err)
			}
		},
		popups: func() popupTables { return db.Popups() },
		feed:   func(d feed.Definition) (feed.Source, error) { return db.Feed(d) },
		stream: func(schema *stream.Schema) streamSink {
			sink := db.Stream(schema)
			return streamSink{sink, sink.Check, func() {}}
		},
		query: func(d query.Definition) (query.Source, func(context.Context) error, error) {
			q, err := db.Query(d)
			if err != nil {
				return nil, nil, err
			}
			return q, q.Check, nil
		},
	}, nil
}

func openSQLite(ctx context.Context, url database.URL, pool database.Pool, log *slog.Logger) (*store, error) {
	db, err := sqlite.Open(ctx, url, pool, log)
	if err != nil {
		return nil, err
	}
	return &store{
		ping: db.Ping, probe: db.Probe, stats: db.Stats,
		close: func() {
			if err := db.Close(); err != nil {
				log.Warn("database cannot be closed", "database", url.String(), "error", err)
			}
		},
		popups: func() popupTables { return db.Popups() },
		feed:   func(d feed.Definition) (feed.Source, error) { return db.Feed(d) },
		stream: func(schema *stream.Schema) streamSink {
			sink := db.Stream(schema)
			return streamSink{sink, sink.Check, func() {
				if err := sink.Close(); err != nil {
					log.Warn("stream cannot be closed", "error", err)
				}
			}}
		},
		query: func(d query.Definition) (query.Source, func(context.Context) error, error) {
			q, err := db.Query(d)
			if err != nil {
				return nil, nil, err
			}
			return q, q.Check, nil
		},
	}, nil
}
