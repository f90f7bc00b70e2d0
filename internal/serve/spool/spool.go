package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// Path returns the file of the streams' spool in a data directory.
func Path(data string) string { return filepath.Join(data, "spool", "spool.db") }

// Errors of a spool, beside those of package queue.
var (
	// ErrDamaged: groups are missing, or are not what was written. See Repair.
	ErrDamaged = errors.New("the spool is damaged")
	// ErrInUse: another process has the spool open for writing.
	ErrInUse = errors.New("the spool is in use by another process")
)

// Config bounds a spool. Bytes, at least 1 MiB, QueueBytes, GroupBytes and Log are required.
type Config struct {
	Bytes      int64 // of the file in use, dead letters included
	QueueBytes int   // that wait for the next fsync
	GroupBytes int   // of one group, unless one entry has more
	Log        *slog.Logger
	Admin      string // the address at which this process does work on the file for others; "": none

	// Shares bound what the file holds of a name: groups that wait and dead letters. A name
	// without a share, or with 0, is bounded by Bytes only.
	Shares map[string]int64

	// Synced, if set, is called after each transaction with the entries and records in it,
	// and the time until it was on disk.
	Synced func(entries, rows int, took time.Duration)
}

// Spool is an open spool. Use Open. Its methods may be called concurrently.
//
// One goroutine, run, writes the file. Each of its transactions holds the entries that arrived
// during the previous one, and the deletions of the drains.
type Spool struct {
	cfg  Config
	file *file
	done chan struct{} // closed when run has ended

	mu       sync.Mutex
	wake     sync.Cond // there may be work for run, or the spool is closing
	names    map[string]*nameState
	pending  []*ticket
	waiting  int // bytes in pending
	writing  int // bytes that run has taken from there and not answered
	keys     map[nameKey]*ticket
	removals []*removal
	tasks    []*task
	clocks   map[string]time.Duration // see SetClock
	used     int64
	closed   bool
	failing  error // of the last transaction; nil if it was stored
	failedAt time.Time
	gather   queue.Gather // entries in a transaction

	logged   atomic.Int64 // when a failure was logged last, in nanoseconds
	counters counters
}

// nameState is what is known of a name.
type nameState struct {
	head
	pending int64         // bytes of entries that are not answered yet
	grown   chan struct{} // closed when groups are added
	drain   DrainState
	reason  error // why it does not drain
	retries uint64

	drainedRows uint64 // since the start
}

// Open opens the spool in a file and starts to write. Directory and file are created if
// missing. Errors wrap ErrInUse and ErrDamaged. The owner must call Close when the drains
// have ended.
func Open(ctx context.Context, path string, cfg Config) (*Spool, error) {
	f, err := openFile(ctx, path, cfg.Admin)
	if err != nil {
		return nil, err
	}
	s := &Spool{
		cfg: cfg, file: f, done: make(chan struct{}),
		names: make(map[string]*nameState), keys: make(map[nameKey]*ticket), clocks: make(map[string]time.Duration),
		gather: queue.Gather{Every: gatherEvery},
	}
	s.wake.L = &s.mu
	heads, err := f.heads(ctx)
	if err == nil {
		s.used, err = f.write(change{})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the spool %s: %w", path, err), f.close())
	}
	for _, h := range heads {
		s.names[h.name] = &nameState{head: h, grown: make(chan struct{}), drain: DrainNone}
	}
	go s.run()
	return s, nil
}

// Close refuses new entries, makes the accepted ones durable and closes the file. The
// drains must have ended. It is called once.
func (s *Spool) Close() error {
	s.mu.Lock()
	s.closed = true
	s.wake.Broadcast()
	s.mu.Unlock()
	<-s.done
	return s.file.close()
}

// SetClock notes how far the clock of the database that a name is drained to is ahead of this machine's clock.
func (s *Spool) SetClock(name string, ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clocks[name] = ahead
}

// now returns the time of the database of a name.
func (s *Spool) now(name string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.clocks[name])
}

// failingFor is how long a failed transaction makes the spool not ready. Without new
// entries nothing would show that the file can be written again.
const failingFor = 5 * time.Second

// Ready returns nil while the spool accepts entries of a name and drains them; "" is all
// names. An error that wraps queue.ErrNearlyFull says that three quarters of the file, or of
// the name's share, are in use, and that entries are still accepted.
func (s *Spool) Ready(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return queue.ErrClosed
	case s.failing != nil && time.Since(s.failedAt) < failingFor:
		return &queue.Unready{Why: errors.New("the spool cannot be written"), Cause: s.failing}
	}
	full := crowded(s.used, s.cfg.Bytes, "", "spool.bytes")
	for _, n := range s.names {
		if name != "" && n.name != name {
			continue
		}
		if n.drain == DrainStopped {
			return &queue.Unready{Why: fmt.Errorf("the drain of %s has stopped", n.name), Cause: n.reason}
		}
		if share := s.cfg.Shares[n.name]; share > 0 && (full == nil || errors.Is(full, queue.ErrNearlyFull)) {
			full = cmp.Or(crowded(s.usedBy(n), share, " of "+n.name, "spool_bytes"), full)
		}
	}
	return full
}

// crowded returns an error if more than three quarters of the limit that a setting gives are used. It wraps
// queue.ErrNearlyFull while there is still room.
func crowded(used, limit int64, of, setting string) error {
	if used <= limit/4*3 {
		return nil
	}
	why := fmt.Errorf("the spool holds %d bytes%s (%s %d)", used, of, setting, limit)
	if used <= limit-limit/64 {
		why = fmt.Errorf("%w: %w", queue.ErrNearlyFull, why)
	}
	return &queue.Unready{Why: why}
}

// Waiting calls yield for each group of a name that waits, in order; "" is all names. At a
// group that is missing or damaged it ends with an error that wraps ErrDamaged.
func (s *Spool) Waiting(ctx context.Context, name string, yield func(queue.Group) error) error {
	return s.file.waiting(ctx, name, yield)
}
