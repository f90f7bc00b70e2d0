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
	held    []uint64      // the lanes of its batch
	busy    int
}

// weight is that of the newest commit in the mean.
const weight = 0.2

func newLoad(committers int) load {
	return load{running: make([]time.Time, committers), held: make([]uint64, committers)}
}

func (l *load) free() bool { return l.busy < len(l.running) }

func (l *load) begin(committer int, now time.Time, held uint64) {
	l.running[committer], l.held[committer] = now, held
	l.busy++
}

func (l *load) end(committer int, took time.Duration, stored bool) {
	l.running[committer], l.held[committer] = time.Time{}, 0
	l.busy--
	switch {
	case !stored:
	case l.mean == 0:
		l.mean = took
	default:
		l.mean += time.Duration(weight * float64(took-l.mean))
	}
}

// stuckAfter is the multiple of the mean after which a commit is taken for one that is
// held up: it says nothing about what the other committers do.
const stuckAfter = 4

// outlook is what the committers promise now.
type outlook struct {
	commit  time.Duration // one commit, of those that are not stuck
	usable  int           // committers that are not stuck
	idle    bool          // one of them is free
	stuck   uint64        // lanes that are held by stuck batches
	longest time.Duration // that one of those has been under way
}

// outlook looks at the committers. When all are stuck, the database is slow: a commit
// takes as long as the youngest has.
func (l *load) outlook(now time.Time) outlook {
	o := outlook{commit: l.mean}
	youngest := time.Duration(-1)
	for i, start := range l.running {
		age := now.Sub(start)
		switch {
		case start.IsZero():
			o.idle = true
			o.usable++
		case age > stuckAfter*l.mean:
			o.stuck |= l.held[i]
			o.longest = max(o.longest, age)
			if youngest < 0 || age < youngest {
				youngest = age
			}
		default:
			o.commit = max(o.commit, age)
			o.usable++
		}
	}
	if o.usable == 0 {
		o.usable, o.commit, o.stuck = len(l.running), max(o.commit, youngest), 0
	}
	return o
}

// predict returns how long a request of that size would wait until it is stored,
// from now. The caller holds mu.
func (s *Stream) predict(lanes uint64, rows, bytes int) time.Duration {
	return s.predictAt(time.Now(), lanes, rows, bytes)
}

// predictAt goes by the committers that are not stuck: what waits goes into the next
// batches of those. With an order a lane that a stuck batch holds waits for that one.
func (s *Stream) predictAt(now time.Time, lanes uint64, rows, bytes int) time.Duration {
	o := s.load.outlook(now)
	if !s.queue.ordered {
		batches := s.batches(s.queue.rows+rows, s.queue.bytes+bytes)
		return predicted(o.commit, (batches+o.usable-1)/o.usable, !o.idle)
	}
	worst := predicted(o.commit, 1, !o.idle)
	for mask := lanes; mask != 0; mask &= mask - 1 {
		n := bits.TrailingZeros64(mask)
		l := &s.queue.lanes[n]
		wait := predicted(o.commit, s.batches(l.rows+rows, l.bytes+bytes), s.queue.held&(1<<n) != 0)
		if o.stuck&(1<<n) != 0 {
			wait += o.longest
		}
		worst = max(worst, wait)
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
