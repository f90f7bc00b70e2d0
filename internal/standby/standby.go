// Package standby decides between a read replica and its primary: reads go to
// the replica while it answers, and to the primary for a while after it did not.
package standby

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Pause is how long the primary answers alone after the replica has failed.
const Pause = 5 * time.Second

// Switch is one replica with its primary. Use New. Its methods may be called
// concurrently.
type Switch struct {
	name string
	log  *slog.Logger

	downUntil atomic.Int64 // Unix ns
	fallbacks atomic.Uint64
}

// New returns a switch; name tells the replica in the log and must not hold a
// password.
func New(name string, log *slog.Logger) *Switch { return &Switch{name: name, log: log} }

// Do reads from the replica, and from the primary when the replica fails now or
// has within the last Pause. An error that fault says is the request's own, or
// that comes because ctx ended, is returned as it is.
func (s *Switch) Do(ctx context.Context, now time.Time, fault func(error) bool, replica, primary func(context.Context) error) error {
	if now.UnixNano() < s.downUntil.Load() {
		s.fallbacks.Add(1)
		return primary(ctx)
	}
	err := replica(ctx)
	if err == nil || ctx.Err() != nil || fault(err) {
		return err
	}
	until := now.Add(Pause).UnixNano()
	if was := s.downUntil.Swap(until); was == 0 || now.UnixNano()-was > int64(Pause) {
		s.log.Warn("the read replica fails: the primary answers", "database", s.name, "pause", Pause, "error", err)
	}
	s.fallbacks.Add(1)
	return primary(ctx)
}

// Fallbacks returns how many reads went to the primary instead.
func (s *Switch) Fallbacks() uint64 { return s.fallbacks.Load() }

// Down reports whether the primary answers alone at now.
func (s *Switch) Down(now time.Time) bool { return now.UnixNano() < s.downUntil.Load() }
