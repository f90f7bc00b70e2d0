// Package query answers configured SELECTs with named, typed parameters. It coalesces
// concurrent requests and can cache their answers.
//
// Concurrent requests with equal arguments share one execution. It is cancelled in the
// database when the last of them has left. With a TTL, answers are cached in memory,
// bounded in bytes, and optionally in a cache that replicas share. After its TTL an answer
// is served for Config.Stale more while one execution renews it; failed renewals are
// retried with growing pauses. After that, requests wait for the execution. One process
// never runs two executions for the same arguments at the same time: a request that arrives
// after a cancellation waits until it has ended. With a shared cache, one replica executes
// while the others wait for its answer. If it fails, another one is next.
//
// Requests on event loops can wait there (Begin), for a query that is not cached and whose
// source is a feed.LoopReader. What holds for a process then holds for a loop: several loops
// may execute the same arguments at once, and an execution is no longer waited for when it has
// been given up.
//
// Failures:
//
//   - While the database is down or slow, answers younger than TTL plus Stale are served.
//     Other requests get the database's error, or ErrBusy after Config.Timeout. An execution
//     that is predicted to end later than that is refused at once, with ErrBusy.
//   - If a result is too large, requests get feed.ErrTooLarge, and nothing is cached.
//   - If the shared cache is down, the database is used directly, and the error is counted.
//
// The package contains no SQL and no HTTP: a feed.Reader runs the statement, and package
// server answers requests.
package query

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"spillway/internal/serve/coalesce"
	"spillway/internal/serve/compress"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

// Config is a query's configuration. All fields except the last five are required; package
// config has the defaults.
type Config struct {
	feed.Definition
	Limit      feed.Limit
	Timeout    time.Duration // longest wait of a request
	TTL        time.Duration // an answer is fresh for this long after its execution; 0: it is not cached
	Stale      time.Duration // and served for this much longer while it is renewed
	CacheBytes int           // memory of cached answers
	WaitersMax int           // requests waiting at once
	Log        *slog.Logger
	Gate       *queue.Entrance // bounds executions on the database; nil: open
	Logins     func() uint64   // counts the changes of the database's user, whose answers are not another's; nil: there are none
	Shared     *Shared         // nil: answers are cached in memory only
	Prefix     string          // with Shared: of all its keys
	Database   func() string   // with Shared: identifies the database and its user; "": not known, so that Shared is not used
}

// Errors of Ask. Others are the database's.
var (
	// ErrRequest means that the request is wrong. Its text says how.
	ErrRequest = errors.New("bad request")
	// ErrBusy means that too many requests wait, or that the database is slow. Retry later:
	// if the error also is a *queue.Overload, after its RetryAfter.
	ErrBusy = errors.New("too many requests wait for the database")
)

// From is the origin of an answer.
type From uint8

// The origins of an answer.
const (
	FromDatabase From = iota // an execution for this or another request
	FromMemory               // cached in this process
	FromShared               // cached by another replica
)

// Answer is the rows of one execution. It is shared and must not be changed.
type Answer struct {
	Data   []byte    // the rows as JSON objects, commas between them
	Rows   int       // how many
	ReadAt time.Time // start of the execution; the rows are no older
	CameAt time.Time // end of the execution; the TTL starts here
	Tag    uint64    // a hash of Data, equal on every replica for equal content

	Forms compress.Forms // the response's body compressed

	from    From          // origin in this process
	took    time.Duration // of the statement; 0: another replica has run it
	renewal renewal
}

// Query is one query. Use Open. Its methods may be called concurrently.
type Query struct {
	cfg    Config
	source feed.Reader
	lanes  feed.Lanes[*Answer] // without a Reader if source cannot read in event loops
	group  *coalesce.Group[*Answer]
	cache  *cache        // nil: nothing is cached
	logins atomic.Uint64 // of the cached answers

	base       context.Context // the query's lifetime
	stop       context.CancelFunc
	renewals   sync.WaitGroup
	renewalLog LogLimit
	sharedLog  LogLimit
	counters   counters
	pauses     feed.Pauses
}

// Open returns a query that runs on source. It does not use the database yet. The owner must
// call Close.
func Open(cfg Config, source feed.Reader) *Query {
	q := &Query{cfg: cfg, source: source}
	q.group = coalesce.New[*Answer](coalesce.Limits{Callers: cfg.WaitersMax})
	if cfg.TTL > 0 {
		q.cache = newCache(cfg.CacheBytes)
	}
	q.base, q.stop = context.WithCancel(context.Background())
	q.lanes = feed.Lanes[*Answer]{
		Group: q.group, Base: q.base, Reads: &q.renewals, Timeout: cfg.Timeout, Limit: cfg.Limit, Gate: cfg.Gate,
		Call: q.sharing, Ended: q.ended, Size: func(a *Answer) int { return len(a.Data) },
	}
	q.lanes.Reader, _ = source.(feed.LoopReader)
	return q
}

// Close cancels all executions whose requests do not wait any more, and waits for all.
func (q *Query) Close() {
	q.stop()
	q.group.Close()
	q.renewals.Wait()
	if q.cache != nil {
		q.cache.clear()
	}
}

// Name returns the query's name.
func (q *Query) Name() string { return q.cfg.Name }

// Caches reports whether answers are cached.
func (q *Query) Caches() bool { return q.cache != nil }

// Timeout returns the longest wait of a request.
func (q *Query) Timeout() time.Duration { return q.cfg.Timeout }

// Params returns the query's parameters.
func (q *Query) Params() []param.Param { return q.cfg.Params }

// Now returns the cached answer for args if it may be served at now and has at most bytes bytes. It does not wait and allocates
// nothing. Otherwise nothing is counted, and Ask will tell.
func (q *Query) Now(now time.Time, args []string, bytes int) (a *Answer, ok bool) {
	if q.cache == nil {
		return nil, false
	}
	q.forget(q.userNow())
	var room [128]byte // most parameter values fit
	name := param.AppendArgs(room[:0], args)
	if a = q.cache.get(name); a == nil || len(a.Data) > bytes {
		return nil, false
	}
	switch age := now.Sub(a.CameAt); {
	case age < q.cfg.TTL:
		q.counters.hits.Add(1)
		return a, true
	case age < q.cfg.TTL+q.cfg.Stale:
		q.counters.stale.Add(1)
		q.renew(now, a, name, args)
		return a, true
	}
	return nil, false
}

// Ask answers a request. args are the arguments of the parameters in their order, as
// param.Argument returns them, and now is the request's time. Errors wrap ErrRequest, ErrBusy
// or feed.ErrTooLarge. Others are the database's, or ctx's if the caller has left.
func (q *Query) Ask(ctx context.Context, now time.Time, args []string) (*Answer, From, error) {
	if len(args) != len(q.cfg.Params) {
		return nil, 0, fmt.Errorf("%w: %d parameters where the query has %d", ErrRequest, len(args), len(q.cfg.Params))
	}
	if a, ok := q.Now(now, args, math.MaxInt); ok {
		return a, FromMemory, nil
	}
	name := param.AppendArgs(nil, args)
	if end, limited := ctx.Deadline(); !limited || time.Until(end) > q.cfg.Timeout {
		limited, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
		defer cancel()
		ctx = limited
	}
	a, _, err := q.group.Do(ctx, string(name), q.sharing(ctx, string(name), feed.Range{Args: param.CloneArgs(args)}))
	return q.Answered(a, err)
}

// Answered counts what a Wait has as its answer, and returns what Ask would.
func (q *Query) Answered(a *Answer, err error) (*Answer, From, error) {
	if err != nil {
		q.counters.refused.Add(1)
		return nil, 0, busy(err)
	}
	q.counters.misses.Add(1)
	return a, a.from, nil
}

// busy returns err, as ErrBusy if the request may be repeated later.
func busy(err error) error {
	if errors.Is(err, coalesce.ErrFull) || errors.Is(err, queue.ErrOverloaded) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// sharing returns the execution that requests with equal arguments share.
func (q *Query) sharing(_ context.Context, name string, r feed.Range) func(context.Context) (*Answer, error) {
	return func(ctx context.Context) (*Answer, error) {
		// Another execution may have ended since the caller looked.
		if q.cache != nil {
			if a := q.cache.get([]byte(name)); a != nil && time.Since(a.CameAt) < q.cfg.TTL {
				return a, nil
			}
		}
		if q.pauses.Has(name) {
			return nil, feed.ErrPaused
		}
		logins := q.userNow()
		a, err := q.fetch(ctx, name, r.Args)
		if err == nil && q.cache != nil {
			q.cache.put(name, a)
			if q.userNow() != logins { // it may be the last user's
				q.cache.clear()
			}
		}
		return a, err
	}
}

// Wait is a request that waits in an event loop for an execution.
type Wait = feed.LoopWait[*Answer]

// Begin has a request wait for an execution in its event loop. Then later is answered, and the Answer of w follows. It returns false if
// Ask must be called instead; then nothing has happened.
func (q *Query) Begin(loop *front.Loop, w *Wait, later *front.Later, args []string) bool {
	if !q.InLoops() || loop == nil || len(args) != len(q.cfg.Params) {
		return false
	}
	var room [128]byte // most parameter values fit
	name := param.AppendArgs(room[:0], args)
	if q.pauses.Has(string(name)) || !q.lanes.Fits() {
		return false
	}
	q.lanes.Begin(loop, w, later, "", name, args, feed.Range{})
	return true
}

// InLoops reports whether Begin may have requests wait.
func (q *Query) InLoops() bool { return q.lanes.Reader != nil && q.cache == nil }

// ended counts an execution in an event loop, and returns its answer.
func (q *Query) ended(r *feed.LoopRead, began, now time.Time, err error) (*Answer, error) {
	q.counters.executed(r.Took, err)
	if err != nil {
		return nil, err
	}
	return newAnswer(r.Rows.Data, r.Rows.Len(), began, now, FromDatabase), nil
}

// userNow counts the changes of the database's user until now.
func (q *Query) userNow() uint64 {
	if q.cfg.Logins == nil {
		return 0
	}
	return q.cfg.Logins()
}

// forget drops the cached answers of another user.
func (q *Query) forget(logins uint64) {
	if q.logins.Load() != logins && q.logins.Swap(logins) != logins {
		q.cache.clear()
	}
}

// execute runs the statement, once the gate lets it.
func (q *Query) execute(ctx context.Context, args []string) (*Answer, error) {
	leave, err := q.cfg.Gate.Enter(ctx, q.cfg.Timeout)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", q.cfg.Name, err)
	}
	defer leave()
	begin := time.Now()
	rows := feed.Rows{Limit: q.cfg.Limit}
	err = q.source.Read(ctx, feed.Range{Args: args}, &rows)
	end := time.Now()
	q.counters.executed(end.Sub(begin), err)
	if q.cfg.Shared == nil {
		q.group.Took(end.Sub(begin), err)
	}
	if err != nil {
		return nil, err
	}
	readAt := begin
	if !rows.ReadAt.IsZero() {
		readAt = rows.ReadAt
	}
	a := newAnswer(rows.Data, rows.Len(), readAt, end, FromDatabase)
	a.took = end.Sub(begin)
	return a, nil
}

// newAnswer returns an answer with so many rows in data.
func newAnswer(data []byte, rows int, readAt, cameAt time.Time, from From) *Answer {
	return &Answer{Data: data, Rows: rows, ReadAt: readAt, CameAt: cameAt, Tag: xxhash.Sum64(data), from: from}
}
