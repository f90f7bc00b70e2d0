package stream

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

const (
	maintainEvery = time.Minute    // between two reads of the database's settings, and two sweeps
	readPause     = time.Second    // between two reads, at least
	batchesKept   = 24 * time.Hour // how long batch ids are kept that may still be needed
	sweepRows     = 1000           // deleted by one statement
	sweepSteps    = 50             // statements of one sweep
	sessionsMax   = 256            // sessions that are remembered
)

// maintenance is what is known of the database's settings.
type maintenance struct {
	read     chan struct{}              // the settings may have changed
	measured func(Durability)           // called after each read; nil: nothing
	settings atomic.Pointer[Durability] // as read last; nil: not yet

	mu       sync.Mutex
	sessions map[uint64]bool // that have run a batch
	failed   bool            // the last batch
}

// maintain deletes what has expired at start and every minute, and reads the settings then and soon after observe
// saw a reason to, until ctx ends.
func (c *core) maintain(ctx context.Context) {
	ticker := time.NewTicker(maintainEvery)
	defer ticker.Stop()
	c.readSettings(ctx)
	c.sweep(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.readSettings(ctx)
			c.sweep(ctx)
		case <-c.maintenance.read:
			c.readSettings(ctx)
			queue.Sleep(ctx, readPause)
		}
	}
}

// observe learns how an attempt ended. After a failure, the first success and a new session
// the server may be another one, or configured differently.
func (c *core) observe(session uint64, err error) {
	m := &c.maintenance
	m.mu.Lock()
	failed := err != nil
	changed := failed != m.failed
	m.failed = failed
	if !failed && session != 0 && !m.sessions[session] {
		if len(m.sessions) >= sessionsMax {
			clear(m.sessions)
		}
		m.sessions[session] = true
		changed = true
	}
	m.mu.Unlock()
	if !changed {
		return
	}
	select {
	case m.read <- struct{}{}:
	default: // a read is due already
	}
}

// readSettings reads the settings. If the database does not answer, the last ones stay.
func (c *core) readSettings(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CommitTimeout)
	defer cancel()
	d, err := c.sink.Durability(ctx)
	if err != nil {
		c.cfg.Log.Debug("durability settings not read", "stream", c.name, "error", err)
		return
	}
	c.setDurability(d)
}

func (c *core) setDurability(d Durability) {
	before := c.maintenance.settings.Swap(&d)
	if c.maintenance.measured != nil {
		c.maintenance.measured(d)
	}
	if before != nil && before.String() == d.String() {
		return
	}
	level, text := slog.LevelInfo, "committed records are on disk"
	if len(d.Unsafe) > 0 {
		level, text = slog.LevelWarn, "committed records may be lost in a crash"
	}
	c.cfg.Log.Log(context.Background(), level, text, "stream", c.name, "ack", d.String())
}

func (c *core) sweep(ctx context.Context) {
	for range sweepSteps {
		limited, cancel := context.WithTimeout(ctx, c.cfg.CommitTimeout)
		marks := max(c.cfg.KeyTTL, c.cfg.KeyTTLMost) + c.cfg.SpoolMaxAge
		n, err := c.sink.Sweep(limited, Keep{Batches: batchesKept, Keys: c.cfg.SpoolMaxAge, Marks: marks}, sweepRows)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				c.cfg.Log.Warn("expired rows of the stream's own tables not deleted", "stream", c.name, "error", err)
			}
			return
		}
		c.counters.swept.Add(uint64(n))
		if n < sweepRows {
			return
		}
	}
}
