package redis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// breakerPause is the time between two pings of a server that hangs.
const breakerPause = time.Second

// errHangs is the error of a call that was not sent.
var errHangs = errors.New("the server does not answer; it is asked again as soon as it answers a ping")

// breaker refuses calls at once while the server hangs. It hangs if a call has failed after half
// of its timeout or more. From then on, beside one call per breakerPause, a ping finds out
// whether the server answers again. Its methods may be called concurrently.
type breaker struct {
	timeout time.Duration                   // of a call
	ping    func(ctx context.Context) error // within the timeout

	until atomic.Int64 // Unix nanoseconds of the next ping; 0: the server answers
	pings sync.WaitGroup
}

// begin returns errHangs if a call must not be sent. After nil, end must be called.
func (b *breaker) begin(now time.Time) error {
	until := b.until.Load()
	if until == 0 {
		return nil
	}
	next := now.Add(2*b.timeout + breakerPause).UnixNano()
	if now.UnixNano() >= until && b.until.CompareAndSwap(until, next) {
		b.pings.Go(func() {
			err := b.ping(context.Background())
			b.until.Store(0)
			b.end(now, err)
		})
	}
	return errHangs
}

// end takes the error of a call that began at that time.
func (b *breaker) end(began time.Time, err error) {
	if now := time.Now(); err != nil && now.Sub(began) >= b.timeout/2 {
		b.until.Store(now.Add(breakerPause).UnixNano())
	}
}

// wait waits for the ping that is under way. No call may follow.
func (b *breaker) wait() { b.pings.Wait() }
