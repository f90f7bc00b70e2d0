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

// Limits and name of a database sampler.
const (
	DatabaseTimeout = time.Second // one statement, and one attempt to connect
	DatabaseName    = "spillway-watch"
)

// databaseReader reads one database over one session.
type databaseReader interface {
	// open starts the session and finds out which figures the server has.
	open(ctx context.Context) error
	// read returns the figures, and a notice that says which others are missing and why ("" if none are).
	read(ctx context.Context) (values map[string]float64, notice string, err error)
	// statements returns those that the server ran, of the last reading; none if it does not tell. An error ends the session.
	statements(ctx context.Context) ([]statement, error)
	// close ends the session, if it is open.
	close()
}

// Database returns the sampler of the database at a postgres://, postgresql://, mysql://, mariadb://, redis://, rediss://
// or unix:// (Redis) URL; name is given by the user. The only errors are those of the URL. No error contains a password.
//
// The sampler connects when it first reads, with one session named spillway-watch, which no figure counts. It connects again
// when the session breaks, with a backoff (retryPause). An outage is reported once, by its first error. Figures that the
// server does not have are missing; if a privilege is missing, the sampler says so once.
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
	return nil, errors.New("a SQLite database has no server: watch the process that opens it, " +
		"or write postgres://, mysql:// or redis:// for a server")
}

func databaseSampler(kind, name, detail string, db databaseReader) *Sampler {
	s := &databaseSession{name: name, db: db, noticed: map[string]bool{}}
	return &Sampler{Kind: kind, Subject: name, Detail: detail, Every: SlowEvery, Read: s.read, Close: db.close}
}

// retryPause is the pause after attempts to connect that failed, counted from 1.
func retryPause(failures int) time.Duration {
	return min(SlowEvery<<min(failures-1, 10), 5*time.Second)
}

// databaseSession keeps a reader's session open.
type databaseSession struct {
	name     string
	db       databaseReader
	isOpen   bool
	failure  error     // the first of this outage; nil outside an outage
	attempts int       // to connect that failed in a row
	retryAt  time.Time // of the next attempt to connect
	noticed  map[string]bool
}

func (s *databaseSession) read(ctx context.Context) ([]result.Sample, error) {
	if !s.isOpen {
		if err := s.open(ctx); err != nil {
			return nil, err
		}
	}
	var samples []result.Sample
	var statements []statement
	values, notice, err := s.db.read(ctx)
	if err == nil {
		samples = append(samples, result.Sample{Values: values})
		statements, err = s.db.statements(ctx)
	}
	if err != nil {
		s.isOpen = false // the next reading connects without delay, because the server may have restarted
		s.db.close()
		return samples, s.fail(err)
	}
	for _, one := range statements { // each is a subject, "NAME: TEXT"
		samples = append(samples, result.Sample{Sampler: result.SamplerStatement, Subject: s.name + ": " + one.text, Values: one.values})
	}
	s.failure = nil
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
		s.retryAt = time.Now().Add(retryPause(s.attempts))
		return s.fail(fmt.Errorf("connect: %w", err))
	}
	s.isOpen, s.attempts = true, 0
	return nil
}

// fail returns the error that began the outage. The errors that follow (refused, starting up) are its consequences, and contain
// ports that differ between attempts.
func (s *databaseSession) fail(err error) error {
	if s.failure == nil {
		s.failure = err
	}
	return s.failure
}

// netCounter subtracts what the sampler's own sessions add to a server's counter.
type netCounter struct {
	own      float64 // what they added so far; maintained by the reader
	earlier  float64 // the part of own that earlier sessions added
	figure   float64 // the server's counter in the last reading
	returned float64 // the last result
}

// reopened begins another session.
func (c *netCounter) reopened() { c.earlier = c.own }

// next returns the counter without the sampler's share. If the server counts that share late, the result stands still. It
// falls only if the server's counter falls, which then counts from zero again.
func (c *netCounter) next(figure float64) float64 {
	if figure < c.figure {
		c.own, c.earlier, c.returned = c.own-c.earlier, 0, 0
	}
	c.figure = figure
	c.returned = max(c.returned, figure-c.own)
	return c.returned
}
