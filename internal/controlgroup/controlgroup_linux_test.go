package controlgroup

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLocate(t *testing.T) {
	v1 := func(root, at string, options ...string) *procfs.MountInfo {
		m := &procfs.MountInfo{FSType: "cgroup", Root: root, MountPoint: at, SuperOptions: map[string]string{"rw": ""}}
		for _, option := range options {
			m.SuperOptions[option] = ""
		}
		return m
	}
	v2 := func(root, at string) *procfs.MountInfo {
		return &procfs.MountInfo{FSType: "cgroup2", Root: root, MountPoint: at}
	}
	unified := procfs.Cgroup{HierarchyID: 0, Controllers: []string{""}, Path: "/user.slice/session-1.scope"}
	counted := procfs.Cgroup{HierarchyID: 3, Controllers: []string{"cpu", "cpuacct"}, Path: "/docker/abc"}
	memory := procfs.Cgroup{HierarchyID: 4, Controllers: []string{"memory"}, Path: "/docker/abc"}
	for _, c := range []struct {
		name, controller string
		groups           []procfs.Cgroup
		mounts           []*procfs.MountInfo
		want             string
	}{
		{"version 2", "", []procfs.Cgroup{unified}, []*procfs.MountInfo{v2("/", "/sys/fs/cgroup")}, "/sys/fs/cgroup/user.slice/session-1.scope"},
		{"both", "cpuacct", []procfs.Cgroup{memory, counted, unified}, []*procfs.MountInfo{
			v2("/", "/sys/fs/cgroup/unified"), v1("/", "/sys/fs/cgroup/memory", "memory"), v1("/", "/sys/fs/cgroup/cpu,cpuacct", "cpu", "cpuacct"),
		}, "/sys/fs/cgroup/cpu,cpuacct/docker/abc"},
		{"in a container", "cpuacct", []procfs.Cgroup{counted}, []*procfs.MountInfo{v1("/docker/abc", "/sys/fs/cgroup/cpuacct", "cpuacct")}, "/sys/fs/cgroup/cpuacct"},
		{"of another container", "cpuacct", []procfs.Cgroup{counted}, []*procfs.MountInfo{v1("/docker/other", "/sys/fs/cgroup/cpuacct", "cpuacct")}, ""},
		{"not mounted", "", []procfs.Cgroup{unified}, []*procfs.MountInfo{v1("/", "/sys/fs/cgroup/cpuacct", "cpuacct")}, ""},
		{"no such group", "cpuacct", []procfs.Cgroup{unified, memory}, []*procfs.MountInfo{v1("/", "/sys/fs/cgroup/cpuacct", "cpuacct")}, ""},
	} {
		if got := locate(c.controller, c.groups, c.mounts); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCounters(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if used, err := Used(dir); err == nil {
		t.Errorf("without files: %v", used)
	}
	write("cpu.stat", "usage_usec 1500\nnr_throttled 3\nthrottled_usec 250\n")
	used, err := Used(dir)
	stopped, errStopped := Throttled(dir)
	if used != 1500*time.Microsecond || stopped != 250*time.Microsecond || err != nil || errStopped != nil {
		t.Errorf("version 2: used %v, throttled %v: %v, %v", used, stopped, err, errStopped)
	}
	write("cpu.stat", "nr_throttled 3\nthrottled_time 7000\n")
	write("cpuacct.usage", "9000\n")
	used, err = Used(dir)
	stopped, errStopped = Throttled(dir)
	if used != 9*time.Microsecond || stopped != 7*time.Microsecond || err != nil || errStopped != nil {
		t.Errorf("version 1: used %v, throttled %v: %v, %v", used, stopped, err, errStopped)
	}
}

func TestStat(t *testing.T) {
	for _, c := range []struct {
		text         string
		user, system time.Duration
		ok           bool
	}{
		{"usage_usec 3000001\nuser_usec 2000000\nsystem_usec 1000001\nnice_usec 0\nnr_periods 0\n", 2 * time.Second, time.Second + time.Microsecond, true},
		{"usage_usec 0\nuser_usec 0\nsystem_usec 0\n", 0, 0, true},
		{"nr_periods 0\nnr_throttled 0\nthrottled_time 0\n", 0, 0, false}, // version 1
		{"system_usec many\nuser_usec 1\n", time.Microsecond, 0, false},
		{"", 0, 0, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cpu.stat"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		stat := Stat(dir)
		_, hasUser := stat["user_usec"]
		_, hasSystem := stat["system_usec"]
		if stat["user_usec"] != c.user || stat["system_usec"] != c.system || hasUser && hasSystem != c.ok {
			t.Errorf("%q: %v", c.text, stat)
		}
	}
}

func TestLimits(t *testing.T) {
	for text, want := range map[string]float64{"150000 100000\n": 1.5, "max 100000\n": math.Inf(1), "": math.Inf(1), "5": math.Inf(1), "1 0": math.Inf(1)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cpu.max"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Quota(dir); got != want {
			t.Errorf("%q: %g CPUs, want %g", text, got, want)
		}
	}
	dir := t.TempDir()
	if got := Memory(dir); !math.IsInf(got, 1) {
		t.Errorf("without files: %g bytes", got)
	}
	for name, text := range map[string]string{"memory.max": "max\n", "memory.high": "4096\n", "memory.limit_in_bytes": "9223372036854771712\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := Memory(dir); got != 4096 {
		t.Errorf("%g bytes, want 4096", got)
	}
}

// TestProcesses reads a group and one below it.
func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{dir: "12\n7\n", below: "9\n0\nx\n"} {
		if err := os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pids, err := Processes(dir)
	slices.Sort(pids)
	if err != nil || !slices.Equal(pids, []int{7, 9, 12}) {
		t.Errorf("%v, %v", pids, err)
	}
	if pids, err := Processes(filepath.Join(dir, "none")); err == nil || len(pids) > 0 {
		t.Errorf("no group has the processes %v", pids)
	}
}
