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
//   - If the database is slow, the refreshes of a window use at most half of one connection's
//     time; those that fail are retried after at most a second. Requests wait at most
//     Config.Timeout. If Config.WaitersMax requests wait for one value of the parameters,
//     others for it get ErrBusy. A value without rows is not read while no request waits for
//     it.
//   - If there are more values of the parameters than Config.WindowsMax, or than fit in
//     Config.WindowsBytes, those that are asked for most have a window (see admission). The
//     pages of the others are read from the database, and their requests share statements. A
//     window that was not asked for until its rows are older than Config.StaleMax is freed.
//   - A value that the database rejects (param.ErrValue) has no window. A value whose
//     statement fails makes the feed unready only if Config.Down says that the database does
//     not answer.
//
// A Listener follows the first page of a window. A window with listeners is refreshed
// without requests, and is not removed for another value.
//
// The package contains no SQL and no HTTP: a Source reads rows, and package server answers
// requests.
package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/coalesce"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

// Config is a feed's configuration. All fields but CursorMax and Envelope are required;
// package config has the defaults.
type Config struct {
	Definition
	Window     int             // newest rows kept in memory
	Refresh    time.Duration   // from the start of one refresh to the next, while there are requests
	IdleAfter  time.Duration   // time without requests after which refreshes stop
	StaleMax   time.Duration   // the oldest window served
	Timeout    time.Duration   // longest wait of a request
	Limit      int             // rows per page by default
	LimitMax   int             // rows per page at most
	OffsetMax  int             // the largest offset
	WaitersMax int             // requests waiting at once, per value of the parameters
	WindowsMax int             // windows kept at once
	LiveMax    int             // of them, how many may have listeners, if there are parameters; of one user: a quarter
	CursorMax  int             // characters of a page's Next, up to CursorMax; 0: CursorMax
	Envelope   Envelope        // of all answers
	SweepShare float64         // share of one connection's time spent counting rows
	SweepBytes int             // memory of the counts
	Gate       *queue.Entrance // bounds statements for pages and counts, not refreshes; nil: open
	Log        *slog.Logger

	// WindowsBytes is the memory of the windows that are kept; 0: no bound. One window is kept
	// whatever its size, and those that are needed at the moment. While a window is read, its
	// rows are there twice.
	WindowsBytes int64

	// Refreshes bounds the refreshes of windows with parameters, so that they leave a
	// connection for other statements and feeds of one database take turns. Nil: open.
	Refreshes *queue.Entrance
	// ValueCalls is the number of statements for pages of one value of the parameters that
	// run at once. 0: no bound.
	ValueCalls int

	// Down reports whether the database does not answer. Ready asks it about a feed with
	// parameters, because a refresh may have failed due to the value alone. Nil: it always
	// answers.
	Down func() bool
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
	pages       *coalesce.Group[*Rows] // its classes are the values of the parameters
	lanes       Lanes[*Rows]
	sweeps      *budget      // of counting, for all windows
	counted     atomic.Int64 // memory of all counts
	held        atomic.Int64 // memory of all windows
	seed        maphash.Seed // of the values' hashes

	base context.Context // the feed's lifetime
	stop context.CancelFunc
	done sync.WaitGroup

	windows atomic.Pointer[map[string]*window] // copied on change; read without a lock

	mu        sync.Mutex // guards changes of windows and what follows
	admission admission
	large     map[uint64]time.Time // until when values have no window, by their hash, because it would be too large beside others
	retired   uint64               // pages from windows that are gone
	lives     int                  // windows with listeners
	livesOf   map[string]int       // of them, those that each user opened: claims among the values, or an address

	counters counters
	pauses   Pauses
}

// Open returns a feed that reads from source. It does not use the database yet. The owner
// must call Close.
func Open(cfg Config, source Source) *Feed {
	cfg.CursorMax = cmp.Or(cfg.CursorMax, CursorMax)
	f := &Feed{
		cfg:         cfg,
		source:      source,
		fingerprint: cfg.fingerprint(),
		sweeps:      newBudget(cfg.SweepShare, time.Now()),
		seed:        maphash.MakeSeed(),
		livesOf:     make(map[string]int),
		large:       make(map[uint64]time.Time),
		admission:   newAdmission(cfg.WindowsMax, cfg.IdleAfter),
	}
	limits := coalesce.Limits{Callers: cfg.WaitersMax}
	if len(cfg.Params) > 0 {
		limits.Calls = cfg.ValueCalls
	}
	f.pages = coalesce.New[*Rows](limits)
	f.base, f.stop = context.WithCancel(context.Background())
	f.openLanes()
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
func (f *Feed) Params() []param.Param { return f.cfg.Params }

// Limits returns the default and largest page size and the largest offset.
func (f *Feed) Limits() (limit, limitMax, offsetMax int) {
	return f.cfg.Limit, f.cfg.LimitMax, f.cfg.OffsetMax
}

// Check has the database explain the feed's statements. See Source.Check.
func (f *Feed) Check(ctx context.Context) error {
	return f.source.Check(ctx, f.cfg.Window)
}

// Warm reads the window of requests without parameters, so that the first one finds it. It does
// nothing for a feed with a parameter that is not optional.
func (f *Feed) Warm(ctx context.Context) error {
	var args []string
	for _, p := range f.cfg.Params {
		if !p.Optional {
			return nil
		}
		args = append(args, p.Default)
	}
	w, err := f.window(args, time.Now())
	if err != nil {
		return err
	}
	if _, err := w.await(ctx); err != nil {
		return fmt.Errorf("feed %s: %w", f.cfg.Name, err)
	}
	return nil
}

// Ready returns why the feed is not ready: a window in use is older than StaleMax or was
// never read. For a feed with parameters the database must also be down, because a window's
// statement may fail due to a client's value. The error contains no text of the database. An
// idle feed is ready.
func (f *Feed) Ready(now time.Time) error {
	if len(f.cfg.Params) > 0 && (f.cfg.Down == nil || !f.cfg.Down()) {
		return nil
	}
	for _, w := range *f.windows.Load() {
		if err := w.ready(now); err != nil {
			return err
		}
	}
	return nil
}

// window returns the window for args, creating it if necessary. It returns nil if other
// values deserve the windows more.
func (f *Feed) window(args []string, now time.Time) (*window, error) {
	var room [128]byte // most parameter values fit, so that a hit allocates nothing
	name := param.AppendArgs(room[:0], args)
	if w, ok := (*f.windows.Load())[string(name)]; ok {
		return w, nil
	}
	return f.newWindow(string(name), args, now)
}

func (f *Feed) newWindow(name string, args []string, now time.Time) (*window, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newWindowLocked(name, args, now, false)
}

// newWindowLocked is newWindow with the lock held. With must, the value gets a window however
// rarely it is asked for, unless all others are needed.
func (f *Feed) newWindowLocked(name string, args []string, now time.Time, must bool) (*window, error) {
	if f.base.Err() != nil {
		return nil, ErrUnavailable
	}
	old := *f.windows.Load()
	if w, ok := old[name]; ok {
		return w, nil
	}
	if !must && now.Before(f.large[f.hash(name)]) {
		return nil, nil
	}
	var victim *window
	var requests uint64
	if f.full(len(old)) {
		if victim, requests = f.victimLocked(name, old, now, must); victim == nil {
			return nil, nil
		}
	} else {
		f.admission.created()
	}
	fresh := maps.Clone(old)
	if victim != nil {
		f.removeLocked(fresh, victim)
		f.counters.evictions.Add(1)
	}
	w := newWindow(f, name, args, now)
	w.requests = requests
	fresh[name] = w
	f.windows.Store(&fresh)
	f.done.Go(w.run)
	return w, nil
}

// full reports whether another window is one too many. It is expected to be as large as the others.
func (f *Feed) full(windows int) bool {
	held := f.held.Load()
	return windows >= f.cfg.WindowsMax || f.cfg.WindowsBytes > 0 && windows > 0 && held+held/int64(windows) > f.cfg.WindowsBytes
}

// largePause is how long a value has no window after its last one was too large.
const largePause = 30 * time.Second

// shrink removes the windows whose memory is asked for least until the others fit in WindowsBytes. A value whose window has more than
// half of that gets no other one for a while.
func (f *Feed) shrink() {
	if f.cfg.WindowsBytes == 0 || f.held.Load() <= f.cfg.WindowsBytes {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh := maps.Clone(*f.windows.Load())
	for f.held.Load() > f.cfg.WindowsBytes && len(fresh) > 1 {
		var least *window
		var fewest resident
		for _, w := range fresh {
			if r := w.resident(); !w.live() && (least == nil || r.poorer(fewest)) {
				least, fewest = w, r
			}
		}
		if least == nil || !least.close() {
			break // the last request that waits for it tries again, or the next window that is read
		}
		if fewest.bytes > f.cfg.WindowsBytes/2 {
			if len(f.large) >= countersMin {
				clear(f.large)
			}
			f.large[f.hash(least.name)] = time.Now().Add(largePause)
		}
		f.removeLocked(fresh, least)
		f.counters.evictions.Add(1)
	}
	f.windows.Store(&fresh)
}

// victimLocked returns the window that leaves for the value of that name, or nil, and how
// often the value was asked for. The window accepts no more requests.
func (f *Feed) victimLocked(name string, windows map[string]*window, now time.Time, must bool) (w *window, requests uint64) {
	value := f.hash(name)
	if halvings := f.admission.age(now); halvings > 0 {
		for _, w := range windows {
			w.age(halvings)
		}
	}
	if !must && !f.admission.wants(value) {
		return nil, 0
	}
	all := slices.Collect(maps.Values(windows))
	residents := make([]resident, len(all))
	for i, w := range all {
		residents[i] = w.resident()
	}
	requests = f.admission.counts[value]
	if i, ok := f.admission.replace(value, residents, must); ok && all[i].close() {
		return all[i], requests
	}
	return nil, 0
}

// removeLocked takes a window out of windows and stops it.
func (f *Feed) removeLocked(windows map[string]*window, w *window) {
	delete(windows, w.name)
	f.retired += w.hits.Load()
	w.stop()
	w.retire()
	w.charge(0)
}

// drop removes a window that is of no use to anybody.
func (f *Feed) drop(w *window) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := *f.windows.Load(); old[w.name] == w {
		fresh := maps.Clone(old)
		f.removeLocked(fresh, w)
		f.windows.Store(&fresh)
	}
}

func (f *Feed) hash(name string) uint64 { return maphash.String(f.seed, name) }
