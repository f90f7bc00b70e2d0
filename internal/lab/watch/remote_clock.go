package watch

import (
	"context"
	"time"

	"spillway/internal/lab/result"
)

// How the clocks of two hosts are compared.
const (
	clockExchanges = 8 // when a watch is joined, and how many are remembered
	clockEvery     = 10 * time.Second
)

// offset is what one exchange tells: how far the other clock was ahead, half way through the round trip.
type offset struct {
	ahead     time.Duration
	roundTrip time.Duration
}

// measureOffset takes when we asked and were answered by our clock, and what the other clock showed in between. Had the way there
// or back taken no time, the offset would be off by half of the round trip: it is no further off.
func measureOffset(asked, answered, other time.Time) offset {
	trip := answered.Sub(asked)
	return offset{ahead: other.Sub(asked) - trip/2, roundTrip: trip}
}

// offsets remembers the last exchanges, so that clocks which drift apart are followed.
type offsets struct{ last []offset }

func (o *offsets) add(one offset) {
	if len(o.last) == clockExchanges {
		o.last = append(o.last[:0], o.last[1:]...)
	}
	o.last = append(o.last, one)
}

// best is what the shortest round trip tells, the newest of them, and half of that trip.
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

// exchange compares the clocks once. Ours is the wall clock at start and the monotonic one from there, as in the samples.
func (r *RemoteWatch) exchange(ctx context.Context) (offset, error) {
	asked := r.start.Add(time.Since(r.start))
	var clock servedClock
	if err := r.ask(ctx, "/clock", &clock); err != nil {
		return offset{}, err
	}
	return measureOffset(asked, r.start.Add(time.Since(r.start)), clock.Now), nil
}

// compareClocks does so every clockEvery. What keeps it from doing so keeps the stream too, which says it.
func (r *RemoteWatch) compareClocks(ctx context.Context, tell func(*result.Sample)) {
	ticker := time.NewTicker(clockEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		one, err := r.exchange(ctx)
		if err != nil {
			continue
		}
		r.mu.Lock()
		r.offsets.add(one)
		ahead, uncertainty := r.offsets.best()
		r.mu.Unlock()
		tell(&result.Sample{At: time.Since(r.start).Seconds(), Sampler: result.SamplerWatch, Subject: "clock", Values: map[string]float64{
			"clock_offset_seconds": ahead.Seconds(), "clock_uncertainty_seconds": uncertainty.Seconds(), "round_trip_seconds": one.roundTrip.Seconds(),
		}})
	}
}
