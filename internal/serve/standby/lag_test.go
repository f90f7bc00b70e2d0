package standby

import (
	"math/rand/v2"
	"testing"
	"time"
)

// log returns the position with that end of a log.
func log(end uint64) Position { return Position{Logs: map[string]uint64{"wal": end}} }

// seconds returns a time of the test.
func seconds(n float64) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(n * float64(time.Second)))
}

// step is one sample: the primary's position, then the replica's. -1 is no answer.
type step struct{ at, primary, replica float64 }

// TestHistory: what is known after samples.
func TestHistory(t *testing.T) {
	t.Parallel()
	const unknown = -1
	for _, c := range []struct {
		name   string
		steps  []step
		readAt float64 // unknown, or the time that the rows are no older than
		lag    float64
	}{
		{"nothing is known before the first sample", nil, unknown, unknown},
		{"the first sample is not confirmed", []step{{1, 10, 10}}, unknown, unknown},
		{"an idle primary is no lag", []step{{1, 10, 10}, {2, 10, 10}, {3600, 10, 10}}, 3600, 0},
		{"the replica keeps up", []step{{1, 10, 10}, {2, 20, 20}, {3, 30, 30}}, 3, 0},
		{"the replica is a sample behind", []step{{1, 10, 5}, {2, 20, 15}, {3, 30, 25}}, 2, 0},
		{"the replica has replayed nothing that was sampled", []step{{1, 10, 5}, {2, 10, 5}, {3, 10, 5}}, unknown, unknown},
		{"cut off from an idle primary, then from a busy one", []step{{1, 10, 10}, {2, 10, 10}, {3, 20, 10}, {4, 20, 10}, {9, 30, 10}}, 2, 6},
		{"it catches up in part", []step{{1, 10, 10}, {2, 20, 10}, {3, 30, 10}, {4, 40, 10}, {5, 50, 35}}, 3, 1},
		{"the primary is away", []step{{1, 10, 10}, {2, 20, 20}, {3, -1, 20}, {60, -1, 20}}, 2, 0},
		{"the replica is not asked for a while", []step{{1, 10, 10}, {2, 20, 20}, {3, 20, -1}, {4, 20, -1}, {5, 30, -1}}, 4, 0},
		{"the replica restarts further back", []step{{1, 10, 10}, {2, 20, 20}, {3, 30, 15}, {4, 30, 15}}, unknown, unknown},
		{"another primary is further back", []step{{1, 10, 10}, {2, 100, 10}, {3, 50, 10}, {4, 50, 10}}, unknown, unknown},
		{"the replica is of another history", []step{{1, 10, 99}, {2, 10, 99}, {3, 98, 99}, {4, 99, 99}, {5, 100, 99}}, unknown, unknown},
		{"and follows the primary again", []step{{1, 10, 99}, {2, 10, 99}, {3, 98, 98}, {4, 99, 99}, {5, 99, 99}}, 5, 0},
	} {
		var h history
		now := seconds(0)
		for _, s := range c.steps {
			now = seconds(s.at)
			if s.primary >= 0 {
				h.written(now, log(uint64(s.primary)))
			}
			if s.replica >= 0 {
				h.replayedTo(log(uint64(s.replica)))
			}
		}
		if got := h.readAt(); c.readAt == unknown && !got.IsZero() || c.readAt != unknown && !got.Equal(seconds(c.readAt)) {
			t.Errorf("%s: rows as of %v, want %v s", c.name, got.Sub(seconds(0)), c.readAt)
		}
		if lag, known := h.lag(now); known != (c.lag != unknown) || known && lag.Seconds() != c.lag {
			t.Errorf("%s: lag %v, %v; want %v s", c.name, lag, known, c.lag)
		}
	}
}

// TestHistoryForgets: after forget, nothing is known until the replica is confirmed again.
func TestHistoryForgets(t *testing.T) {
	t.Parallel()
	var h history
	for i := range 3 {
		h.written(seconds(float64(i)), log(10))
		h.replayedTo(log(10))
	}
	h.forget()
	h.written(seconds(4), log(10))
	if _, known := h.lag(seconds(4)); known || !h.readAt().IsZero() {
		t.Error("known without the replica")
	}
	h.replayedTo(log(10))
	h.written(seconds(5), log(10))
	if !h.readAt().Equal(seconds(5)) {
		t.Errorf("rows as of %v", h.readAt())
	}
}

// TestHistoryProperty compares a history with the whole log of a primary that writes, pauses
// and is sampled at random times, and a replica that stalls and catches up.
func TestHistoryProperty(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		var h history
		var commits []time.Time // of the primary; commit i has position i+1
		var previous time.Time
		replayed, confirmed := 0, false
		now := seconds(0)
		stall, write := 0, 0.0
		for range 600 {
			if random.IntN(40) == 0 {
				write = random.Float64() * float64(random.IntN(2))
			}
			for random.Float64() < write {
				now = now.Add(time.Duration(random.IntN(100)) * time.Millisecond)
				commits = append(commits, now)
			}
			now = now.Add(time.Duration(1+random.IntN(1000)) * time.Millisecond)
			if random.IntN(10) > 0 {
				h.written(now, log(uint64(len(commits))))
			}
			if stall--; stall < 0 {
				replayed += random.IntN(len(commits) - replayed + 1)
				if random.IntN(30) == 0 {
					stall = random.IntN(300)
				}
			}
			h.replayedTo(log(uint64(replayed)))
			confirmed = confirmed || h.confirmed
			if len(h.samples) > samplesMax {
				t.Fatalf("seed %d: %d samples", seed, len(h.samples))
			}
			at := h.readAt()
			if replayed < len(commits) && !at.IsZero() && commits[replayed].Before(at) {
				t.Fatalf("seed %d: the rows are as of %v, but a change of %v is missing", seed, at, commits[replayed])
			}
			if at.Before(previous) {
				t.Fatalf("seed %d: rows as of %v after %v", seed, at, previous)
			}
			previous = at
			lag, known := h.lag(now)
			switch {
			case !known:
			case replayed == len(commits) && lag != 0:
				t.Fatalf("seed %d: lag %v with everything replayed", seed, lag)
			case lag > 0 && lag > now.Sub(commits[replayed])+20*time.Second: // samples of 5 minutes were joined
				t.Fatalf("seed %d: lag %v, but the oldest change that is missing is %v old", seed, lag, now.Sub(commits[replayed]))
			}
		}
		if !confirmed {
			t.Fatalf("seed %d: never confirmed", seed)
		}
	}
}

func TestPosition(t *testing.T) {
	t.Parallel()
	set := func(spans ...uint64) Position {
		p := Position{Sets: map[string][]Span{}}
		for i := 0; i < len(spans); i += 2 {
			p.Sets["a"] = append(p.Sets["a"], Span{spans[i], spans[i+1]})
		}
		return p
	}
	domains := func(a, b uint64) Position { return Position{Logs: map[string]uint64{"0": a, "1": b}} }
	for _, c := range []struct {
		name           string
		p, q           Position
		covers, beyond bool
	}{
		{"nothing has nothing", Position{}, Position{}, true, false},
		{"something has nothing", log(1), Position{}, true, false},
		{"nothing lacks something", Position{}, log(1), false, false},
		{"equal", log(7), log(7), true, false},
		{"before", log(6), log(7), false, false},
		{"after", log(8), log(7), true, true},
		{"one of two domains is behind", domains(8, 7), domains(7, 8), false, true},
		{"a domain is missing", log(7), domains(1, 1), false, false},
		{"equal sets", set(1, 5), set(1, 5), true, false},
		{"a gap", set(1, 3, 5, 9), set(1, 5), false, false},
		{"a gap in both", set(1, 3, 5, 9), set(2, 3, 6, 7, 9, 9), true, false},
		{"a larger set is no other history", set(1, 9), set(1, 5), true, false},
		{"a set that starts later", set(4, 9), set(3, 5), false, false},
	} {
		if c.p.Covers(c.q) != c.covers || c.p.Beyond(c.q) != c.beyond {
			t.Errorf("%s: covers %v, beyond %v", c.name, c.p.Covers(c.q), c.p.Beyond(c.q))
		}
	}
}
