package peer

import "time"

// Exchanges is how many exchanges Offsets remembers, and how many make a first
// estimate.
const Exchanges = 8

// Offset is the result of one exchange: how far the other clock was ahead, half way
// through the round trip.
type Offset struct {
	Ahead     time.Duration
	RoundTrip time.Duration
}

// Measure compares clocks: this one's time at the question and at the answer, and
// the other one's time in between. The offset is wrong by at most half of the round
// trip, which it is if one way took no time (Cristian, Probabilistic clock
// synchronization, 1989).
func Measure(asked, answered, other time.Time) Offset {
	trip := answered.Sub(asked)
	return Offset{Ahead: other.Sub(asked) - trip/2, RoundTrip: trip}
}

// Offsets remembers the last exchanges, to follow clocks that drift.
type Offsets struct{ last []Offset }

// Add adds an exchange.
func (o *Offsets) Add(one Offset) {
	if len(o.last) == Exchanges {
		o.last = append(o.last[:0], o.last[1:]...)
	}
	o.last = append(o.last, one)
}

// Best returns the offset of the shortest round trip, the newest of equals, and half of that trip.
func (o *Offsets) Best() (ahead, uncertainty time.Duration) {
	if len(o.last) == 0 {
		return 0, 0
	}
	shortest := o.last[0]
	for _, one := range o.last[1:] {
		if one.RoundTrip <= shortest.RoundTrip {
			shortest = one
		}
	}
	return shortest.Ahead, shortest.RoundTrip / 2
}
