package feed

import (
	"context"
	"sync"
	"time"

	"spillway/internal/serve/queue"
)

// creditSpan is the time for which a share that is not used is kept.
const creditSpan = time.Minute

// budget limits work, one piece at a time, to a share of the time. What is not used grows to
// a credit of up to creditSpan's share. Its methods may be called concurrently.
type budget struct {
	share float64
	turn  chan struct{} // one token: somebody works

	mu     sync.Mutex
	credit time.Duration // negative: to be paid back by waiting
	at     time.Time     // of credit
}

func newBudget(share float64, now time.Time) *budget {
	b := &budget{share: share, turn: make(chan struct{}, 1), at: now}
	b.credit = b.most()
	return b
}

// most returns the largest credit.
func (b *budget) most() time.Duration { return time.Duration(b.share * float64(creditSpan)) }

// delay returns how long to wait until the credit is at least reserve; 0: it is.
func (b *budget) delay(now time.Time, reserve time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.growLocked(now)
	if b.credit >= reserve {
		return 0
	}
	return time.Duration(float64(reserve-b.credit)/b.share) + time.Microsecond
}

func (b *budget) growLocked(now time.Time) {
	b.credit = min(b.most(), b.credit+time.Duration(b.share*float64(now.Sub(b.at))))
	b.at = now
}

// enter waits until work may start. After nil, the caller calls leave.
func (b *budget) enter(ctx context.Context) error {
	for {
		if queue.Sleep(ctx, b.delay(time.Now(), 0)); ctx.Err() != nil {
			return ctx.Err()
		}
		select {
		case b.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if b.delay(time.Now(), 0) == 0 {
			return nil
		}
		<-b.turn // another one has used the credit
	}
}

// leave ends the work and charges the time that it took.
func (b *budget) leave(now time.Time, took time.Duration) {
	b.mu.Lock()
	b.growLocked(now)
	b.credit -= took
	b.mu.Unlock()
	<-b.turn
}
