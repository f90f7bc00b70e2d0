package watch

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/procfs"
)

// TestLimits reads made-up control groups of both versions.
func TestLimits(t *testing.T) {
	v2 := map[string]string{
		"proc/1000000/cgroup":       "0::/shop/app\n",
		"cgroup/shop/app/cpu.max":   "max 100000\n",
		"cgroup/shop/cpu.max":       "150000 100000\n",
		"cgroup/shop/cpu.stat":      "usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n",
		"cgroup/shop/memory.max":    "1073741824\n",
		"cgroup/shop/app/cpu.stat":  "usage_usec 9\n",
		"proc/1000000/environ":      "HOME=/\x00GOMEMLIMIT=64MiB\x00",
		"cgroup/shop/app/memory.hi": "5\n",
	}
	v1 := map[string]string{
		"proc/1000000/cgroup":                     "4:memory:/\n3:cpu,cpuacct:/app\n0::/\n",
		"cgroup/cpu/app/cpu.cfs_quota_us":         "50000\n",
		"cgroup/cpu/app/cpu.cfs_period_us":        "100000\n",
		"cgroup/cpu/app/cpu.stat":                 "nr_periods 5\nnr_throttled 3\nthrottled_time 1500000000\n",
		"cgroup/cpu/cpu.cfs_quota_us":             "-1\n",
		"cgroup/cpu/cpu.cfs_period_us":            "100000\n",
		"cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n",
		"proc/1000000/cmdline":                    "java\x00-Xmx512m\x00-jar\x00x.jar\x00",
		"cgroup/unified/cgroup.controllers.empty": "",
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  map[string]float64
	}{
		"version 2": {v2, map[string]float64{"cpu_limit": 1.5, "throttled_seconds_total": 2.5, "memory_limit_bytes": 64 << 20}},
		"version 1": {v1, map[string]float64{"cpu_limit": 0.5, "throttled_seconds_total": 1.5, "memory_limit_bytes": 512 << 20}},
		"none":      {map[string]string{"proc/1000000/cgroup": "0::/\n"}, map[string]float64{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, content := range c.files {
				path = filepath.Join(dir, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got := map[string]float64{}
			l := limits{proc: filepath.Join(dir, "proc"), mount: filepath.Join(dir, "cgroup")}
			l.read(1000000000, got) // above every pid: no affinity
			if len(got) > 0 {
				t.Errorf("a process that does not exist has %v", got)
			}
			l.read(1000000, got)
			if !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]float64{"64MiB": 64 << 20, "512m": 512 << 20, "2g": 2 << 30, "100B": 100, "1024": 1024, "7KiB": 7 << 10} {
		if got := byteSize(text, 1); got != want {
			t.Errorf("%s is %g bytes, want %g", text, got, want)
		}
	}
	for _, text := range []string{"", "off", "-1", "12x", "i5"} {
		if got := byteSize(text, 1); got < 1e300 {
			t.Errorf("%q is %g bytes, want no limit", text, got)
		}
	}
}

// TestBusyCores changes the CPUs that a process may use between two readings.
func TestBusyCores(t *testing.T) {
	var b busyCores
	at := func(a, c float64) map[int64]procfs.CPUStat {
		return map[int64]procfs.CPUStat{0: {User: a, Idle: 7}, 1: {System: c / 2, Steal: c / 2}}
	}
	first, both := func(cpu int) bool { return cpu == 0 }, func(int) bool { return true }
	for i, c := range []struct {
		stat    map[int64]procfs.CPUStat
		allowed func(int) bool
		want    float64
	}{{at(10, 20), first, 0}, {at(11, 25), first, 1}, {at(12, 27), both, 4}, {at(11, 28), both, 5}} {
		if got := b.next(c.stat, c.allowed); got != c.want {
			t.Errorf("reading %d: %g s, want %g", i, got, c.want)
		}
	}
}
