package popup

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// EventDeleter is where a database deletes old events.
type EventDeleter interface {
	// DeleteEvents deletes the oldest events of shows before a time, at most limit, and
	// returns how many.
	DeleteEvents(ctx context.Context, before time.Time, limit int) (deleted int, err error)
}

const (
	retentionBatch = 1000
	retentionShare = 10 // the pause after a batch, in times of what it took, is one less
	retentionEvery = 5 * time.Minute
)

// Retention deletes events that are older than Keep, during at most a tenth of the time.
type Retention struct {
	Tables EventDeleter
	Keep   time.Duration
	Now    func() time.Time
	Log    *slog.Logger

	deleted atomic.Uint64
}

// Deleted returns how many events were deleted. It may be called concurrently.
func (r *Retention) Deleted() uint64 { return r.deleted.Load() }

// Run deletes events until ctx ends.
func (r *Retention) Run(ctx context.Context) {
	failing := false
	for pause := time.Duration(0); ; {
		if queue.Sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		began := time.Now()
		n, err := r.Tables.DeleteEvents(ctx, r.Now().Add(-r.Keep), retentionBatch)
		pause = (retentionShare - 1) * time.Since(began)
		if n < retentionBatch {
			pause = max(pause, retentionEvery)
		}
		r.deleted.Add(uint64(n))
		if err != nil && !failing && ctx.Err() == nil {
			r.Log.Warn("old popup events cannot be deleted; retried", "error", err, "every", retentionEvery)
		}
		failing = err != nil
	}
}

// FirstEventID returns the least id that an event of a show at t can have. Events of earlier
// shows have lower ids.
func FirstEventID(t time.Time) (id [16]byte) {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(t.UnixMilli(), 0)))
	copy(id[:6], ms[2:])
	return id
}
