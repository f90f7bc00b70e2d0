package watch

import "time"

// exchanges is how many comparisons of clocks offsets remembers, and how many make a first estimate.
const exchanges = 8

// offset is the result of one exchange: how far the other clock was ahead, half way through the round trip.
type offset struct{ ahead, roundTrip time.Duration }

// measure compares clocks: this one's time at the question and at the answer, and
// the other one's time in between. The offset is wrong by at most half of the round
// trip, which it is if one way took no time (Cristian, Probabilistic clock
// synchronization, 1989).
func measure(asked, answered, other time.Time) offset {
	trip := answered.Sub(asked)
	return offset{ahead: other.Sub(asked) - trip/2, roundTrip: trip}
}

// offsets remembers the last exchanges, to follow clocks that drift.
type offsets struct{ last []offset }

// add adds an exchange.
func (o *offsets) add(one offset) {
	if len(o.last) == exchanges {
		o.last = append(o.last[:0], o.last[1:]...)
	}
	o.last = append(o.last, one)
}

// best returns the offset of the shortest round trip, the newest of equals, and half of that trip.
func (o *offsets) best() (ahead, uncertainty time.Duration) {
	if len(o.last) == 0 {
		return 0, 0
	}
	shortest := o.last[0]
	for _, one := range o.last[1:] {
		if one.roundTrip <= shortest.roundTrip {
			shortest = one
		}
	}
	return shortest.ahead, shortest.roundTrip / 2
}
