package diagnose

import (
	"maps"
	"testing"

	"spillway/internal/lab/result"
)

// elsewhere moves what belongs to the service to another host, with a healthy host sample of its own.
func elsewhere(run *result.Run) {
	var more []result.Sample
	for i := range run.Samples {
		s := &run.Samples[i]
		if s.Sampler == result.SamplerHost {
			o := *s
			o.Host, o.Values = "app-1", maps.Clone(s.Values)
			o.Values["psi_memory_some_seconds_total"], o.Values["psi_io_some_seconds_total"] = 0, 0
			more = append(more, o)
			continue
		}
		s.Host = "app-1"
	}
	run.Samples = append(run.Samples, more...)
	w := run.Watches[0]
	w.Host = "app-1"
	run.Watches = append(run.Watches, w)
}

// The pressure is that of the load generator's host, in both steps. The service is on another one.
func TestPressureOfTheGeneratorsHost(t *testing.T) {
	for name, f := range map[string]figures{
		"disk":   {"host": {"psi_io_some_seconds_total": 0.9}},
		"memory": {"host": {"psi_memory_some_seconds_total": 0.3}},
	} {
		base := idle().and(f)
		run := runOf(t, light(base), heavy(1600, base))
		elsewhere(run)
		if got := Diagnose(run, 0, 1); got[0].Name != WorkerPool {
			t.Errorf("%s: %s (%g): %q", name, got[0].Name, got[0].Score, got[0].Sentence)
		}
	}
}

// Memory pressure that was the same when the SLO was met, and a CPU-bound service.
func TestConstantMemoryPressure(t *testing.T) {
	base := idle().and(figures{"host": {"psi_memory_some_seconds_total": 0.3}})
	run := runOf(t, light(base), heavy(1000, base.and(busy("app", 1.7, 0.25, 3))))
	for i := range run.Samples {
		if s := &run.Samples[i]; s.Sampler == result.SamplerHost {
			s.Values["psi_memory_some_seconds_total"] = 0.3 * s.At
		}
	}
	if got := Diagnose(run, 0, 1); got[0].Name != UserCPU {
		t.Errorf("%s (%g): %q", got[0].Name, got[0].Score, got[0].Sentence)
	}
}

// A watch without load, in which one session sleeps in a statement: nothing shows that a request waits for a connection.
func TestWatchedPool(t *testing.T) {
	one := func(active float64) figures {
		return figures{"postgres shop": postgres()["postgres shop"]}.and(figures{
			"postgres shop": {"connections": 1, "connections_idle": 1 - active, "connections_active": active, "wait_timeout": active, "wait_cpu": 0, "wait_io": 0},
			"host":          {"cores": 2, "cpu_user_seconds_total": 0.1 + 0.2*active, "cpu_idle_seconds_total": 1.8 - 0.2*active},
		})
	}
	run := runOf(t, light(one(0)), heavy(1, one(1)))
	run.Steps, run.End.Elapsed = nil, 25
	got, _, _, ok := watched(run)
	if ok && got[0].Name == DatabasePool {
		t.Errorf("%s (%g): %q", got[0].Name, got[0].Score, got[0].Sentence)
	}
}

// A figure that an old file does not have is not "NaN" in a sentence.
func TestMissingTimeWait(t *testing.T) {
	base := idle()
	run := runOf(t, light(base), heavy(1600, base.and(figures{"tcp": {"ports_in_use": 28200}})))
	for i := range run.Samples {
		delete(run.Samples[i].Values, "time_wait")
	}
	if got := Diagnose(run, 0, 1); got[0].Sentence != "" {
		for k := 0; k+3 <= len(got[0].Sentence); k++ {
			if got[0].Sentence[k:k+3] == "NaN" {
				t.Error(got[0].Sentence)
			}
		}
	}
}

// The service's host waits for memory. Another host has no pressure figures (an old kernel): its unknown figure hides the known one.
func TestUnknownPressureHidesAKnownOne(t *testing.T) {
	base := idle()
	run := runOf(t, light(base), heavy(300, base.and(figures{"host": {"psi_memory_some_seconds_total": 0.4}})))
	if got := Diagnose(run, 0, 1); got[0].Name != Memory {
		t.Fatalf("one host: %s", got[0].Name)
	}
	var more []result.Sample
	for _, s := range run.Samples {
		if s.Sampler == result.SamplerHost {
			s.Host, s.Values = "db-1", maps.Clone(s.Values)
			delete(s.Values, "psi_memory_some_seconds_total")
			more = append(more, s)
		}
	}
	run.Samples = append(run.Samples, more...)
	run.Watches = append(run.Watches, result.Watch{Host: "db-1"})
	if got := Diagnose(run, 0, 1); got[0].Name != Memory {
		t.Errorf("with a second host: %s (%g): %q", got[0].Name, got[0].Score, got[0].Sentence)
	}
}
