package query

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// After a failed renewal the next one waits: renewFirst at first, then twice as long after
// each failure, up to renewLast.
const (
	renewFirst = 100 * time.Millisecond
	renewLast  = 5 * time.Second
)

// renewal limits the renewals of one answer: one at a time, with pauses after failures.
type renewal struct {
	running  atomic.Bool
	failures atomic.Int32
	notUntil atomic.Int64 // Unix nanoseconds; 0: at once
}

// begin reports whether the caller must renew now, and then call end.
func (r *renewal) begin(now time.Time) bool {
	return now.UnixNano() >= r.notUntil.Load() && r.running.CompareAndSwap(false, true)
}

// end records the result. After a success, another answer has replaced this one.
func (r *renewal) end(now time.Time, err error) {
	if err != nil {
		pause := renewLast
		if n := r.failures.Add(1); n < 16 {
			pause = min(renewFirst<<(n-1), renewLast)
		}
		r.notUntil.Store(now.Add(pause).UnixNano())
	}
	r.running.Store(false)
}

// renew starts an execution that replaces an answer after its TTL.
func (q *Query) renew(now time.Time, a *Answer, name []byte, args []string) {
	if !a.renewal.begin(now) {
		return
	}
	key, own := string(name), param.CloneArgs(args)
	q.renewals.Go(func() {
		ctx, cancel := context.WithTimeout(q.base, q.cfg.Timeout)
		defer cancel()
		_, _, err := q.group.Do(ctx, key, q.sharing(ctx, key, feed.Range{Args: own}))
		err = busy(err)
		a.renewal.end(time.Now(), err)
		if err == nil || errors.Is(err, feed.ErrPaused) || q.base.Err() != nil {
			return
		}
		q.counters.renewalErrors.Add(1)
		if unlogged, due := q.renewalLog.Error(time.Now()); due {
			q.cfg.Log.Warn("answer not renewed", "query", q.cfg.Name, "error", err, "unlogged", unlogged)
		}
	})
}

// logInterval is the shortest time between two log lines about one query's errors.
const logInterval = time.Second

// LogLimit limits the log lines about one query's errors to one per second. The zero value
// is ready to use. Its methods may be called concurrently.
type LogLimit struct {
	last     atomic.Int64 // Unix nanoseconds of the last line
	unlogged atomic.Uint64
	failing  atomic.Bool // the last line was about an error
}

// Error reports whether to log an error at now, and how many errors before were not logged.
func (l *LogLimit) Error(now time.Time) (unlogged uint64, due bool) {
	last := l.last.Load()
	if now.UnixNano()-last < int64(logInterval) || !l.last.CompareAndSwap(last, now.UnixNano()) {
		l.unlogged.Add(1)
		return 0, false
	}
	l.failing.Store(true)
	return l.unlogged.Swap(0), true
}

// Success reports whether to log a success at now, once after errors, and how many errors
// were not logged.
func (l *LogLimit) Success(now time.Time) (unlogged uint64, due bool) {
	if !l.failing.Load() || now.UnixNano()-l.last.Load() < int64(logInterval) || !l.failing.CompareAndSwap(true, false) {
		return 0, false
	}
	return l.unlogged.Swap(0), true
}
