package watch

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A kin is a naive model of related processes. Its truth is the time that all of them ran.
type kin struct {
	processes map[int]*relative
	next      int
	truth     uint64
	init      int // adopts orphans: 1, outside the tree, or the root
}

type relative struct {
	pid, parent int
	own, reaped uint64
	ended       bool // a zombie
	careless    bool // ignores SIGCHLD: children vanish without adding to its sum
}

func (f *kin) pids() []int {
	var pids []int
	for pid := range f.processes {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}

// step makes one process run, fork, exit or reap.
func (f *kin) step(t *rapid.T, orderly bool) {
	p := f.processes[rapid.SampledFrom(f.pids()).Draw(t, "process")]
	switch what := rapid.SampledFrom([]string{"run", "fork", "exit", "reap"}).Draw(t, "what"); {
	case what == "reap":
		f.reap(p)
	case p.ended:
	case what == "run":
		n := rapid.Uint64Range(1, 100).Draw(t, "ticks")
		p.own += n
		f.truth += n
	case what == "fork" && len(f.processes) < 12:
		f.next++
		f.processes[f.next] = &relative{pid: f.next, parent: p.pid, careless: !orderly && rapid.Bool().Draw(t, "careless")}
	case what == "exit" && p.pid != root && !(orderly && f.hasChildren(p.pid)):
		f.exit(p)
	}
}

const root = 2

func (f *kin) hasChildren(pid int) bool {
	for _, p := range f.processes {
		if p.parent == pid {
			return true
		}
	}
	return false
}

func (f *kin) exit(p *relative) {
	p.ended = true
	for _, child := range f.processes {
		if child.parent == p.pid {
			child.parent = f.init
		}
	}
	if parent := f.processes[p.parent]; parent == nil || parent.careless {
		delete(f.processes, p.pid)
	}
	for _, child := range f.processes { // init reaps them at once
		if child.ended && f.processes[child.parent] == nil {
			delete(f.processes, child.pid)
		}
	}
}

// reap lets a process wait for its children that have ended.
func (f *kin) reap(p *relative) {
	for pid, child := range f.processes {
		if child.ended && child.parent == p.pid {
			p.reaped += child.own + child.reaped
			delete(f.processes, pid)
		}
	}
}

// reading reads the processes as tree does, parents first, and calls between before each.
func (f *kin) reading(l *ledger, between func()) []member {
	order := []int{root}
	for pid := range l.members {
		if p := f.processes[pid]; p != nil && l.members[p.parent] == nil && pid != root {
			order = append(order, pid)
		}
	}
	slices.Sort(order)
	for i := 0; i < len(order); i++ {
		for _, pid := range f.pids() {
			if f.processes[pid].parent == order[i] && !slices.Contains(order, pid) {
				order = append(order, pid)
			}
		}
	}
	var seen []member
	for _, pid := range order {
		between()
		if p := f.processes[pid]; p != nil {
			seen = append(seen, member{pid: pid, ppid: p.parent, start: uint64(pid), own: ticks{user: p.own}, reaped: ticks{user: p.reaped}})
		}
	}
	return seen
}

func ours(*member) bool { return false }

// TestLedger lets processes run, fork, end and be reaped in any order, also during a reading. The total never falls and never
// exceeds the truth. If every process is waited for, it is the truth.
func TestLedger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		orderly := rapid.Bool().Draw(t, "orderly")
		f := &kin{processes: map[int]*relative{root: {pid: root, parent: 1}}, next: root, init: 1}
		if !orderly && rapid.Bool().Draw(t, "subreaper") {
			f.init = root
		}
		var l ledger
		var last uint64
		look := func(between func()) {
			l.update(f.reading(&l, between), ours)
			total := l.total().user
			if total < last {
				t.Fatalf("the total fell from %d to %d", last, total)
			}
			if total > f.truth {
				t.Fatalf("the total is %d, and only %d ran", total, f.truth)
			}
			last = total
		}
		for range rapid.IntRange(1, 12).Draw(t, "readings") {
			for range rapid.IntRange(0, 8).Draw(t, "steps") {
				f.step(t, orderly)
			}
			torn := rapid.Bool().Draw(t, "torn")
			look(func() {
				if torn {
					f.step(t, orderly)
				}
			})
		}
		look(func() {})
		if orderly && last != f.truth {
			t.Fatalf("the total is %d, and %d ran", last, f.truth)
		}
	})
}

// TestLedgerLost ends members that no member reaps. Their last known time stays in the total.
func TestLedgerLost(t *testing.T) {
	var l ledger
	one := func(pid, ppid int, own, reaped uint64) member {
		return member{pid: pid, ppid: ppid, start: uint64(pid), own: ticks{user: own, system: 2 * own}, reaped: ticks{user: reaped, system: 2 * reaped}}
	}
	steps := []struct {
		name string
		seen []member
		want uint64
	}{
		{"three members", []member{one(2, 1, 100, 0), one(3, 2, 50, 0), one(4, 3, 20, 0)}, 170},
		{"4 ended, nobody waited", []member{one(2, 1, 100, 0), one(3, 2, 50, 0)}, 170},
		{"and 3 ran on", []member{one(2, 1, 100, 0), one(3, 2, 60, 0)}, 180},
		{"3 was reaped by 2", []member{one(2, 1, 101, 60)}, 181},
		{"2 reaped what was never seen", []member{one(2, 1, 101, 90)}, 211},
		{"all ended", nil, 211},
		{"started anew", []member{one(9, 1, 7, 0)}, 218},
	}
	for _, step := range steps {
		l.update(step.seen, ours)
		if got := l.total(); got.user != step.want || got.system != 2*step.want {
			t.Errorf("%s: total %v, want %d", step.name, got, step.want)
		}
	}
	l.update([]member{one(9, 1, 8, 0), one(10, 1, 1000, 0)}, func(m *member) bool { return m.pid == 10 })
	if got := l.total(); got.user != 219 {
		t.Errorf("with one that ran before: %d, want 219", got.user)
	}
}

// TestLedgerExact adds what members have used beyond whole ticks. When a member ends, the total stands still until its parent
// has gained as much.
func TestLedgerExact(t *testing.T) {
	var l ledger
	steps := []struct {
		name         string
		seen         []member
		cpu          map[int]time.Duration
		user, system time.Duration
	}{
		{"below a tick", []member{{pid: 2, own: ticks{}}}, map[int]time.Duration{2: 3 * time.Millisecond}, 3 * time.Millisecond, 0},
		{"a tick of system time", []member{{pid: 2, own: ticks{system: 1}}}, map[int]time.Duration{2: 12 * time.Millisecond}, 3 * time.Millisecond, 9 * time.Millisecond},
		{
			"a child",
			[]member{{pid: 2, own: ticks{system: 1}}, {pid: 3, ppid: 2}},
			map[int]time.Duration{2: 12 * time.Millisecond, 3: 7 * time.Millisecond},
			3 * time.Millisecond, 16 * time.Millisecond,
		},
		{"the child ended", []member{{pid: 2, own: ticks{system: 1}}}, map[int]time.Duration{2: 14 * time.Millisecond}, 3 * time.Millisecond, 16 * time.Millisecond},
		{
			"its time is in a tick of its parent",
			[]member{{pid: 2, own: ticks{system: 1}, reaped: ticks{system: 1}}},
			map[int]time.Duration{2: 14 * time.Millisecond},
			3 * time.Millisecond, 21 * time.Millisecond,
		},
		{"ended", nil, nil, 3 * time.Millisecond, 21 * time.Millisecond},
	}
	for _, step := range steps {
		l.update(step.seen, ours)
		user, system := l.exact(func(pid int) time.Duration { return step.cpu[pid] })
		if user != step.user || system != step.system {
			t.Errorf("%s: %v user, %v system, want %v, %v", step.name, user, system, step.user, step.system)
		}
	}
}
