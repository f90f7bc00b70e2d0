// Package query answers configured SELECTs with named, typed parameters, and
// keeps a crowd that asks the same from asking the database as often.
//
// Requests with equal arguments that wait at the same time share one execution,
// which is cancelled in the database when the last of them has left. Where a TTL
// is set, answers are kept for that long in memory, bounded in bytes, and
// optionally in a cache that replicas share. An answer that has been good for
// longer than its TTL is served for Config.Stale more while one execution renews it,
// with growing pauses after those that fail; after
// that requests wait for the one execution. At no time are there two executions
// for the same arguments in one process: who comes when one has just been cancelled waits
// until it has ended. With a shared cache one replica asks while the others wait
// for its answer; when it fails, one of them is next.
//
// What fails and what then:
//
//   - The database is down or slow: what is younger than TTL plus Stale is served;
//     other requests get the database's error, or ErrBusy after Config.Timeout.
//   - A result is too large: ErrTooLarge; nothing of it is kept.
//   - The shared cache is down: the database is asked as if there were none, and
//     that is counted.
//
// The package holds no SQL and no HTTP: a Source runs the statement, package
// server answers requests.
package query

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"spillway/internal/serve/coalesce"
	"spillway/internal/serve/param"
)

// Config is a query's configuration. All fields are needed but the last two;
// package config holds the defaults.
type Config struct {
	Definition
	Limit      Limit
	Timeout    time.Duration // a request waits at most so long
	TTL        time.Duration // an answer is good for so long from when it came; 0: nothing is kept
	Stale      time.Duration // and may be served so much longer while it is renewed
	CacheBytes int           // memory of kept answers
	WaitersMax int           // requests that wait at once
	Log        *slog.Logger
	Shared     *Shared // nil: answers are kept in memory only
	Database   string  // with Shared: tells the database from others, without a password
}

// Errors of Ask. Others are the database's.
var (
	// ErrRequest: the request is wrong; its text says how.
	ErrRequest = errors.New("bad request")
	// ErrBusy: too many requests wait, or the answer takes too long. Retry later.
	ErrBusy = errors.New("too many requests wait for the database")
	// ErrTooLarge: the statement gives more than Config.Limit.
	ErrTooLarge = errors.New("the result is too large")
)

func tooLarge(name string, limit int, unit string) error {
	return fmt.Errorf("%w: more than %d %s (%s)", ErrTooLarge, limit, unit, name)
}

// From says where an answer comes from.
type From uint8

// The origins of an answer.
const (
	FromDatabase From = iota // an execution, one's own or another request's
	FromMemory               // kept in this process
	FromShared               // kept by another replica
)

// Answer is the rows of one execution. It is shared and must not be changed.
type Answer struct {
	Data   []byte    // the rows as JSON objects, commas between them
	Rows   int       // how many
	ReadAt time.Time // when the execution began: the rows are no older
	CameAt time.Time // when it ended: the TTL counts from here
	Tag    uint64    // a hash of Data, equal on every replica for equal content

	from    From // where this process has it from
	renewal renewal
}

// Query is one query. Use Open. Its methods may be called concurrently.
type Query struct {
	cfg    Config
	source Source
	group  *coalesce.Group[*Answer]
	cache  *cache // nil when nothing is kept

	shareKey string // begins the names of this query's answers in Shared

	base             context.Context // the query's lifetime
	stop             context.CancelFunc
	renewals         sync.WaitGroup
	complaints       Complaints // of renewals
	sharedComplaints Complaints
	counters         counters
}

// Open returns a query that runs on source. It asks the database nothing. The
// owner must call Close.
func Open(cfg Config, source Source) *Query {
	q := &Query{cfg: cfg, source: source, group: coalesce.New[*Answer](cfg.WaitersMax), shareKey: shareKey(&cfg)}
	if cfg.TTL > 0 {
		q.cache = newCache(cfg.CacheBytes)
	}
	q.base, q.stop = context.WithCancel(context.Background())
	return q
}

// Close cancels what runs and waits for it.
func (q *Query) Close() {
	q.stop()
	q.group.Close()
	q.renewals.Wait()
}

// Name returns the query's name.
func (q *Query) Name() string { return q.cfg.Name }

// Params returns the query's parameters.
func (q *Query) Params() []param.Param { return q.cfg.Params }

// ParseParam checks a request's text for p and returns its canonical form. Errors
// wrap ErrRequest and name the parameter.
func ParseParam(p param.Param, text string) (string, error) {
	canonical, err := param.Parse(p, text)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return canonical, nil
}

// Kept returns the answer that is kept for args and good enough at now, nil where
// there is none. It does not wait and allocates nothing.
func (q *Query) Kept(now time.Time, args []string) *Answer {
	if q.cache == nil {
		return nil
	}
	var room [128]byte // most parameter values fit
	name := appendArgs(room[:0], args)
	a := q.cache.get(name)
	if a == nil {
		return nil
	}
	switch age := now.Sub(a.CameAt); {
	case age < q.cfg.TTL:
		q.counters.hits.Add(1)
		return a
	case age < q.cfg.TTL+q.cfg.Stale:
		q.counters.stale.Add(1)
		q.renew(now, a, name, args)
		return a
	}
	return nil
}

// Ask answers a request with the canonical texts of the parameters, in their
// order. now is the request's time. Errors wrap ErrRequest, ErrBusy or
// ErrTooLarge; others are the database's, or ctx's when the caller left.
func (q *Query) Ask(ctx context.Context, now time.Time, args []string) (*Answer, From, error) {
	if len(args) != len(q.cfg.Params) {
		return nil, 0, fmt.Errorf("%w: %d parameters where the query has %d", ErrRequest, len(args), len(q.cfg.Params))
	}
	if a := q.Kept(now, args); a != nil {
		return a, FromMemory, nil
	}
	name := appendArgs(nil, args)
	ctx, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
	defer cancel()
	a, err := q.share(ctx, string(name), clone(args))
	if err != nil {
		q.counters.refused.Add(1)
		return nil, 0, err
	}
	q.counters.misses.Add(1)
	return a, a.from, nil
}

// clone copies args, which may be the request's own memory: an execution may
// outlive the request that began it.
func clone(args []string) []string {
	own := make([]string, len(args))
	for i, arg := range args {
		own[i] = strings.Clone(arg)
	}
	return own
}

// share returns the answer of the one execution for args.
func (q *Query) share(ctx context.Context, name string, args []string) (*Answer, error) {
	a, _, err := q.group.Do(ctx, name, func(ctx context.Context) (*Answer, error) {
		// Another execution may have ended since the caller looked.
		if q.cache != nil {
			if a := q.cache.get([]byte(name)); a != nil && time.Since(a.CameAt) < q.cfg.TTL {
				return a, nil
			}
		}
		a, err := q.fetch(ctx, name, args)
		if err == nil && q.cache != nil {
			q.cache.put(name, a)
		}
		return a, err
	})
	if errors.Is(err, coalesce.ErrFull) || errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return a, err
}

// execute asks the database.
func (q *Query) execute(ctx context.Context, args []string) (*Answer, error) {
	begin := time.Now()
	var rows Rows
	err := q.source.Run(ctx, args, q.cfg.Limit, &rows)
	end := time.Now()
	q.counters.executed(end.Sub(begin), err)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", q.cfg.Name, err)
	}
	return newAnswer(rows, begin, end, FromDatabase), nil
}

func newAnswer(rows Rows, readAt, cameAt time.Time, from From) *Answer {
	return &Answer{Data: rows.Data, Rows: rows.Count, ReadAt: readAt, CameAt: cameAt, Tag: xxhash.Sum64(rows.Data), from: from}
}

// appendArgs appends a name that differs wherever args differ.
func appendArgs(dst []byte, args []string) []byte {
	for _, arg := range args {
		dst = append(dst, byte(len(arg)>>8), byte(len(arg)))
		dst = append(dst, arg...)
	}
	return dst
}
