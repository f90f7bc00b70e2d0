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

// maintenance reads the database's durability settings and deletes what has expired.
type maintenance struct {
	cfg   Config
	name  string
	sink  Sink
	swept *atomic.Uint64
	read  chan struct{} // the settings may have changed

	measured func(Durability) // called after each read; nil: nothing

	settings atomic.Pointer[Durability] // as read last; nil: not yet

	mu       sync.Mutex
	sessions map[uint64]bool // that have run a batch
	failed   bool            // the last batch
}

func newMaintenance(cfg Config, name string, sink Sink, swept *atomic.Uint64) *maintenance {
	return &maintenance{cfg: cfg, name: name, sink: sink, swept: swept, read: make(chan struct{}, 1), sessions: make(map[uint64]bool)}
}

// durability returns the settings that were read last; false: none yet.
func (m *maintenance) durability() (Durability, bool) {
	if d := m.settings.Load(); d != nil {
		return *d, true
	}
	return Durability{}, false
}

// run sweeps at start and every minute, and reads the settings then and soon after observe
// saw a reason to, until ctx ends.
func (m *maintenance) run(ctx context.Context) {
	ticker := time.NewTicker(maintainEvery)
	defer ticker.Stop()
	m.readSettings(ctx)
	m.sweep(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			m.readSettings(ctx)
			m.sweep(ctx)
		case <-m.read:
			m.readSettings(ctx)
			queue.Sleep(ctx, readPause)
		}
	}
}

// observe learns how an attempt ended. After a failure, the first success and a new session
// the server may be another one, or configured differently.
func (m *maintenance) observe(session uint64, err error) {
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
func (m *maintenance) readSettings(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.CommitTimeout)
	defer cancel()
	d, err := m.sink.Durability(ctx)
	if err != nil {
		m.cfg.Log.Debug("durability settings not read", "stream", m.name, "error", err)
		return
	}
	m.setDurability(d)
}

func (m *maintenance) setDurability(d Durability) {
	before := m.settings.Swap(&d)
	if m.measured != nil {
		m.measured(d)
	}
	if before != nil && before.String() == d.String() {
		return
	}
	level, text := slog.LevelInfo, "committed records are on disk"
	if len(d.Unsafe) > 0 {
		level, text = slog.LevelWarn, "committed records may be lost in a crash"
	}
	m.cfg.Log.Log(context.Background(), level, text, "stream", m.name, "ack", d.String())
}

func (m *maintenance) sweep(ctx context.Context) {
	for range sweepSteps {
		limited, cancel := context.WithTimeout(ctx, m.cfg.CommitTimeout)
		marks := max(m.cfg.KeyTTL, m.cfg.KeyTTLMost) + m.cfg.SpoolMaxAge
		n, err := m.sink.Sweep(limited, Keep{Batches: batchesKept, Keys: m.cfg.SpoolMaxAge, Marks: marks}, sweepRows)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				m.cfg.Log.Warn("expired rows of the stream's own tables not deleted", "stream", m.name, "error", err)
			}
			return
		}
		m.swept.Add(uint64(n))
		if n < sweepRows {
			return
		}
	}
}
