package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
)

// Process watches a process and all its descendants as one subject, the target's name. Everything is the sum over the
// tree unless said otherwise:
//
//   - cpu_user_seconds_total, cpu_system_seconds_total: see ledger; children that lived less than a second are in them,
//   - run_queue_wait_seconds_total, voluntary_switches_total, involuntary_switches_total: the time that threads were
//     ready to run and had no CPU, and how often they gave the CPU up or lost it; see tasks for what is missed,
//   - rss_bytes: anonymous memory (RssAnon) of all, and shared memory (RssShmem) of the process that has touched the
//     most of it, since they map the same; pages of files are the page cache's,
//   - processes, threads: as they stand; zombies are left out,
//   - fds, fds_limit: open files of the process that has the most, and its soft limit.
//
// When the process ends and the target was named by port, pidfile or unit, the next reading looks for it again and its
// counters go on from where they were; by pid it is an error that is said once. The CPU time of a process that was
// there before it became the target does not count. It reads what any user may read, but for fds before Linux 6.2.
func Process(t ProcessTarget) (*Sampler, error) {
	roots, err := t.resolve()
	if err != nil {
		return nil, err
	}
	p := &process{target: t, roots: roots, tree: newTree(t.proc), tasks: tasks{known: map[int]*task{}}}
	return &Sampler{
		Kind: result.SamplerProcess, Subject: t.Name, Detail: t.detail(roots), Every: SlowEvery, Read: p.read,
	}, nil
}

type process struct {
	target ProcessTarget
	roots  []identity
	tree   *tree
	ledger ledger
	tasks  tasks
	last   uint64 // when the last reading was, in clock ticks since boot; 0 before the first
}

func (p *process) read(context.Context) ([]result.Sample, error) {
	now := bootTicks()
	stats, missing := p.find()
	old := p.ledger.members
	foreign := func(pid, parent int, start uint64) bool {
		return old[pid] == nil && old[parent] == nil && start < p.last
	}
	seen := make([]member, len(stats))
	for i, s := range stats {
		seen[i] = member{pid: s.pid, ppid: s.ppid, start: s.start, own: s.own, reaped: s.reaped}
	}
	p.ledger.update(seen, func(m *member) bool { return foreign(m.pid, m.ppid, m.start) })
	if len(stats) == 0 {
		p.last = now
		return nil, missing
	}
	values := make(map[string]float64, 12)
	err := p.readMembers(stats, values, func(s *procStat) bool { return foreign(s.pid, s.ppid, s.start) })
	p.last = now
	if values["processes"] == 0 { // zombies whose parent does not wait for them
		err = missing
	}
	cpu := p.ledger.total()
	values["cpu_user_seconds_total"] = float64(cpu.user) / ticksPerSecond
	values["cpu_system_seconds_total"] = float64(cpu.system) / ticksPerSecond
	values["run_queue_wait_seconds_total"] = float64(p.tasks.waited) / 1e9
	values["voluntary_switches_total"] = float64(p.tasks.voluntary)
	values["involuntary_switches_total"] = float64(p.tasks.involuntary)
	return []result.Sample{{Values: values}}, err
}

// find returns the members, of the target found again when a root has ended. The error says why there are none.
func (p *process) find() ([]procStat, error) {
	stats, err := p.tree.read(p.roots)
	if err != nil || p.rooted(stats) {
		return stats, err
	}
	ended := errors.New(p.target.ended(p.roots))
	if p.target.pid != 0 {
		return stats, ended
	}
	roots, err := p.target.resolve()
	if err != nil {
		return stats, fmt.Errorf("%w: %w", ended, err)
	}
	p.roots = roots
	p.tree.forget()
	return p.tree.read(roots)
}

// rooted reports whether all roots are there and have not ended.
func (p *process) rooted(stats []procStat) bool {
	found := 0
	for i := range stats {
		s := &stats[i]
		if !s.zombie() && slices.Contains(p.roots, identity{s.pid, s.start}) {
			found++
		}
	}
	return found == len(p.roots)
}

// readMembers reads what stat does not tell.
func (p *process) readMembers(stats []procStat, values map[string]float64, foreign func(*procStat) bool) error {
	var processes, threads, most, mostPID int
	var anonymous, shared uint64
	var refused error
	most = -1
	for i := range stats {
		s := &stats[i]
		if s.zombie() {
			continue
		}
		processes++
		threads += s.threads
		p.tasks.read(p.tree, s, foreign(s))
		content, err := readOnce(p.tree.proc+"/"+strconv.Itoa(s.pid)+"/status", &p.tree.buf)
		if err == nil {
			status := parseStatus(content)
			anonymous += status.anonymous
			if !status.split {
				anonymous += status.resident
			}
			shared = max(shared, status.shared)
		}
		files, err := p.tree.openFiles(s.pid)
		switch {
		case err == nil && files > most:
			most, mostPID = files, s.pid
		case err != nil && !gone(err) && refused == nil:
			refused = fmt.Errorf("count open files of process %d: %w (only its user and root may)", s.pid, err)
		}
	}
	p.tasks.sweep()
	values["processes"], values["threads"] = float64(processes), float64(threads)
	values["rss_bytes"] = float64(anonymous + shared)
	if most >= 0 {
		values["fds"] = float64(most)
		p.readLimit(mostPID, values)
	}
	return refused
}

// readLimit tells the limit of open files; none for a process that has none or that is gone.
func (p *process) readLimit(pid int, values map[string]float64) {
	content, err := readOnce(p.tree.proc+"/"+strconv.Itoa(pid)+"/limits", &p.tree.buf)
	if err != nil {
		return
	}
	if limit, ok := parseLimits(content); ok {
		values["fds_limit"] = float64(limit)
	}
}

// bootTicks is the time as the start of processes counts it.
func bootTicks() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	return uint64(now.Nano()) / (1e9 / ticksPerSecond)
}
