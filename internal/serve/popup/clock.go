package popup

import (
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a Clock.
const (
	// SkewMax is the difference between the local clock and the store's that Report accepts.
	SkewMax = time.Second

	roundTripMax = time.Second // a longer one says too little about the store's clock
	driftMax     = 500e-6      // of two clocks; NTP does not adjust faster
)

// Clock tells the time of a store, so that all replicas use one clock. It measures the store's
// clock against the local monotonic one and extrapolates between measurements and during
// outages; changes of the local wall clock have no effect. Its methods may be called
// concurrently. A nil Clock is the local one, and so is one without a measurement.
//
// A measurement is exact to half its round trip. It replaces the last one when that, after the
// drift since, is not more exact. So the time may go back by a few milliseconds, never by more
// than the errors of two measurements. If the two contradict each other, the store's clock was
// set, and Clock follows at once, by whatever it was set. Nothing is smoothed: due times are
// compared in seconds or more.
type Clock struct {
	origin time.Time                   // local times are monotonic times since then
	last   atomic.Pointer[measurement] // the one that is extrapolated

	mu     sync.Mutex // one Sample or Report at a time
	skewed bool       // the last report said so
}

// NewClock returns a Clock without a measurement.
func NewClock() *Clock { return &Clock{origin: time.Now()} }

// Now returns the store's time.
func (c *Clock) Now() time.Time {
	if c != nil {
		if m := c.last.Load(); m != nil {
			return time.Unix(0, m.at(time.Since(c.origin))).UTC()
		}
	}
	return time.Now()
}

// Skew returns by how much the local wall clock is ahead of the store; 0 while that is not known.
func (c *Clock) Skew() time.Duration {
	if c == nil {
		return 0
	}
	m := c.last.Load()
	if m == nil {
		return 0
	}
	now := time.Now()
	return time.Duration(now.UnixNano() - m.at(now.Sub(c.origin)))
}

// Sample notes a measurement: the store said that its time was storeTime, between sent and
// received, which come from time.Now.
func (c *Clock) Sample(sent, received, storeTime time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := measure(sent.Sub(c.origin), received.Sub(c.origin), storeTime.UnixNano())
	if ok {
		c.last.Store(c.last.Load().better(m))
	}
}

// Report logs it when the difference of the clocks begins or ceases to exceed SkewMax.
func (c *Clock) Report(log *slog.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	skew := c.Skew()
	skewed := skew.Abs() > SkewMax
	switch {
	case skewed == c.skewed:
		return
	case skewed:
		log.Warn("the clock of this machine differs from that of the popups' store, which decides: synchronize both with NTP", "ahead",
			skew.Round(time.Millisecond))
	default:
		log.Info("the clock of this machine agrees with that of the popups' store")
	}
	c.skewed = skewed
}

// measurement is the store's time, in nanoseconds since 1970, at a local time. It is immutable.
type measurement struct {
	local time.Duration
	store int64
	bound time.Duration // of its error
}

// measure returns a measurement, or false if it took too long.
func measure(sent, received time.Duration, store int64) (*measurement, bool) {
	trip := received - sent
	if trip < 0 || trip > roundTripMax {
		return nil, false
	}
	return &measurement{local: sent + trip/2, store: store, bound: trip/2 + trip/1000 + time.Microsecond}, true // and the drift meanwhile
}

// at returns the store's time at a local time.
func (m *measurement) at(local time.Duration) int64 { return m.store + int64(local-m.local) }

// errorAt returns by how much at may be wrong.
func (m *measurement) errorAt(local time.Duration) time.Duration {
	return m.bound + time.Duration(driftMax*math.Abs(float64(local-m.local)))
}

// better returns the one to extrapolate after a newer measurement. m may be nil.
func (m *measurement) better(newer *measurement) *measurement {
	if m == nil {
		return newer
	}
	known := m.errorAt(newer.local)
	wasSet := time.Duration(newer.store-m.at(newer.local)).Abs() > known+newer.bound
	if !wasSet && newer.bound > known {
		return m
	}
	return newer
}
