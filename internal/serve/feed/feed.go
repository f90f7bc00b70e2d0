// Package feed serves the newest rows of a SELECT, page by page, at a rate that does not
// depend on the database.
//
// One window per feed, and per value of its parameters, holds the newest rows. Each row is
// encoded once, in an immutable snapshot behind an atomic pointer. While requests arrive,
// one statement per refresh interval reads the whole window, so that late commits, updates
// and deletes are correct within one refresh. Without requests nothing is read, and the
// next request waits for one refresh. Pages beyond the window are read by key, never with
// an O(offset) scan, and identical requests share one statement.
//
// Failures:
//
//   - While the database is down, the last snapshot is served with its age, up to
//     Config.StaleMax. Then Page returns ErrUnavailable until a refresh succeeds.
//   - If the database is slow, refreshes use at most half of one connection's time, and
//     requests wait at most Config.Timeout. If Config.WaitersMax requests wait, others get
//     ErrBusy.
//   - If there are too many values of the parameters, the least recently used window is
//     dropped.
//
// The package contains no SQL and no HTTP: a Source reads rows, and package server answers
// requests.
package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/coalesce"
)

// Config is a feed's configuration. All fields but CursorMax are required; package config
// has the defaults.
type Config struct {
	Definition
	Window     int           // newest rows kept in memory
	Refresh    time.Duration // from the start of one refresh to the next, while there are requests
	IdleAfter  time.Duration // time without requests after which refreshes stop
	StaleMax   time.Duration // the oldest window served
	Timeout    time.Duration // longest wait of a request
	Limit      int           // rows per page by default
	LimitMax   int           // rows per page at most
	OffsetMax  int           // the largest offset
	WaitersMax int           // requests waiting at once
	WindowsMax int           // windows kept at once
	CursorMax  int           // characters of a page's Next, up to CursorMax; 0: CursorMax
	SweepShare float64       // share of one connection's time spent counting rows again
	Gate       Gate          // bounds statements for older pages; shared by feeds of one database
	Log        *slog.Logger
}

// Errors of Page. Others are the database's.
var (
	// ErrUnavailable means that the window is older than StaleMax or was never read. Retry
	// later.
	ErrUnavailable = errors.New("the database does not answer, and the window is too old")
	// ErrBusy means that too many requests wait, or that the database is slow. Retry later.
	ErrBusy = errors.New("too many requests wait for the database")
	// ErrCounting means that the rows up to a deep offset are being counted for the first
	// time. Its text says how many were counted. Retry later.
	ErrCounting = errors.New("rows up to this offset are being counted")
	// ErrRequest means that the request is wrong. Its text says how.
	ErrRequest = errors.New("bad request")
)

// Feed is one feed. Use Open. Its methods may be called concurrently.
type Feed struct {
	cfg         Config
	source      Source
	fingerprint uint32
	pages       *coalesce.Group[*pageRead]

	base context.Context // the feed's lifetime
	stop context.CancelFunc
	done sync.WaitGroup

	windows  atomic.Pointer[map[string]*window] // copied on change; read without a lock
	mu       sync.Mutex                         // guards changes of windows
	waiting  atomic.Int64                       // requests waiting for a refresh or the sweeper
	counters counters
}

// Open returns a feed that reads from source. It does not use the database yet. The owner
// must call Close.
func Open(cfg Config, source Source) *Feed {
	cfg.CursorMax = cmp.Or(cfg.CursorMax, CursorMax)
	f := &Feed{
		cfg:         cfg,
		source:      source,
		fingerprint: cfg.fingerprint(),
		pages:       coalesce.New[*pageRead](cfg.WaitersMax),
	}
	f.base, f.stop = context.WithCancel(context.Background())
	f.windows.Store(&map[string]*window{})
	return f
}

// Close ends all refreshes and waits for them. Waiting requests get an error.
func (f *Feed) Close() {
	f.mu.Lock() // no window starts after this
	f.stop()
	f.mu.Unlock()
	f.pages.Close()
	f.done.Wait()
}

// Name returns the feed's name.
func (f *Feed) Name() string { return f.cfg.Name }

// Params returns the feed's parameters.
func (f *Feed) Params() []Param { return f.cfg.Params }

// Limits returns the default and largest page size and the largest offset.
func (f *Feed) Limits() (limit, limitMax, offsetMax int) {
	return f.cfg.Limit, f.cfg.LimitMax, f.cfg.OffsetMax
}

// Check has the database explain the feed's statements. See Source.Check.
func (f *Feed) Check(ctx context.Context) error {
	return f.source.Check(ctx, f.cfg.Window)
}

// Warm reads the window of a feed without parameters, so that the first request finds it.
// It does nothing for a feed with parameters.
func (f *Feed) Warm(ctx context.Context) error {
	if len(f.cfg.Params) > 0 {
		return nil
	}
	w, err := f.window(nil, time.Now())
	if err != nil {
		return err
	}
	if _, err := w.await(ctx); err != nil {
		return fmt.Errorf("feed %s: %w", f.cfg.Name, err)
	}
	return nil
}

// Ready returns why the feed is not ready: a window in use is older than StaleMax or was
// never read. It returns nil for an idle feed.
func (f *Feed) Ready(now time.Time) error {
	for _, w := range *f.windows.Load() {
		if err := w.ready(now); err != nil {
			return err
		}
	}
	return nil
}

// window returns the window for args, creating it if necessary.
func (f *Feed) window(args []string, now time.Time) (*window, error) {
	var room [128]byte // most parameter values fit, so that a hit allocates nothing
	name := appendArgs(room[:0], args)
	if w, ok := (*f.windows.Load())[string(name)]; ok {
		return w, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.base.Err() != nil {
		return nil, ErrUnavailable
	}
	old := *f.windows.Load()
	if w, ok := old[string(name)]; ok {
		return w, nil
	}
	fresh := make(map[string]*window, len(old)+1)
	for k, w := range old {
		fresh[k] = w
	}
	if len(fresh) >= f.cfg.WindowsMax {
		f.evictLocked(fresh)
	}
	w := newWindow(f, args, now)
	fresh[string(name)] = w
	f.windows.Store(&fresh)
	f.done.Go(w.run)
	return w, nil
}

// evictLocked removes the least recently used window from windows and stops it.
func (f *Feed) evictLocked(windows map[string]*window) {
	var oldest string
	var w *window
	for k, c := range windows {
		if w == nil || c.asked.Load() < w.asked.Load() {
			oldest, w = k, c
		}
	}
	delete(windows, oldest)
	w.stop()
	f.counters.evictions.Add(1)
}

// Gate limits concurrent statements for older pages and counts, so that one connection is
// left for refreshes. Feeds of one database share a gate.
type Gate chan struct{}

// NewGate returns a gate for a pool of that many connections: one fewer, at least one.
func NewGate(connections int) Gate { return make(Gate, max(connections-1, 1)) }

// enter waits for a free place until ctx ends. The caller must call leave.
func (g Gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a free connection: %w", ctx.Err())
	}
}

func (g Gate) leave() { <-g }
