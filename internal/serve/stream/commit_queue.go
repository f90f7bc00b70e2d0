package stream

import (
	"math/bits"
	"time"
)

// lanesMax is the largest number of lanes: they are bits of a word.
const lanesMax = 64

// laneQueue is the requests that wait. With an order there are as many lanes as committers, and the requests of a lane are in one batch at
// a time. Without an order there is one lane, and any number of batches from it. It is not safe for concurrent use.
//
// A request with records of several lanes waits in all of them. It goes when it is first in each, and no other batch holds one of them.
// Requests join all their lanes at once, so the oldest request is first in all its lanes: the queue cannot deadlock.
type laneQueue struct {
	lanes   []lane
	ordered bool
	held    uint64 // lanes of batches that are being committed
	next    int    // the lane where the next search begins

	requests, rows, bytes int // that wait
}

// lane is requests in the order of their arrival.
type lane struct {
	tickets []*ticket // from head on
	head    int
	rows    int
	bytes   int
}

func newLaneQueue(committers int, ordered bool) laneQueue {
	n := 1
	if ordered {
		n = min(committers, lanesMax)
	}
	return laneQueue{lanes: make([]lane, n), ordered: ordered}
}

func (q *laneQueue) empty() bool { return q.rows == 0 }

func (q *laneQueue) push(t *ticket) {
	q.requests++
	q.rows += t.rows
	q.bytes += t.bytes
	for mask := t.lanes; mask != 0; mask &= mask - 1 {
		l := &q.lanes[bits.TrailingZeros64(mask)]
		l.tickets = append(l.tickets, t)
		l.rows += t.rows
		l.bytes += t.bytes
	}
}

func (l *lane) first() *ticket {
	if l.head == len(l.tickets) {
		return nil
	}
	return l.tickets[l.head]
}

func (l *lane) drop() {
	t := l.tickets[l.head]
	l.tickets[l.head] = nil
	l.head++
	l.rows -= t.rows
	l.bytes -= t.bytes
	switch {
	case l.head == len(l.tickets):
		l.tickets, l.head = l.tickets[:0], 0
	case l.head >= 1024 && l.head > len(l.tickets)/2:
		n := copy(l.tickets, l.tickets[l.head:])
		clear(l.tickets[n:])
		l.tickets, l.head = l.tickets[:n], 0
	}
}

// take removes the requests of the next batch: at most that many rows and bytes, unless the first request alone has more. It returns the
// lanes that the batch holds until release. If no request can go, the result is empty.
func (q *laneQueue) take(rows, bytes int) ([]*ticket, uint64) {
	for range q.lanes {
		n := q.next
		q.next = (q.next + 1) % len(q.lanes)
		if q.held&(1<<n) != 0 {
			continue
		}
		if tickets, held := q.takeFrom(n, rows, bytes); len(tickets) > 0 {
			if q.ordered {
				q.held |= held
				return tickets, held
			}
			return tickets, 0
		}
	}
	return nil, 0
}

func (q *laneQueue) takeFrom(n, rows, bytes int) (tickets []*ticket, held uint64) {
	for {
		t := q.lanes[n].first()
		if t == nil || !q.free(t, held) || len(tickets) > 0 && (t.rows > rows || t.bytes > bytes) {
			return tickets, held
		}
		for mask := t.lanes; mask != 0; mask &= mask - 1 {
			q.lanes[bits.TrailingZeros64(mask)].drop()
		}
		held |= t.lanes
		q.requests--
		q.rows -= t.rows
		q.bytes -= t.bytes
		rows -= t.rows
		bytes -= t.bytes
		tickets = append(tickets, t)
	}
}

// free reports whether a request is first in all its lanes, and no batch but ours holds one of them.
func (q *laneQueue) free(t *ticket, ours uint64) bool {
	if q.held&^ours&t.lanes != 0 {
		return false
	}
	for mask := t.lanes; mask != 0; mask &= mask - 1 {
		if q.lanes[bits.TrailingZeros64(mask)].first() != t {
			return false
		}
	}
	return true
}

func (q *laneQueue) release(held uint64) { q.held &^= held }

// load is how long commits take, and which are running.
type load struct {
	mean    time.Duration // of the commits, weighted to the recent ones; 0: none yet
	running []time.Time   // when each committer began; zero: it is free
	held    []uint64      // the lanes of its batch
	busy    int
}

// weight is the weight of the newest commit in the mean.
const weight = 0.2

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

// stuckAfter is the multiple of the mean after which a commit counts as held up. Its age then predicts nothing about the other committers.
const stuckAfter = 4

// forecast is what the committers are expected to do.
type forecast struct {
	commit  time.Duration // one commit, of those that are not stuck
	usable  int           // committers that are not stuck
	idle    bool          // one of them is free
	stuck   uint64        // lanes that are held by stuck batches
	longest time.Duration // age of the oldest of these batches
}

// forecast returns the forecast at a time. If all committers are stuck, the database is slow: a commit takes as long as the youngest has.
func (l *load) forecast(now time.Time) forecast {
	o := forecast{commit: l.mean}
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

// predict returns how long a request of that size would wait from now until it is stored. The caller holds mu.
func (s *Stream) predict(lanes uint64, rows, bytes int) time.Duration {
	return s.predictAt(time.Now(), lanes, rows, bytes)
}

// predictAt counts on the committers that are not stuck: what waits goes into their next
// batches. With an order, a lane that a stuck batch holds waits for that batch.
func (s *Stream) predictAt(now time.Time, lanes uint64, rows, bytes int) time.Duration {
	o := s.load.forecast(now)
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

// predicted is the time of some commits one after the other, behind a running one if busy.
func predicted(commit time.Duration, rounds int, busy bool) time.Duration {
	if busy {
		rounds++
	}
	return commit * time.Duration(rounds)
}

// batches returns how many batches these rows and bytes make.
func (s *Stream) batches(rows, bytes int) int {
	byRows := (rows + s.cfg.BatchRows - 1) / s.cfg.BatchRows
	byBytes := (bytes + s.cfg.BatchBytes - 1) / s.cfg.BatchBytes
	return max(1, byRows, byBytes)
}
