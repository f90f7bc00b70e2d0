package peak

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// driven drives a search with a function of the probe.
func driven(settings Settings, observe func(p Probe, at time.Duration) Observation) (Answer, time.Duration) {
	search, at := NewSearch(settings), time.Duration(0)
	for {
		p, ok := search.Next(at)
		if !ok {
			return search.Answer(), at
		}
		o := observe(p, at)
		o.Took = p.cost()
		at += o.Took
		search.Observe(p, o)
	}
}

// errorsOf is the margin of an errors criterion as result.SLO.Margins gives it.
func errorsOf(name string, limit float64, failed, n int) Margin {
	share := float64(failed) / float64(max(n, 1))
	m := Margin{Criterion: name, Log: -7, Met: share < limit}
	if failed > 0 {
		m.Log = math.Log(share / limit)
		m.Sigma = math.Sqrt((1 - share) / (share * float64(n)))
		if m.Met {
			m.Log = min(m.Log, 0)
		}
	}
	return m
}

func binomial(r *rand.Rand, n int, p float64) int {
	k := 0
	for range n {
		if r.Float64() < p {
			k++
		}
	}
	return k
}

// TestErrorsNeedRequests: a target fails a share of the requests above its capacity that is a few times as large as the SLO allows.
// Probes have to be long enough to show failures.
func TestErrorsNeedRequests(t *testing.T) {
	for _, c := range []struct {
		capacity, limit, share, start float64
		deadline                      time.Duration
	}{
		{50, 0.001, 0.004, 40, 10 * time.Minute},
		{50, 0.001, 0.002, 40, 10 * time.Minute},
		{20, 0.001, 0.004, 16, 10 * time.Minute},
		{20, 0.001, 0.004, 16, 2 * time.Minute},
		{20, 0.001, 0.01, 16, 10 * time.Minute},
		{20, 0.0001, 0.001, 16, 10 * time.Minute},
		{100, 0.0001, 0.001, 60, 10 * time.Minute},
		{100, 0.0001, 0.001, 60, 2 * time.Minute},
		{100, 0.001, 0.005, 60, time.Minute},
		{1000, 0.0001, 0.0005, 600, 10 * time.Minute},
		{1000, 0.0001, 0.0005, 600, 0},
	} {
		wrong, confirmed, runs := 0, 0, 40
		var worst float64
		for seed := range runs {
			r := rand.New(rand.NewPCG(uint64(seed), 9))
			a, _ := driven(Settings{Quantile: 0.9, Errors: c.limit, Deadline: c.deadline, Start: c.start}, func(p Probe, _ time.Duration) Observation {
				n, failed := int(p.Rate*p.Duration.Seconds()), 0
				if p.Rate > c.capacity {
					failed = binomial(r, n, c.share)
				}
				return Observation{
					Validity: result.Valid, Rate: p.Rate, Requests: int64(n),
					Margins: []Margin{{Criterion: "p90<200ms", Log: -2, Sigma: 0.05, Met: true}, errorsOf("errors<limit", c.limit, failed, n)},
				}
			})
			if a.Feasible > 1.05*c.capacity {
				wrong++
				worst = max(worst, a.Feasible)
				if a.Confirmed {
					confirmed++
				}
			}
		}
		if wrong > runs/20 {
			t.Errorf("%+v: %d of %d searches certify a rate above 1.05 x the capacity (up to %g/s), %d of them are confirmed", c, wrong, runs, worst, confirmed)
		}
	}
}

// TestBurst: a token bucket of 100/s with a burst. Only rates up to 100/s last.
func TestBurst(t *testing.T) {
	for _, burst := range []float64{500, 1000, 2000, 5000} {
		tokens, at0 := burst, time.Duration(0)
		a, _ := driven(Settings{Quantile: 0.9, Deadline: 10 * time.Minute, Start: 60}, func(p Probe, at time.Duration) Observation {
			tokens = min(burst, tokens+100*(at-at0).Seconds())
			at0 = at + p.cost()
			use := func(d time.Duration) (n, failed float64) {
				n = p.Rate * d.Seconds()
				got := min(n, tokens+100*d.Seconds())
				tokens = min(burst, tokens+100*d.Seconds()-got)
				return n, n - got
			}
			use(p.Warmup)
			n, failed := use(p.Duration)
			return Observation{
				Validity: result.Valid, Rate: (n - failed) / p.Duration.Seconds(), Requests: int64(n),
				Margins: []Margin{{Criterion: "p90<200ms", Log: -2, Sigma: 0.05, Met: true}, errorsOf("errors<1%", 0.01, int(failed), int(n))},
			}
		})
		if a.Feasible > 105 {
			t.Errorf("burst %g: %g/s is certified, 100/s last; confirmed %t", burst, a.Feasible, a.Confirmed)
		}
	}
}
