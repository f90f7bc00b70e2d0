package watch

import (
	"fmt"
	"slices"

	"github.com/prometheus/procfs"
)

// An identity names a process for good. The kernel gives a pid again after its process has ended.
type identity struct {
	pid   int
	start uint64 // clock ticks since boot
}

// A tree finds the processes below a target's roots, anew at each reading.
//
// It lists /proc and reads the stat of a process outside the tree once in its life. A pid that is listed twice in a row is
// the same process, because the kernel gives a pid again only after it has given all others. The alternative,
// /proc/PID/task/TID/children, may omit children while others end, which happens all the time in a database that starts a
// process per connection.
//
// If the parent of a member ends, the member stays, though init is its parent now. A descendant that is born and loses its
// parent between two readings is not found. A daemon that detaches itself is found by its port or unit.
type tree struct {
	proc      procfs.FS
	members   map[int]identity // in the last reading, by pid
	parents   map[int]int      // of the members, and during a reading of possible members
	outsiders map[int]bool     // processes outside the tree
	listed    map[int]bool     // all processes
}

func newTree(proc procfs.FS) *tree {
	return &tree{proc: proc, members: map[int]identity{}, parents: map[int]int{}, outsiders: map[int]bool{}, listed: map[int]bool{}}
}

// reset makes the next reading look at all processes again, because the roots have changed.
func (t *tree) reset() { clear(t.outsiders) }

// read returns the running roots, their descendants and the members of the last reading, parents before children.
func (t *tree) read(roots []identity) ([]procfs.ProcStat, error) {
	processes, err := t.proc.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	clear(t.listed)
	for _, p := range processes {
		t.listed[p.PID] = true
	}
	t.readNew()
	order := t.arrange(roots)
	t.excludeOthers(order)
	stats := make([]procfs.ProcStat, 0, len(order))
	for _, pid := range order {
		s, err := readStat(t.proc, pid)
		if err != nil { // ended since the listing
			continue
		}
		if known, ok := t.members[pid]; ok && known.start != s.Starttime {
			continue // the pid was given again; the next reading finds out to which process
		}
		stats = append(stats, s)
	}
	clear(t.members)
	clear(t.parents)
	for _, s := range stats {
		t.members[s.PID] = identity{s.PID, s.Starttime}
		t.parents[s.PID] = s.PPID
	}
	return stats, nil
}

// readStat reads /proc/PID/stat.
func readStat(proc procfs.FS, pid int) (procfs.ProcStat, error) {
	p, err := proc.Proc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// readNew reads the parents of the processes that are neither members nor known outsiders.
func (t *tree) readNew() {
	for pid := range t.listed {
		if _, member := t.members[pid]; member || t.outsiders[pid] {
			continue
		}
		if s, err := readStat(t.proc, pid); err == nil {
			t.parents[pid] = s.PPID
		}
	}
	for pid := range t.outsiders {
		if !t.listed[pid] {
			delete(t.outsiders, pid)
		}
	}
}

// arrange returns the pids of the tree, parents before children.
func (t *tree) arrange(roots []identity) []int {
	children := make(map[int][]int, len(t.parents))
	for pid, parent := range t.parents {
		children[parent] = append(children[parent], pid)
	}
	var tops []int
	for _, root := range roots {
		if s, err := readStat(t.proc, root.pid); err == nil && s.Starttime == root.start {
			tops = append(tops, root.pid)
		}
	}
	for pid := range t.members {
		if _, member := t.members[t.parents[pid]]; !member && !slices.Contains(tops, pid) {
			tops = append(tops, pid) // an orphan, or a root
		}
	}
	slices.Sort(tops)
	placed := make(map[int]bool, len(t.members))
	var order []int
	for _, top := range tops {
		for queue := []int{top}; len(queue) > 0; queue = queue[1:] {
			if pid := queue[0]; !placed[pid] {
				placed[pid] = true
				order = append(order, pid)
				queue = append(queue, children[pid]...)
			}
		}
	}
	return order
}

// excludeOthers remembers the processes outside the tree. If a process's parent was born after the listing, the next reading
// looks at it again, because that parent may be in the tree.
func (t *tree) excludeOthers(order []int) {
	for _, pid := range order {
		delete(t.parents, pid)
	}
	for pid, parent := range t.parents {
		if t.listed[parent] || parent == 0 {
			t.outsiders[pid] = true
		}
	}
}
