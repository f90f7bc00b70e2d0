package stream

import (
	"math/bits"
	"math/rand/v2"
	"time"
)

// load is how long commits take and which are under way.
type load struct {
	mean    time.Duration // of the commits, the recent ones counting most; 0: none yet
	running []time.Time   // by committer; zero: it is free
	busy    int
}

// weight is that of the newest commit in the mean.
const weight = 0.2

func newLoad(committers int) load { return load{running: make([]time.Time, committers)} }

func (l *load) free() bool { return l.busy < len(l.running) }

func (l *load) begin(committer int, now time.Time) {
	l.running[committer] = now
	l.busy++
}

func (l *load) end(committer int, took time.Duration, stored bool) {
	l.running[committer] = time.Time{}
	l.busy--
	switch {
	case !stored:
	case l.mean == 0:
		l.mean = took
	default:
		l.mean += time.Duration(weight * float64(took-l.mean))
	}
}

// duration is what a commit takes now: the mean, or more when one has been under
// way for longer.
func (l *load) duration(now time.Time) time.Duration {
	d := l.mean
	for _, start := range l.running {
		if !start.IsZero() {
			d = max(d, now.Sub(start))
		}
	}
	return d
}

// predict returns how long a request of that size would wait until it is stored,
// from now. The caller holds mu.
func (s *Stream) predict(lanes uint64, rows, bytes int) time.Duration {
	return s.predictAt(time.Now(), lanes, rows, bytes)
}

func (s *Stream) predictAt(now time.Time, lanes uint64, rows, bytes int) time.Duration {
	d := s.load.duration(now)
	if !s.queue.ordered {
		batches := s.batches(s.queue.rows+rows, s.queue.bytes+bytes)
		rounds := (batches + s.cfg.Committers - 1) / s.cfg.Committers
		return predicted(d, rounds, !s.load.free())
	}
	worst := predicted(d, 1, !s.load.free())
	for mask := lanes; mask != 0; mask &= mask - 1 {
		n := bits.TrailingZeros64(mask)
		l := &s.queue.lanes[n]
		worst = max(worst, predicted(d, s.batches(l.rows+rows, l.bytes+bytes), s.queue.held&(1<<n) != 0))
	}
	return worst
}

// predicted is the time of some commits one after the other, behind one that is
// under way if busy.
func predicted(commit time.Duration, rounds int, busy bool) time.Duration {
	if busy {
		rounds++
	}
	return commit * time.Duration(rounds)
}

// batches returns how many batches some rows and bytes make.
func (s *Stream) batches(rows, bytes int) int {
	byRows := (rows + s.cfg.BatchRows - 1) / s.cfg.BatchRows
	byBytes := (bytes + s.cfg.BatchBytes - 1) / s.cfg.BatchBytes
	return max(1, byRows, byBytes)
}

// retryAfter is when a request that would wait for too long now may come again.
func retryAfter(wait, most time.Duration) time.Duration {
	return min(max(wait-most, wait/2, 10*time.Millisecond), time.Minute)
}

// backoff is the pause after a failed attempt: 5 ms, twice as long each time, at
// most a second, half of it random so that committers do not collide again.
func backoff(attempt int) time.Duration {
	const first, most = 5 * time.Millisecond, time.Second
	full := min(first<<min(attempt-1, 10), most)
	return full - time.Duration(rand.Float64()*float64(full)/2)
}
