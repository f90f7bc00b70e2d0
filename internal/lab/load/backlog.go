package load

// backlog holds the intended starts of arrivals that wait for a connection,
// first in first out, up to a limit.
type backlog struct {
	times []int64 // a ring
	first int
	count int
	limit int
}

func newBacklog(limit int) *backlog { return &backlog{limit: limit} }

// push adds an arrival; false means that the limit is reached.
func (b *backlog) push(intended int64) bool {
	if b.count >= b.limit {
		return false
	}
	if b.count == len(b.times) {
		b.grow()
	}
	b.times[(b.first+b.count)%len(b.times)] = intended
	b.count++
	return true
}

// pop takes the arrival that waits longest.
func (b *backlog) pop() (intended int64, ok bool) {
	if b.count == 0 {
		return 0, false
	}
	intended = b.times[b.first]
	b.first = (b.first + 1) % len(b.times)
	b.count--
	return intended, true
}

func (b *backlog) grow() {
	times := make([]int64, min(max(2*len(b.times), 1024), b.limit))
	n := copy(times, b.times[b.first:])
	copy(times[n:], b.times[:b.first])
	b.times, b.first = times, 0
}
