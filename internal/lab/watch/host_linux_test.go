package watch

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// TestHostCPU compares the CPU times with those that the kernel counts before and after a reading, and keeps a CPU busy until
// the busy time has grown by 100 ms.
func TestHostCPU(t *testing.T) {
	t.Parallel()
	before := hostTicks(t)
	values := readOne(t, Host())
	after := hostTicks(t)
	for name, columns := range map[string][]int{"user": {0, 1}, "system": {2}, "idle": {3}, "iowait": {4}, "softirq": {5, 6}, "steal": {7}} {
		low, high := 0.0, 0.0
		for _, i := range columns {
			low, high = low+min(before[i], after[i])/100, high+max(before[i], after[i])/100
		}
		slack := 1e-6
		if name == "idle" || name == "iowait" {
			slack = 0.1 // the kernel lowers them at times
		}
		if got := values["cpu_"+name+"_seconds_total"]; got < low-slack || got > high+slack {
			t.Errorf("cpu_%s_seconds_total is %g, want %g to %g", name, got, low, high)
		}
	}
	for _, name := range []string{"cores", "load1", "memory_available_bytes"} {
		if value, told := values[name]; !told || value < 0 || value == 0 && name != "load1" {
			t.Errorf("%s is %g, want more", name, value)
		}
	}
	if _, told := values["psi_cpu_some_seconds_total"]; !told {
		t.Log("no pressure stall information here")
	}
	apptest.AwaitState(t, "100 ms more of busy time", func() (string, bool) {
		spin(1 << 24)
		grown := difference(values, readOne(t, Host()))
		busy := grown["cpu_user_seconds_total"] + grown["cpu_system_seconds_total"]
		return fmt.Sprintf("%g s", busy), busy >= 0.1
	})
}

// hostTicks is the first line of /proc/stat: the time of all CPUs in ticks of 10 ms.
func hostTicks(t *testing.T) []float64 {
	t.Helper()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	var ticks []float64
	for _, field := range strings.Fields(line)[1:] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks = append(ticks, n)
	}
	return ticks
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
