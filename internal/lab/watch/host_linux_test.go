package watch

import (
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// TestHostCPU uses a known CPU time. The busy time must include it, and all CPU times together must equal the time that the
// CPUs had.
func TestHostCPU(t *testing.T) {
	sampler := Host()
	early := time.Now()
	before := readOne(t, sampler)
	begin := time.Now()
	w := start(t, "burn", 1000, 500)
	end := time.Now()
	values := difference(before, readOne(t, sampler))
	late := time.Now()
	busy := values["cpu_user_seconds_total"] + values["cpu_system_seconds_total"]
	if burnt := w.figures["user"] + w.figures["system"]; busy < burnt*0.95 {
		t.Errorf("the host was busy for %g s, and one process for %g s", busy, burnt)
	}
	sum := busy
	for _, name := range []string{"idle", "iowait", "softirq", "steal"} {
		sum += values["cpu_"+name+"_seconds_total"]
	}
	// The kernel's counters were read between early and begin, and between end and late.
	least, most := end.Sub(begin).Seconds()*values["cores"], late.Sub(early).Seconds()*values["cores"]
	if sum < least*0.95 || sum > most*1.05 {
		t.Errorf("all CPU times are %g s, want %g to %g", sum, least, most)
	}
	for _, name := range []string{"load1", "processes_running", "context_switches_total", "memory_available_bytes"} {
		if values[name] <= 0 {
			t.Errorf("%s is %g", name, values[name])
		}
	}
	if _, told := values["psi_cpu_some_seconds_total"]; !told {
		t.Log("no pressure stall information here")
	}
}

// TestHostKeepsRising lowers counters, as kernels do with idle and iowait.
func TestHostKeepsRising(t *testing.T) {
	h := &host{last: map[string]float64{}}
	for _, step := range [][2]float64{{5, 5}, {4, 5}, {6, 6}} {
		values := map[string]float64{"cpu_iowait_seconds_total": step[0], "load1": step[0]}
		h.keepRising(values)
		if values["cpu_iowait_seconds_total"] != step[1] || values["load1"] != step[0] {
			t.Errorf("%v gave %v", step, values)
		}
	}
	if !result.Counter("cpu_iowait_seconds_total") {
		t.Error("not a counter")
	}
}

func BenchmarkHost(b *testing.B) {
	sampler := Host()
	benchmarkRead(b, sampler)
}
