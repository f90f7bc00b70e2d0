package query

import (
	"context"
	"sync/atomic"
	"time"
)

// After a renewal that went wrong the next one of the same answer waits: renewFirst
// at first, twice as long after each further one, renewLast at most.
const (
	renewFirst = 100 * time.Millisecond
	renewLast  = 5 * time.Second
)

// renewal is what becomes of an answer past its TTL: at most one execution at a
// time, and pauses after those that failed.
type renewal struct {
	under    atomic.Bool
	failures atomic.Int32
	notUntil atomic.Int64 // Unix ns; 0: at once
}

// begin reports whether the caller is to renew now. It then calls end.
func (r *renewal) begin(now time.Time) bool {
	return now.UnixNano() >= r.notUntil.Load() && r.under.CompareAndSwap(false, true)
}

// end takes the outcome. After a success there is another answer in this one's place.
func (r *renewal) end(now time.Time, err error) {
	if err != nil {
		pause := renewLast
		if n := r.failures.Add(1); n < 16 {
			pause = min(renewFirst<<(n-1), renewLast)
		}
		r.notUntil.Store(now.Add(pause).UnixNano())
	}
	r.under.Store(false)
}

// renew has one execution replace an answer past its TTL, while it is served on.
func (q *Query) renew(now time.Time, a *Answer, name []byte, args []string) {
	if !a.renewal.begin(now) {
		return
	}
	key, own := string(name), clone(args)
	q.renewals.Go(func() {
		ctx, cancel := context.WithTimeout(q.base, q.cfg.Timeout)
		defer cancel()
		_, err := q.share(ctx, key, own)
		a.renewal.end(time.Now(), err)
		if err == nil || q.base.Err() != nil {
			return
		}
		q.counters.renewalErrors.Add(1)
		if silent, due := q.complaints.Due(time.Now()); due {
			q.cfg.Log.Warn("answer cannot be renewed", "query", q.cfg.Name, "error", err, "unlogged", silent)
		}
	})
}
