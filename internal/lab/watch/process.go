package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
)

// Process samples a process and all its descendants as one subject, the target's name. Values are sums over the tree
// unless stated otherwise:
//
//   - cpu_user_seconds_total, cpu_system_seconds_total: from the counter of a control group, else see ledger. Children that
//     lived less than a second are included,
//   - cpu_resolution_seconds: of the sum of both since the last reading; cpu_split_resolution_seconds: of each of them, which
//     the kernel divides by samples that it takes every tick,
//   - run_queue_wait_seconds_total: how long threads were ready to run and had no CPU. See tasks for what is missed,
//   - rss_bytes: anonymous memory of all processes, and the shared memory of the process that touched the most of it,
//     because they map the same. Pages of files belong to the page cache,
//   - processes, threads: without zombies,
//   - fds, fds_limit: open files of the process that has the most, and its soft limit,
//   - busiest_thread_cores: CPU time per elapsed time of the thread that ran the most since an earlier reading, see tasks,
//   - major_faults_total: how often a page had to be read from a disk,
//   - cpu_limit, throttled_seconds_total, memory_limit_bytes: what the first process may use by its affinity and its control
//     groups, how long their quota stopped it, and the lower of its groups' memory limit and its runtime's heap limit,
//   - cpu_allowed, cpu_allowed_busy_seconds_total: the number of CPUs of that affinity, and how long they were busy, whoever used
//     them.
//
// When the process ends and its target is a port or a unit, the next reading looks for it again and its counters
// continue. For a pid the end is an error. The CPU time of a process before it became the target does not count. Any user may
// read all values, except fds before Linux 6.2.
func Process(t ProcessTarget) (*Sampler, error) {
	proc, err := openProc()
	if err != nil {
		return nil, err
	}
	roots, err := t.resolve(proc)
	if err != nil {
		return nil, err
	}
	p := &process{
		group: group{dir: t.group}, target: t, proc: proc, roots: roots, tree: newTree(proc), tasks: tasks{known: map[int]*task{}},
		limits: limits{proc: procfs.DefaultMountPoint, mount: t.cgroup},
	}
	return &Sampler{
		Kind: result.SamplerProcess, Subject: t.Name, Detail: t.detail(proc, roots), Every: SlowEvery, Read: p.read,
	}, nil
}

type process struct {
	target ProcessTarget
	group  group // source of the CPU time, if it has a directory
	proc   procfs.FS
	roots  []identity
	tree   *tree
	ledger ledger
	tasks  tasks
	faults faults
	limits limits
	last   uint64 // when the last reading was, in clock ticks since boot; 0 before the first

	replaced string // what took the place of the roots since the last reading; "" if they run
}

func (p *process) read(context.Context) ([]result.Sample, error) {
	now := bootTicks()
	p.replaced = ""
	stats, missing := p.find()
	old := p.ledger.members
	// A process is older than its membership if it started before the last reading and no member was its parent.
	older := func(pid, parent int, start uint64) bool {
		return old[pid] == nil && old[parent] == nil && start < p.last
	}
	seen := make([]member, len(stats))
	for i := range stats {
		seen[i] = newMember(&stats[i])
	}
	p.ledger.update(seen, func(m *member) bool { return older(m.pid, m.ppid, m.start) })
	if len(stats) == 0 {
		p.last = now
		return nil, missing
	}
	values := make(map[string]float64, 20)
	err := p.readMembers(stats, values, func(s *procfs.ProcStat) bool { return older(s.PID, s.PPID, s.Starttime) })
	p.last = now
	if values["processes"] == 0 { // zombies whose parent does not wait for them
		err = missing
	}
	user, system := p.ledger.exact(processCPU)
	values["cpu_user_seconds_total"], values["cpu_system_seconds_total"] = user.Seconds(), system.Seconds()
	if p.group.dir != "" {
		user, system, readErr := p.group.read()
		if readErr != nil {
			return nil, readErr
		}
		values["cpu_user_seconds_total"], values["cpu_system_seconds_total"] = user, system
	}
	values["cpu_resolution_seconds"], values["cpu_split_resolution_seconds"] = p.resolution().Seconds(), tick.Seconds()
	values["run_queue_wait_seconds_total"] = float64(p.tasks.waited) / 1e9
	values["major_faults_total"] = float64(p.faults.next(stats))
	p.limits.read(p.roots[0].pid, values)
	sample := result.Sample{Values: values}
	if p.replaced != "" {
		sample.Gap = &result.Gap{Reason: p.replaced}
	}
	return []result.Sample{sample}, err
}

// resolution is that of user and system time together since the last reading.
func (p *process) resolution() time.Duration {
	if p.group.dir != "" {
		return p.group.resolution()
	}
	return p.ledger.resolution()
}

// find returns the members. If a root has ended, it looks for the target again. The error says why there are no members.
func (p *process) find() ([]procfs.ProcStat, error) {
	stats, err := p.tree.read(p.roots)
	if err != nil || p.hasRoots(stats) {
		return stats, err
	}
	ended := errors.New(p.target.ended(p.roots))
	if p.target.pid != 0 {
		return stats, ended
	}
	roots, err := p.target.resolve(p.proc)
	if err != nil {
		return stats, fmt.Errorf("%w: %w", ended, err)
	}
	if p.group.dir == "" && !slices.ContainsFunc(roots, func(i identity) bool { return slices.Contains(p.roots, i) }) {
		p.replaced = fmt.Sprintf("%v; process %d (%s) took its place", ended, roots[0].pid, command(p.proc, roots[0].pid))
	}
	p.roots = roots
	p.tree.reset()
	return p.tree.read(roots)
}

// hasRoots reports whether all roots run.
func (p *process) hasRoots(stats []procfs.ProcStat) bool {
	found := 0
	for i := range stats {
		s := &stats[i]
		if !isZombie(s) && slices.Contains(p.roots, identity{s.PID, s.Starttime}) {
			found++
		}
	}
	return found == len(p.roots)
}

// readMembers reads what stat does not have.
func (p *process) readMembers(stats []procfs.ProcStat, values map[string]float64, older func(*procfs.ProcStat) bool) error {
	var processes, threads int
	var anonymous, shared uint64
	var refused error
	var holder procfs.Proc // of the most open files
	most := -1
	for i := range stats {
		s := &stats[i]
		if isZombie(s) {
			continue
		}
		processes++
		threads += s.NumThreads
		one, err := p.proc.Proc(s.PID)
		if err != nil { // ended
			continue
		}
		status, err := one.NewStatus()
		if err != nil { // ended
			continue
		}
		anonymous += status.RssAnon
		if status.RssAnon == 0 { // before Linux 4.5
			anonymous += status.VmRSS
		}
		shared = max(shared, status.RssShmem)
		p.tasks.read(p.proc, s, older(s))
		files, err := one.FileDescriptorsLen()
		switch {
		case err == nil && files > most:
			most, holder = files, one
		case err != nil && !isGone(err) && refused == nil:
			refused = fmt.Errorf("count open files of process %d: %w (only its user and root may)", s.PID, err)
		}
	}
	if busiest, ok := p.tasks.sweep(time.Now()); ok {
		values["busiest_thread_cores"] = busiest
	}
	values["processes"], values["threads"] = float64(processes), float64(threads)
	values["rss_bytes"] = float64(anonymous + shared)
	if most >= 0 {
		values["fds"] = float64(most)
		if limits, err := holder.Limits(); err == nil && limits.OpenFiles != unlimited {
			values["fds_limit"] = float64(limits.OpenFiles)
		}
	}
	return refused
}

// unlimited is how procfs writes that there is no limit.
const unlimited = 1<<64 - 1

// isZombie reports whether the process has ended and waits to be reaped. A process whose first thread has ended while
// others run is none.
func isZombie(s *procfs.ProcStat) bool {
	return (s.State == "Z" || s.State == "X") && s.NumThreads <= 1
}

// isGone reports whether an error from /proc means that the process has ended.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// faults adds up the major page faults of processes. What a process had before its first reading does not count.
type faults struct {
	known map[int]faultCount // by pid, in the last reading
	total uint
}

type faultCount struct {
	start uint64 // of the process
	count uint
}

func (f *faults) next(stats []procfs.ProcStat) uint {
	seen := make(map[int]faultCount, len(stats))
	for i := range stats {
		s := &stats[i]
		if known, ok := f.known[s.PID]; ok && known.start == s.Starttime && s.MajFlt > known.count {
			f.total += s.MajFlt - known.count
		}
		seen[s.PID] = faultCount{s.Starttime, s.MajFlt}
	}
	f.known = seen
	return f.total
}
