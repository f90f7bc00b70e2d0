package stream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	keepEvery   = time.Minute    // between two looks at the database's settings, and two sweeps
	lookPause   = time.Second    // between two looks at least, whatever happens
	batchesKept = 24 * time.Hour // a batch's id, where it may still be asked for
	sweepRows   = 1000           // one statement deletes at most so many rows
	sweepSteps  = 50             // one sweep runs at most so many statements
	sessionsMax = 256            // sessions that are remembered
)

// keeper reads the database's durability settings and sweeps out what has expired.
type keeper struct {
	cfg   Config
	name  string
	sink  Sink
	swept *atomic.Uint64
	look  chan struct{} // the settings may have changed

	durability atomic.Pointer[Durability]

	mu       sync.Mutex
	sessions map[uint64]bool // that have taken a batch
	failed   bool            // the last batch
}

func newKeeper(cfg Config, name string, sink Sink, swept *atomic.Uint64) *keeper {
	return &keeper{cfg: cfg, name: name, sink: sink, swept: swept, look: make(chan struct{}, 1), sessions: make(map[uint64]bool)}
}

// last returns what was read last; false: nothing yet.
func (k *keeper) last() (Durability, bool) {
	if d := k.durability.Load(); d != nil {
		return *d, true
	}
	return Durability{}, false
}

// keep reads the settings at start, every minute and soon after observe saw a reason
// to, and sweeps every minute, until ctx ends.
func (k *keeper) keep(ctx context.Context) {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	k.readDurability(ctx)
	k.sweep(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.readDurability(ctx)
			k.sweep(ctx)
		case <-k.look:
			k.readDurability(ctx)
			sleepUntil(ctx, lookPause)
		}
	}
}

// observe learns how an attempt ended. After one that failed, the first that did not
// and one on a new session the server may be another, or set otherwise.
func (k *keeper) observe(session uint64, err error) {
	k.mu.Lock()
	failed := err != nil
	changed := failed != k.failed
	k.failed = failed
	if !failed && session != 0 && !k.sessions[session] {
		if len(k.sessions) >= sessionsMax {
			clear(k.sessions)
		}
		k.sessions[session] = true
		changed = true
	}
	k.mu.Unlock()
	if !changed {
		return
	}
	select {
	case k.look <- struct{}{}:
	default: // it will look anyway
	}
}

// readDurability keeps the last answer where the database gives none.
func (k *keeper) readDurability(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.CommitTimeout)
	defer cancel()
	d, err := k.sink.Durability(ctx)
	if err != nil {
		k.cfg.Log.Debug("the durability settings cannot be read", "stream", k.name, "error", err)
		return
	}
	before := k.durability.Swap(&d)
	if before != nil && before.String() == d.String() {
		return
	}
	if len(d.Unsafe) > 0 {
		k.cfg.Log.Warn("committed records may be lost in a crash", "stream", k.name, "ack", d.String())
		return
	}
	k.cfg.Log.Info("committed records are on disk", "stream", k.name, "ack", d.String())
}

func (k *keeper) sweep(ctx context.Context) {
	for range sweepSteps {
		limited, cancel := context.WithTimeout(ctx, k.cfg.CommitTimeout)
		now := time.Now()
		n, err := k.sink.Sweep(limited, now, now.Add(-batchesKept), sweepRows)
		cancel()
		if err != nil {
			k.cfg.Log.Debug("expired keys cannot be swept", "stream", k.name, "error", err)
			return
		}
		k.swept.Add(uint64(n))
		if n < sweepRows {
			return
		}
	}
}
