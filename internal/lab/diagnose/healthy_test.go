package diagnose

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"spillway/internal/lab/result"
)

// A healthyVariant is something that happens to a healthy server and says nothing about what stops it.
type healthyVariant struct {
	name  string
	steps func(r *rand.Rand, p, f *level)
	after func(r *rand.Rand, run *result.Run)
}

func between(r *rand.Rand, low, high float64) float64 { return low + (high-low)*r.Float64() }

func healthyVariants() []healthyVariant {
	return []healthyVariant{
		{"plain", nil, nil},
		{"no light step", nil, func(_ *rand.Rand, run *result.Run) {
			run.Steps = run.Steps[1:]
			run.Steps[0].Index, run.Steps[0].Total.Step = 0, 0
		}},
		{"closed loop", nil, func(_ *rand.Rand, run *result.Run) {
			for i := range run.Steps {
				s := &run.Steps[i]
				s.Loop, s.OfferedHz, s.Arrival, s.Connections, s.Name = result.LoopClosed, 0, "", 1+63*i, ""
			}
		}},
		{"sheds 10 to 50 % with 503 at full CPU", func(r *rand.Rand, _, f *level) { f.statuses = map[int]float64{503: between(r, 0.1, 0.5)} }, nil},
		{"sheds with 429", func(r *rand.Rand, _, f *level) { f.statuses = map[int]float64{429: between(r, 0.1, 0.5)} }, nil},
		{"timeouts", func(r *rand.Rand, _, f *level) {
			f.errors = map[result.ErrorClass]int64{result.Timeout: int64(f.rate * 10 * between(r, 0.1, 2))}
		}, nil},
		{"an unwatched proxy and softirq in proportion to arrivals", withProxy, nil},
		{"no host figures", func(_ *rand.Rand, p, f *level) { delete(p.figures, "host"); delete(f.figures, "host") }, nil},
		{"no limit, no host", func(_ *rand.Rand, p, f *level) {
			for _, l := range []*level{p, f} {
				delete(l.figures, "host")
				delete(l.figures["process app"], "cpu_limit")
			}
		}, nil},
		{"no tcp", func(_ *rand.Rand, p, f *level) { delete(p.figures, "tcp"); delete(f.figures, "tcp") }, nil},
		{"heap at its limit", func(r *rand.Rand, p, f *level) {
			for _, l := range []*level{p, f} {
				l.figures = l.figures.and(figures{"process app": {"rss_bytes": 500 << 20, "memory_limit_bytes": 512 << 20}})
			}
		}, nil},
		{"NOT_STATIONARY", func(_ *rand.Rand, _, f *level) { f.validity = result.NotStationary }, nil},
		{"retransmits", func(r *rand.Rand, _, f *level) {
			f.figures = f.figures.and(figures{"tcp": {"segments_out_total": 10000, "retransmits_total": between(r, 100, 600)}})
		}, nil},
		{"80 % CPU on average (bursts)", func(r *rand.Rand, _, f *level) {
			l := f.figures["process app"]["cpu_limit"]
			u := between(r, 0.7, 0.85) * l
			f.figures = f.figures.and(busy("app", u*0.9, u*0.1, 2)).and(figures{"process app": {"cpu_allowed_busy_seconds_total": u}})
		}, nil},
		{"a watched idle redis and a second watched process", func(_ *rand.Rand, p, f *level) {
			for _, l := range []*level{p, f} {
				l.figures = l.figures.and(figures{"process redis": {"cpu_user_seconds_total": 0.1, "cpu_system_seconds_total": 0.1, "busiest_thread_cores": 0.2, "cpu_limit": 4, "threads": 5, "processes": 1}})
			}
		}, nil},
	}
}

// withProxy lets a program that is not watched take a part of the CPU, in proportion to the arrivals.
func withProxy(r *rand.Rand, p, f *level) {
	part := between(r, 0.12, 0.3)
	for i, l := range []*level{p, f} {
		app := l.figures["process app"]
		limit := app["cpu_limit"]
		use := []float64{0.05, 1 - part}[i] * limit
		l.figures = l.figures.and(figures{
			"process app": {"cpu_user_seconds_total": use / 2, "cpu_system_seconds_total": use / 2, "cpu_limit": limit, "cpu_allowed": limit},
			"host":        {"cores": limit, "cpu_user_seconds_total": use/2 + use*part/(1-part), "cpu_system_seconds_total": use / 2, "cpu_idle_seconds_total": max(0.01, limit-use/(1-part))},
		})
		delete(l.figures["process app"], "cpu_allowed_busy_seconds_total")
		l.rate, l.offered = []float64{0.05, 1}[i]*1000*limit, []float64{0.05, 1.6}[i]*1000*limit
	}
	f.statuses = map[int]float64{503: 0.3}
}

// healthyPair is a step that a server holds at 30 % of its CPU, and one for which it would need 160 %.
func healthyPair(r *rand.Rand) (p, f level) {
	limit := float64(1 + r.IntN(4))
	per := between(r, 100e-6, 5e-3)
	user := between(r, 0.3, 0.97)
	use := func(share float64) figures {
		c := share * limit
		return idle().and(busy("app", c*user, c*(1-user), 4*share*share)).and(figures{"process app": {
			"cpu_limit": limit, "cpu_allowed": limit, "cpu_allowed_busy_seconds_total": c, "threads": 20, "busiest_thread_cores": 0.9 * min(1, c),
		}, "host": {"cores": 4, "cpu_idle_seconds_total": max(0.02, 3.8-c)}})
	}
	alone := per * between(r, 1, 3)
	p = level{offered: 0.3 * limit / per, rate: 0.3 * limit / per, alone: alone, mean: alone * 1.1, size: between(r, 50, 20000), figures: use(0.3)}
	f = level{offered: 1.6 * limit / per, rate: 0.97 * limit / per, alone: alone * 5, mean: alone * between(r, 20, 200), size: p.size, failed: true, figures: use(0.98)}
	p.first, f.first = 0.1*p.mean, between(r, 0, 0.4)*f.mean
	return p, f
}

// TestHealthyVariants turns one more thing on at a time that happens to healthy servers that only run out of CPU.
func TestHealthyVariants(t *testing.T) {
	t.Parallel()
	seeds := 25
	if testing.Short() {
		seeds = 5
	}
	for _, v := range healthyVariants() {
		wrong := map[string]int{}
		example := ""
		for seed := range uint64(seeds) {
			r := rand.New(rand.NewPCG(seed, 3))
			p, f := healthyPair(r)
			if v.steps != nil {
				v.steps(r, &p, &f)
			}
			run := runOf(t, p, f)
			if v.after != nil {
				v.after(r, run)
			}
			d, err := (&Options{}).diagnose(run)
			if err != nil {
				t.Fatal(err)
			}
			one := d.Verdicts[0]
			if one.Name != UserCPU && one.Name != SystemCPU && one.Name != Unknown {
				wrong[one.Name]++
				example = fmt.Sprintf("%g: %s", one.Score, one.Sentence)
			}
		}
		if len(wrong) > 0 {
			t.Errorf("%s: of %d: %v\n  %s", v.name, seeds, wrong, example)
		}
	}
}
