package cores

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// TestBetween computes what hosts on common and on separate cores used from two readings.
func TestBetween(t *testing.T) {
	m := &Meter{hosts: []Host{
		{Name: "load", CPUs: 1, Cores: Set{0}}, {Name: "app", CPUs: 0.5, Cores: Set{1}}, {Name: "db", CPUs: 0.5, Cores: Set{1}},
	}}
	second := time.Second
	from := &Reading{
		at: time.Unix(100, 0), used: []time.Duration{second, 0, 0}, throttled: []time.Duration{0, second, 0},
		busy: map[int]time.Duration{0: 50 * second, 1: 60 * second},
	}
	to := &Reading{
		at: time.Unix(110, 0), used: []time.Duration{5 * second, 3 * second, 4 * second}, throttled: []time.Duration{0, 3 * second, 0},
		busy: map[int]time.Duration{0: 54*second - 1, 1: 70 * second}, kernel: map[int]time.Duration{1: second},
	}
	shares := m.Between(from, to)
	if load := shares[0]; load.UsedShare() != 0.4 || load.ForeignShare() != 0 || load.ThrottledShare() != 0 || load.Cores != "0" {
		t.Errorf("load: %+v", load)
	}
	if app := shares[1]; app.UsedShare() != 0.6 || app.ForeignShare() != 0.2 || app.ThrottledShare() != 0.2 || app.KernelShare() != 0.1 {
		t.Errorf("app: %+v", app)
	}
	if db := shares[2]; db.UsedShare() != 0.8 || db.ForeignShare() != 0.2 {
		t.Errorf("db: %+v", db)
	}
	if nothing := m.Between(from, from)[1]; nothing.UsedShare() != 0 || nothing.ForeignShare() != 0 {
		t.Errorf("in no time: %+v", nothing)
	}
}

// TestForeign plants a busy loop on a core and wants its time counted as foreign, from each source that there is here, and as the
// host's own if the loop belongs to it.
func TestForeign(t *testing.T) {
	available, err := Available()
	if err != nil {
		t.Fatal(err)
	}
	core := available[len(available)-1:]
	loop := exec.Command("sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = loop.Process.Kill()
		_ = loop.Wait()
	}()
	if err := setAffinity(loop.Process.Pid, core); err != nil {
		t.Fatal(err)
	}
	used := func() (time.Duration, error) {
		stat, err := statOf(loop.Process.Pid)
		return time.Duration(stat.CPUTime() * 1e9), err
	}
	sources := []source{{}, {}}
	for i := range sources {
		if sources[i], err = openSource(); err != nil {
			t.Fatal(err)
		}
	}
	sources[1].counter = "" // /proc/stat
	for _, s := range sources {
		wrong := ""
		for range 10 { // what else runs on the machine can spoil a reading, and cannot make a wrong one right
			if wrong = foreignOf(t, s, core, used); wrong == "" {
				break
			}
		}
		if wrong != "" {
			t.Error(wrong)
		}
	}
}

// foreignOf compares what a host without processes and one with a busy loop see of the loop.
func foreignOf(t *testing.T, s source, core Set, used func() (time.Duration, error)) (wrong string) {
	t.Helper()
	idle, own := &Meter{source: s, hosts: []Host{{Name: "idle", CPUs: 1, Cores: core, Used: func() (time.Duration, error) { return 0, nil }}}},
		&Meter{source: s, hosts: []Host{{Name: "own", CPUs: 1, Cores: core, Used: used}}}
	before, _ := used()
	fromIdle, err := idle.Read()
	if err != nil {
		t.Fatal(err)
	}
	fromOwn, _ := own.Read()
	apptest.Await(t, "the loop has used a second", func() bool {
		now, err := used()
		return err != nil || now >= before+time.Second
	})
	toIdle, errIdle := idle.Read()
	toOwn, errOwn := own.Read()
	if errIdle != nil || errOwn != nil {
		t.Fatal(errIdle, errOwn)
	}
	foreign, mine := idle.Between(fromIdle, toIdle)[0], own.Between(fromOwn, toOwn)[0]
	if foreign.Foreign < 0.8 || mine.Used < 0.8 || mine.Foreign > foreign.Foreign-0.8 {
		return fmt.Sprintf("counter %q: a busy loop that used 1 s of core %s: %+v; of the host: %+v", s.counter, core, foreign, mine)
	}
	return ""
}

func TestPerCore(t *testing.T) {
	if busy, err := parsePerCore("12 34 \n"); err != nil || busy[1] != 34 || len(busy) != 2 {
		t.Errorf("per core: %v, %v", busy, err)
	}
}
