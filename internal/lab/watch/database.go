package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"spillway/internal/database"
	"spillway/internal/lab/result"
)

// What a sampler of a database allows itself.
const (
	DatabaseTimeout = time.Second // one statement, and one attempt to connect
	DatabaseName    = "spillway-watch"
)

// databaseReader reads one database over one session.
type databaseReader interface {
	// open starts the session and finds out what the server can tell.
	open(ctx context.Context) error
	// read returns the figures, and what keeps others from being read ("" when nothing does).
	read(ctx context.Context) (values map[string]float64, notice string, err error)
	// close ends the session, open or not.
	close()
}

// Database returns the sampler of the database at a postgres://, postgresql://, mysql://, mariadb://, redis://, rediss://
// or unix:// (Redis) URL; name is what the user calls it. Its only errors are those of the URL, and neither they nor the
// sampler's hold a password.
//
// The sampler connects when it first reads, by one session named spillway-watch that no figure counts, and again after the session
// breaks, at most once in databaseBackoff. All that an outage says is its first error. What the server does not tell is
// left out of the values; where a right is missing, that is said once.
//
// What a reading costs, in microseconds of CPU, beside 50 sessions that do nothing: one a second, when the caches have gone
// cold (by schedstat over 30 s, the idle server's own taken off), and one right behind the other (BenchmarkDatabase).
//
//	            1 Hz: server  this process   at once: server  this process
//	PostgreSQL           440           400               150            48
//	MariaDB              660           545               205            59
//	Redis                160           204                20            18
func Database(name, rawURL string) (*Sampler, error) {
	scheme, rest, _ := strings.Cut(rawURL, ":")
	switch scheme {
	case "redis", "rediss", "unix":
		db, err := newRedis(rawURL)
		if err != nil {
			return nil, err
		}
		return databaseSampler(result.SamplerRedis, name, "Redis at "+db.shown, db), nil
	case "mariadb":
		rawURL = "mysql:" + rest
	}
	url, err := database.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	switch url.Driver {
	case database.Postgres:
		db, err := newPostgres(url)
		if err != nil {
			return nil, err
		}
		return databaseSampler(result.SamplerPostgres, name, "PostgreSQL at "+url.String(), db), nil
	case database.MySQL:
		db, err := newMySQL(url)
		if err != nil {
			return nil, err
		}
		return databaseSampler(result.SamplerMySQL, name, "MySQL or MariaDB at "+url.String(), db), nil
	}
	return nil, errors.New("a SQLite database is a file of the process that opens it: watch that process; " +
		"write postgres://, mysql:// or redis:// for a server")
}

func databaseSampler(kind, name, detail string, db databaseReader) *Sampler {
	s := &databaseSession{db: db, noticed: map[string]bool{}}
	return &Sampler{Kind: kind, Subject: name, Detail: detail, Every: SlowEvery, Read: s.read, Close: db.close}
}

// databaseBackoff says how soon a session is opened again that could not be opened.
func databaseBackoff() database.Backoff {
	return database.Backoff{Base: SlowEvery, Max: 5 * time.Second}
}

// databaseSession keeps a reader's session open.
type databaseSession struct {
	db       databaseReader
	isOpen   bool
	failure  error     // the first of this outage; nil outside one
	attempts int       // to open it that went wrong in a row
	retryAt  time.Time // not before
	noticed  map[string]bool
}

func (s *databaseSession) read(ctx context.Context) ([]result.Sample, error) {
	if !s.isOpen {
		if err := s.open(ctx); err != nil {
			return nil, err
		}
	}
	values, notice, err := s.db.read(ctx)
	if err != nil {
		s.isOpen = false // opened again by the next reading, without delay: the server may just have been restarted
		s.db.close()
		return nil, s.fail(err)
	}
	s.failure = nil
	samples := []result.Sample{{Values: values}}
	if notice != "" && !s.noticed[notice] {
		s.noticed[notice] = true
		samples = append(samples, result.Sample{Error: notice})
	}
	return samples, nil
}

func (s *databaseSession) open(ctx context.Context) error {
	if time.Now().Before(s.retryAt) {
		return s.failure
	}
	if err := s.db.open(ctx); err != nil {
		s.db.close()
		s.attempts++
		s.retryAt = time.Now().Add(databaseBackoff().Delay(s.attempts, func() float64 { return 0 }))
		return s.fail(fmt.Errorf("connect: %w", err))
	}
	s.isOpen, s.attempts = true, 0
	return nil
}

// fail returns the error that began the outage: those that follow it (refused, starting up) are its consequences, and
// hold ports that differ from one attempt to the next.
func (s *databaseSession) fail(err error) error {
	if s.failure == nil {
		s.failure = err
	}
	return s.failure
}

// ownless takes what the sampler's own sessions add to a counter off it.
type ownless struct {
	own    float64 // what they added and the counter may hold; counted by the reader
	before float64 // the part of it that sessions before this one added
	figure float64 // the counter, as read last
	last   float64 // as told last
}

// reopened begins another session.
func (c *ownless) reopened() { c.before = c.own }

// next returns the counter without the sampler's share. Where the server is late in counting that, the counter stands
// still rather than fall; it falls when the server's does, which then counts from zero again.
func (c *ownless) next(figure float64) float64 {
	if figure < c.figure {
		c.own, c.before, c.last = c.own-c.before, 0, 0
	}
	c.figure = figure
	c.last = max(c.last, figure-c.own)
	return c.last
}
