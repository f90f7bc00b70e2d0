package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/mysql"
	"spillway/internal/serve/postgres"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/standby"
	"spillway/internal/serve/stream"
)

// store is one open database.
type store struct {
	connection
	tables
	url       database.URL
	gate      *queue.Gate         // leaves one connection to the refreshes of feeds
	refreshes *queue.Gate         // leaves one connection of the refreshes of many windows
	starts    *semaphore.Weighted // parts that are starting: half of the connections check them, so that one that hangs leaves some
	identity  identity

	answer  atomic.Pointer[error] // to the last probe: why it failed, if it did; nil before it, and if nothing reads it
	unwatch func()                // ends the probes; nil: there are none; guarded by stores.mu
}

// connection is a database's pool.
type connection interface {
	Ping(context.Context) error
	Probe(context.Context) error
	Identity(context.Context) (string, error)
	Logins() uint64
	Stats() database.Stats
	Close() error
}

// tables creates the engines' sources and sinks in a database.
type tables struct {
	source func(feed.Definition) (feed.Source, error)
	stream func(*stream.Schema) streamDatabase
	popups func() popupTables
}

// tablesOf returns the tables of an adapter, which has types of its own.
func tablesOf[S streamDatabase, P popupTables](
	source func(feed.Definition) (feed.Source, error), newStream func(*stream.Schema) S, popups func() P,
) tables {
	return tables{source, func(schema *stream.Schema) streamDatabase { return newStream(schema) }, func() popupTables { return popups() }}
}

// stores opens each database once, by its address.
type stores struct {
	pool database.Pool
	log  *slog.Logger

	mu   sync.Mutex
	open map[config.Address]*store
}

// get returns the store at an address. It sends nothing to the database.
func (s *stores) get(ctx context.Context, address config.Address) (*store, error) {
	url, err := database.ParseAgain(address.Read)
	if err != nil {
		return nil, exit.UsageError(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st, ok := s.open[address]; ok {
		return st, nil
	}
	st := &store{url: url, gate: queue.NewGate(s.pool.Max), starts: semaphore.NewWeighted(int64(max(1, s.pool.Max/2)))}
	st.refreshes = queue.NewGate(s.pool.Max)
	if st.connection, st.tables, err = openDatabase(ctx, url, s.pool, s.log); err != nil {
		return nil, fmt.Errorf("database %s: %w", url, err)
	}
	s.open[address] = st
	return st, nil
}

// openDatabase opens a database, and sends nothing to it.
func openDatabase(ctx context.Context, url database.URL, pool database.Pool, log *slog.Logger) (connection, tables, error) {
	switch url.Driver {
	case database.SQLite:
		db, err := sqlite.New(url, pool, log)
		return db, tablesOf(db.Source, db.Stream, db.Popups), err
	case database.MySQL:
		db, err := mysql.Open(ctx, url, pool, log)
		return db, tablesOf(db.Source, db.Stream, db.Popups), exit.UsageError(err) // it connects later, so the URL is wrong
	}
	db, err := postgres.Open(ctx, url, pool, log)
	return db, tablesOf(db.Source, db.Stream, db.Popups), err
}

// retain closes the databases that are not in use.
func (s *stores) retain(used map[*store]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, st := range s.open {
		if used[st] {
			continue
		}
		delete(s.open, name)
		if st.unwatch != nil {
			st.unwatch()
		}
		if err := st.Close(); err != nil {
			s.log.Warn("database cannot be closed", "database", st.url.String(), "error", err)
		}
	}
}

// streamDatabase is a stream's table and its database.
type streamDatabase interface {
	stream.Sink
	stream.Database
	Close() error
}

// replica is the read replica of the default database.
type replica struct {
	store    *store
	reads    *standby.Switch
	primary  standby.Primary
	replayed standby.Replica
}

// openReplica opens the read replica, if one is configured.
func (a *app) openReplica() error {
	if a.cfg.Replica == "" {
		return nil
	}
	st, err := a.stores.get(a.ctx, a.cfg.Replica)
	if err != nil {
		return err
	}
	st.gate = a.defaultStore.gate // what reads from one of the two passes one gate
	primary, isPrimary := a.defaultStore.connection.(standby.Primary)
	replayed, isReplica := st.connection.(standby.Replica)
	if !isPrimary || !isReplica || a.defaultStore.url.Driver != st.url.Driver {
		return exit.UsageError(fmt.Errorf("replica: %s is no replica of %s; both must be PostgreSQL, or both MySQL or MariaDB", st.url,
			a.defaultStore.url))
	}
	reads := standby.New(st.url.String(), a.cfg.ReplicaLagMax, database.JudgeReplica, a.log)
	a.replica = &replica{store: st, reads: reads, primary: primary, replayed: replayed}
	return nil
}

// identifyEvery is the time between two requests for the identity of a database that answers.
const identifyEvery = 10 * time.Second

// identity is what is known of the database of a store whose answers replicas share: its address
// alone could be that of another server for another replica.
type identity struct {
	wanted atomic.Bool            // a query has cache: redis
	known  atomic.Pointer[answer] // what the server said last; nil: nothing yet
	asked  time.Time              // of watch
	quiet  failureLog             // of watch
}

// answer is what the server said to the connections of one login.
type answer struct {
	text   string
	logins uint64
}

// shared identifies the database and its user for caches that replicas share; "" while the server
// has not said who it is to the present user. It still is the same database while it does not answer.
func (st *store) shared() string {
	if known := st.identity.known.Load(); known != nil && known.logins == st.Logins() {
		return st.url.Identity() + " " + st.url.Here() + " is " + known.text
	}
	return ""
}

// identify asks the database who it is, if that is wanted and due.
func (st *store) identify(ctx context.Context, log *slog.Logger) {
	now := time.Now()
	i, logins := &st.identity, st.Logins()
	changed := i.known.Load() != nil && i.known.Load().logins != logins
	if !i.wanted.Load() || now.Sub(i.asked) < identifyEvery && !changed {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	known, err := st.Identity(ctx)
	if err != nil {
		if i.known.Load() == nil && ctx.Err() == nil && i.quiet.due(err, now) {
			log.Warn("answers are not shared through Redis, because the database does not say which one it is; redis_prefix can", "error", err)
		}
		return
	}
	i.known.Store(&answer{known, logins})
	i.asked = now
}
