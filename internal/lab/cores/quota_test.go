package cores

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// hostOf makes /proc and control groups of processes 1 (this one) and 7.
func hostOf(t *testing.T, files map[string]string) (proc, mount string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "proc"), filepath.Join(dir, "mount")
}

func TestQuota(t *testing.T) {
	for name, c := range map[string]struct {
		files         map[string]string
		cpus, most    float64
		file          string // after Set(0.5)
		set, restored string
		command       string // end of RestoreCommand
	}{
		"version 2": {map[string]string{
			"proc/1/cgroup": "0::/user\n", "proc/7/cgroup": "0::/shop\n", "mount/shop/cpu.max": "max 100000\n", "mount/shop/cgroup.procs": "7\n",
		}, math.Inf(1), math.Inf(1), "mount/shop/cpu.max", "50000 100000", "max 100000", "echo max 100000 > "},
		"version 2, limited, below another that is": {map[string]string{
			"proc/1/cgroup": "0::/user\n", "proc/7/cgroup": "0::/shop/web\n", "mount/shop/web/cpu.max": "20000 10000\n", "mount/shop/cpu.max": "30000 10000\n",
			"mount/shop/web/cgroup.procs": "9\n", "mount/shop/web/workers/cgroup.procs": "7\n",
		}, 2, 3, "mount/shop/web/cpu.max", "5000 10000", "20000 10000", "echo 20000 10000 > "},
		"version 1": {map[string]string{
			"proc/1/cgroup": "3:cpu,cpuacct:/user\n1:memory:/shop\n", "proc/7/cgroup": "3:cpu,cpuacct:/shop\n0::/other\n", "mount/cpu/shop/cgroup.procs": "7\n",
			"mount/cpu/shop/cpu.cfs_period_us": "100000\n", "mount/cpu/shop/cpu.cfs_quota_us": "-1\n", "mount/cpu/cpu.cfs_period_us": "100000\n", "mount/cpu/cpu.cfs_quota_us": "150000\n",
		}, math.Inf(1), 1.5, "mount/cpu/shop/cpu.cfs_quota_us", "50000", "-1", "echo -1 > "},
	} {
		proc, mount := hostOf(t, c.files)
		q, err := quotaOf(proc, mount, []int{7}, 1)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		file := filepath.Join(filepath.Dir(mount), c.file)
		content := func() string {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		before := content()
		if err := q.Restore(); err != nil || content() != before {
			t.Errorf("%s: restored %q, %v, before it was set", name, content(), err)
		}
		if q.CPUs() != c.cpus || q.Most() != c.most || q.Least() > 0.1 {
			t.Errorf("%s: %g CPUs from %g to %g, want %g, to %g", name, q.CPUs(), q.Least(), q.Most(), c.cpus, c.most)
		}
		if err := q.Set(0.5); err != nil || content() != c.set {
			t.Errorf("%s: set %q, %v; want %q", name, content(), err, c.set)
		}
		if err := q.Set(0.001); err == nil || content() != c.set {
			t.Errorf("%s: set %q, %v, from too few CPUs", name, content(), err)
		}
		if err := q.Restore(); err != nil || content() != c.restored {
			t.Errorf("%s: restored %q, %v; want %q", name, content(), err, c.restored)
		}
		if text := q.RestoreCommand(); text != c.command+"'"+file+"'" {
			t.Errorf("%s: %q", name, text)
		}
	}
}

// TestQuotaChangedMeanwhile leaves alone what somebody else has set.
func TestQuotaChangedMeanwhile(t *testing.T) {
	proc, mount := hostOf(t, map[string]string{
		"proc/1/cgroup": "0::/user\n", "proc/7/cgroup": "0::/shop\n", "mount/shop/cpu.max": "max 100000\n", "mount/shop/cgroup.procs": "7\n",
	})
	q, err := quotaOf(proc, mount, []int{7}, 1)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(mount, "shop", "cpu.max")
	if err := os.WriteFile(file, []byte("30000 100000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := q.Set(0.5); err == nil || !strings.Contains(err.Error(), "something else has changed") {
		t.Error(err)
	}
	if err := q.Restore(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "30000 100000\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestQuotaRefusals(t *testing.T) {
	shop := map[string]string{"mount/shop/cpu.max": "max 100000\n", "mount/shop/cgroup.procs": "7\n"}
	for want, files := range map[string]map[string]string{
		"process 7 is in no control group":                        {"proc/1/cgroup": "0::/user\n", "proc/7/cgroup": "0::/\n"},
		"process 7 is in the control group of the load generator": {"proc/1/cgroup": "0::/shop/user\n", "proc/7/cgroup": "0::/shop\n"},
		"shop has no limit of CPU time: turn the controller on":   {"proc/1/cgroup": "0::/user\n", "proc/7/cgroup": "0::/shop\n", "mount/shop/cpu.max": ""},
		"this host has no control groups for CPU time":            {"proc/1/cgroup": "1:memory:/\n", "proc/7/cgroup": "1:memory:/\n"},
		"find the control group of process 7":                     {"proc/1/cgroup": "0::/user\n"},
		`has the period "", which is not a number`:                {"proc/1/cgroup": "0::/user\n", "proc/7/cgroup": "0::/shop\n", "mount/shop/cpu.max": "max\n"},
		"process 8 is in the control group":                       {"proc/1/cgroup": "0::/user\n", "proc/7/cgroup": "0::/shop\n", "proc/8/cgroup": "0::/shop\n", "mount/shop/cgroup.procs": "7\n8\n"},
		"process 9 belongs to process 7, and is not in its":       {"proc/1/cgroup": "0::/user\n", "proc/7/cgroup": "0::/shop\n", "proc/9/cgroup": "0::/user\n"},
	} {
		all := maps.Clone(shop)
		maps.Copy(all, files)
		maps.DeleteFunc(all, func(_, text string) bool { return text == "" })
		proc, mount := hostOf(t, all)
		if _, err := quotaOf(proc, mount, []int{7, 9}, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", files, err, want)
		}
	}
}
