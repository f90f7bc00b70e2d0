package peak

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/lab/result"
)

// checkAnswer reports what is inconsistent about an answer.
func checkAnswer(t *testing.T, a *Answer) {
	t.Helper()
	switch {
	case a.Infeasible > 0 && a.Feasible >= a.Infeasible:
		t.Errorf("feasible %g/s is not below infeasible %g/s", a.Feasible, a.Infeasible)
	case a.High > 0 && (a.Low > a.High || a.Infeasible > a.High), a.Low > a.Feasible:
		t.Errorf("interval %g to %g/s, feasible %g/s, infeasible %g/s", a.Low, a.High, a.Feasible, a.Infeasible)
	case math.IsNaN(a.Low) || math.IsNaN(a.High):
		t.Errorf("interval %g to %g/s", a.Low, a.High)
	case (a.Boundary != "") != (a.Feasible > 0 && a.Infeasible > 0):
		t.Errorf("boundary %q between %g and %g/s", a.Boundary, a.Feasible, a.Infeasible)
	case a.Confirmed && (a.Feasible == 0 || a.Infeasible == 0):
		t.Errorf("confirmed without bounds: %g and %g/s", a.Feasible, a.Infeasible)
	case a.Probes != len(a.Path):
		t.Errorf("%d probes, %d visits", a.Probes, len(a.Path))
	}
	proves := func(rate float64, passes bool) bool {
		return slices.ContainsFunc(a.Path, func(v Visit) bool {
			return v.Rate == rate && v.Observation.Validity == result.Valid && v.Observation.passes() == passes
		})
	}
	if a.Feasible > 0 && !proves(a.Feasible, true) {
		t.Errorf("no VALID probe passed at %g/s", a.Feasible)
	}
	if a.Infeasible > 0 && !proves(a.Infeasible, false) {
		// A rate whose visits disagree, or that passed against the trend, is missed too.
		if !proves(a.Infeasible, true) {
			t.Errorf("no VALID probe at %g/s", a.Infeasible)
		}
	}
}

// TestAnswerIsConsistent checks the answer after every probe, as it would be after Ctrl-C.
func TestAnswerIsConsistent(t *testing.T) {
	t.Parallel()
	for _, c := range scenarios() {
		for seed := range uint64(seedsOf(5, 20)) {
			server := c.build(0.15)
			server.invalid, server.spikes = 0.2, 0.05
			run(server, c.settings, seed, func(s *Search) {
				a := s.Answer()
				checkAnswer(t, &a)
				if a.Stopped != StoppedInterrupted {
					t.Errorf("seed %d: stopped %q before the end", seed, a.Stopped)
				}
			})
		}
		if t.Failed() {
			t.Fatalf("in scenario %s", c.name)
		}
	}
}

// TestOnlyValidProbesCount replaces the contents of all open loops that are not VALID. Neither the probes nor the answer may
// change. A closed loop only tells where to begin.
func TestOnlyValidProbesCount(t *testing.T) {
	t.Parallel()
	for _, c := range scenarios() {
		for seed := range uint64(seedsOf(5, 20)) {
			server := c.build(0.05)
			server.invalid = 0.3
			first, _ := run(server, c.settings, seed, nil)
			replay := rand.New(rand.NewPCG(seed, 2))
			settings := c.settings
			settings.Quantile = server.quantile
			search, at := NewSearch(settings), time.Duration(0)
			for i := 0; ; i++ {
				p, ok := search.Next(at)
				if !ok {
					break
				}
				if i >= len(first.Path) || p != first.Path[i].Probe {
					t.Fatalf("%s, seed %d: probe %d is %+v", c.name, seed, i, p)
				}
				o := first.Path[i].Observation
				if o.Validity != result.Valid && p.Rate > 0 {
					met := replay.IntN(2) == 0
					o = Observation{
						Validity: o.Validity, Took: o.Took, Requests: o.Requests, Rate: replay.ExpFloat64() * 1000, Overloaded: replay.IntN(2) == 0,
						Service: time.Duration(replay.Int64N(1e9)), Margins: []Margin{{Criterion: "p99<limit", Log: replay.NormFloat64(), Sigma: 0.01, Met: met}},
					}
				}
				at += o.Took
				search.Observe(p, o)
			}
			a, b := first, search.Answer()
			a.Path, b.Path = nil, nil
			if d := cmp.Diff(a, b); d != "" {
				t.Fatalf("%s, seed %d: the answer changed (-real +replaced):\n%s", c.name, seed, d)
			}
		}
	}
}

// TestNextIsRepeatable checks that a caller may ask again, and that an ended search stays so.
func TestNextIsRepeatable(t *testing.T) {
	server := singleQueue(1000, 0.9)
	server.random, server.noise = rand.New(rand.NewPCG(1, 1)), 0.05
	search, at := NewSearch(Settings{Quantile: 0.99}), time.Duration(0)
	for {
		p, ok := search.Next(at)
		again, okAgain := search.Next(at)
		if p != again || ok != okAgain {
			t.Fatalf("Next returned %+v %t and then %+v %t", p, ok, again, okAgain)
		}
		if !ok {
			break
		}
		o := server.observe(p, at)
		at += o.Took
		search.Observe(p, o)
	}
	if a := search.Answer(); a.Stopped != StoppedPrecision || !a.Confirmed {
		t.Errorf("stopped %q, confirmed %t", a.Stopped, a.Confirmed)
	}
}

// FuzzSearch feeds a search with arbitrary observations. It must end, ask for sensible probes, and stay consistent.
func FuzzSearch(f *testing.F) {
	f.Add(uint64(1), 0.05, 0.99, 0.0, 0.0, int64(0), []byte("VALID probes, and others"))
	f.Add(uint64(2), 0.0, 0.9, 10.0, 1000.0, int64(time.Minute), []byte{0, 1, 2, 3, 255, 254, 128, 7})
	f.Add(uint64(3), -1.0, 1.0, 1e-300, 1e300, int64(-1), []byte{})
	f.Add(uint64(4), math.NaN(), math.NaN(), math.Inf(1), math.NaN(), int64(time.Hour), []byte{0, 0, 0, 0, 9})
	f.Fuzz(func(t *testing.T, seed uint64, precision, quantile, start, maximum float64, deadline int64, data []byte) {
		settings := Settings{Precision: precision, Quantile: quantile, Start: start, Max: maximum, Deadline: time.Duration(deadline)}
		search, at := NewSearch(settings), time.Duration(0)
		source := rand.New(rand.NewPCG(seed, uint64(len(data))))
		for n := 0; ; n++ {
			p, ok := search.Next(at)
			if !ok {
				break
			}
			if n >= ProbesMax {
				t.Fatalf("more than %d probes", ProbesMax)
			}
			checkProbe(t, &p)
			o := arbitrary(data, n, source)
			at += max(o.Took, 0)
			search.Observe(p, o)
			a := search.Answer()
			checkAnswer(t, &a)
		}
	})
}

// checkProbe reports what is impossible about a probe.
func checkProbe(t *testing.T, p *Probe) {
	t.Helper()
	closed := p.Purpose == Closed
	switch {
	case closed != (p.Rate == 0), closed != (p.Connections > 0), p.Connections > connectionsMax:
		t.Fatalf("probe %+v", p)
	case !closed && !(p.Rate > 0 && p.Rate <= RateMax):
		t.Fatalf("rate of %+v", p)
	case p.Duration <= 0 || p.Duration > DurationMax || p.Warmup <= 0 || p.Warmup > DurationMax:
		t.Fatalf("duration of %+v", p)
	}
}

// arbitrary makes an observation from some of the bytes. VALID ones are more frequent than others.
func arbitrary(data []byte, n int, source *rand.Rand) Observation {
	next := func() byte {
		if len(data) == 0 {
			return byte(source.Uint32())
		}
		n = n*31 + 7
		return data[(n&math.MaxInt32)%len(data)] ^ byte(source.Uint32()&3)
	}
	number := func() float64 {
		switch next() % 12 {
		case 0:
			return math.NaN()
		case 1:
			return math.Inf(1)
		case 2:
			return math.Inf(-1)
		case 3:
			return math.Float64frombits(binary.LittleEndian.Uint64([]byte{next(), next(), next(), next(), next(), next(), next(), next()}))
		}
		return float64(int8(next())) / 32
	}
	kinds := []result.Validity{
		result.Valid, result.Valid, result.Valid, result.GeneratorLimited, result.HostContended, result.NotStationary, result.TooFewSamples, result.Unjudged,
	}
	o := Observation{
		Validity: kinds[int(next())%len(kinds)], Rate: number() * 1000, Service: time.Duration(number() * 1e9),
		Overloaded: next()%8 == 0, Took: time.Duration(next()) * time.Second, Requests: int64(next()),
	}
	for range next() % 3 {
		o.Margins = append(o.Margins, Margin{Criterion: string('a' + next()%3), Log: number(), Sigma: number(), Met: next()%2 == 0})
	}
	return o
}
