package result

import (
	"math"
	"slices"
	"testing"
)

// TestBelowResolution: a counter that grew by fewer than ten units of its resolution carries an upper bound only.
func TestBelowResolution(t *testing.T) {
	samples := func(user, system, resolution, split float64) []Sample {
		var all []Sample
		for i := range 11 {
			share := float64(i) / 10
			all = append(all, Sample{At: float64(i), Sampler: SamplerProcess, Subject: "app", Values: map[string]float64{
				"cpu_user_seconds_total": 5 + user*share, "cpu_system_seconds_total": 3 + system*share,
				"cpu_resolution_seconds": resolution, "cpu_split_resolution_seconds": split,
			}})
		}
		return all
	}
	for name, c := range map[string]struct {
		user, system, resolution, split float64
		total, userFigure               float64 // per request
		below                           []Figure
	}{
		"a tick":             {0.01, 0, 0.01, 0.01, 250e-9, 250e-9, []Figure{"cpu_seconds_per_request", "cpu_user_seconds_per_request", "cpu_system_seconds_per_request"}},
		"nanoseconds":        {0.01, 0.01, 1e-9, 0.01, 50e-9, 50e-9, []Figure{"cpu_user_seconds_per_request", "cpu_system_seconds_per_request"}},
		"much":               {2, 1, 0.01, 0.01, 7.5e-6, 5e-6, nil},
		"little system time": {2, 0.02, 1e-9, 0.01, 5.05e-6, 5e-6, []Figure{"cpu_system_seconds_per_request"}},
		"nothing":            {0, 0, 0.01, 0.01, 250e-9, 250e-9, []Figure{"cpu_seconds_per_request", "cpu_user_seconds_per_request", "cpu_system_seconds_per_request"}},
		"eleven ticks":       {0.11, 0, 0.01, 0.01, 275e-9, 275e-9, []Figure{"cpu_system_seconds_per_request"}},
	} {
		p := UsageOf(SeriesOf(samples(c.user, c.system, c.resolution, c.split)), 0, 10, 400_000).Subjects[0]
		total, user := p.Value(CPUPerRequest), p.Value(CPUUserPerRequest)
		if !(math.Abs(total-c.total) <= 1e-12) || !(math.Abs(user-c.userFigure) <= 1e-12) {
			t.Errorf("%s: %g and %g per request, want %g and %g", name, total, user, c.total, c.userFigure)
		}
		for _, figure := range []Figure{CPUPerRequest, CPUUserPerRequest, CPUSystemPerRequest} {
			if p.Below(figure) != slices.Contains(c.below, figure) {
				t.Errorf("%s: %s is a bound: %v", name, figure, p.Below(figure))
			}
		}
	}
}

// TestStepGrowth has a counter that grows within a step only, and samples that miss its borders.
func TestStepGrowth(t *testing.T) {
	sample := func(at, v float64, border bool) Sample {
		return Sample{At: at, Border: border, Sampler: SamplerProcess, Subject: "app", Values: map[string]float64{"x_total": v}}
	}
	regular := []Sample{sample(0.5, 0, false), sample(1.5, 100, false), sample(2.5, 300, false), sample(3.5, 400, false), sample(4.5, 400, false)}
	for name, c := range map[string]struct {
		borders  []Sample
		from, to float64
		want     float64
		off      float64 // NaN: interpolated
	}{
		"both borders":          {[]Sample{sample(1, 0, true), sample(3, 400, true)}, 1, 3, 400, 0},
		"late":                  {[]Sample{sample(1.1, 20, true), sample(3, 400, true)}, 1, 3, 400, 0.1},
		"the end is missing":    {[]Sample{sample(1, 0, true)}, 1, 3, 350, math.NaN()},
		"none":                  {nil, 1, 3, 300, math.NaN()},
		"of another step":       {[]Sample{sample(-0.2, 0, true), sample(4.2, 400, true)}, 1, 3, 300, math.NaN()},
		"the nearest":           {[]Sample{sample(0.8, 0, true), sample(1, 0, true), sample(3, 400, true), sample(3.2, 400, true)}, 1, 3, 400, 0},
		"a step of a second":    {[]Sample{sample(2, 200, true), sample(3, 400, true)}, 2, 3, 200, 0},
		"without length":        {[]Sample{sample(1, 0, true)}, 1, 1, math.NaN(), math.NaN()},
		"one for both borders":  {[]Sample{sample(2.2, 240, true)}, 2, 2.4, math.NaN(), math.NaN()},
		"without the figure":    {[]Sample{{At: 1, Border: true, Sampler: SamplerProcess, Subject: "app", Values: map[string]float64{"y": 1}}}, 1, 3, 300, math.NaN()},
		"a restart in the step": {[]Sample{sample(1, 0, true), sample(2, 7, false), sample(3, 400, true)}, 1, 3, math.NaN(), 0},
	} {
		s := SeriesOf(append(slices.Clone(regular), c.borders...))[0]
		if got := s.StepGrowth("x_total", c.from, c.to); math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("%s: grew by %g, want %g", name, got, c.want)
		}
		if off := s.BorderError("x_total", c.from, c.to); math.Abs(off-c.off) > 1e-9 || math.IsNaN(off) != math.IsNaN(c.off) {
			t.Errorf("%s: %g s off, want %g", name, off, c.off)
		}
	}
}
