package stream

import "math/bits"

// lanesMax is the largest number of lanes: they are bits of a word.
const lanesMax = 64

// queue is the requests that wait. With an order there are as many lanes as
// committers, and a lane's requests are in one batch at a time; without, there is
// one lane, and any number of batches from it. It is not safe for concurrent use.
//
// A request whose records belong to several lanes stands in all of them and goes
// when it is first in each and none of them is held by another batch. Requests join
// all their lanes at once, so the oldest of all is first in its lanes: the queue
// cannot lock up.
type queue struct {
	lanes   []lane
	ordered bool
	held    uint64 // lanes with a batch under way
	next    int    // the lane where the next search begins
	rows    int
	bytes   int
}

// lane is requests in the order of their arrival.
type lane struct {
	tickets []*ticket // from head on
	head    int
	rows    int
	bytes   int
}

func newQueue(committers int, ordered bool) queue {
	n := 1
	if ordered {
		n = min(committers, lanesMax)
	}
	return queue{lanes: make([]lane, n), ordered: ordered}
}

func (q *queue) empty() bool { return q.rows == 0 }

func (q *queue) push(t *ticket) {
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

// take removes the requests of the next batch, of at most that many rows and bytes
// unless the first alone has more, and returns the lanes that the batch holds until
// release. None can go when the result is empty.
func (q *queue) take(rows, bytes int) ([]*ticket, uint64) {
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

func (q *queue) takeFrom(n, rows, bytes int) (tickets []*ticket, held uint64) {
	for {
		t := q.lanes[n].first()
		if t == nil || !q.free(t, held) || len(tickets) > 0 && (t.rows > rows || t.bytes > bytes) {
			return tickets, held
		}
		for mask := t.lanes; mask != 0; mask &= mask - 1 {
			q.lanes[bits.TrailingZeros64(mask)].drop()
		}
		held |= t.lanes
		q.rows -= t.rows
		q.bytes -= t.bytes
		rows -= t.rows
		bytes -= t.bytes
		tickets = append(tickets, t)
	}
}

// free reports whether a request is first in all its lanes, and those are free or
// ours.
func (q *queue) free(t *ticket, ours uint64) bool {
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

func (q *queue) release(held uint64) { q.held &^= held }
