package watch

import (
	"time"

	"github.com/prometheus/procfs"
)

// ticksPerSecond is the kernel's USER_HZ, the unit of CPU times in /proc: 100 on every Linux that Go runs on.
const ticksPerSecond = 100

const tick = time.Second / ticksPerSecond

// ticks are the user and the system CPU time of something, in clock ticks.
type ticks struct{ user, system uint64 }

func (t ticks) add(o ticks) ticks { return ticks{t.user + o.user, t.system + o.system} }

// sub subtracts o, down to zero.
func (t ticks) sub(o ticks) ticks {
	return ticks{t.user - min(t.user, o.user), t.system - min(t.system, o.system)}
}

func (t ticks) max(o ticks) ticks { return ticks{max(t.user, o.user), max(t.system, o.system)} }

// A ledger adds up the CPU time of a process tree. No time is lost or counted twice when processes come and go, however
// short they live.
//
// The kernel keeps two sums per process: what its own threads have used (utime, stime), including ended threads, and what
// the children that it waited for had used, with their own children (cutime, cstime). A child's time moves from its own sum
// to its parent's when it is reaped; a zombie keeps its sum until then. So both sums over the live members are the time of
// everything that ever ran in the tree, including a child that was born and died between two readings. The kernel adds up
// nanoseconds and truncates a sum to clock ticks when it is read, so each figure is at most a tick per member too low.
//
// The sum falls when a member ends and no member gets its time: the parent ignores SIGCHLD, or has ended first, so that an
// init outside the tree reaps the child. It also falls for one reading if the child is reaped after its parent was read and
// before it was read itself. To tell these cases apart, the last known time of an ended member becomes a debt of its nearest
// live ancestor. What that ancestor's reaped time grew by pays the debt, or an ancestor's above it, because a subreaper may
// have adopted the child. A debt that is not paid stays in the total for one more reading, which reads the ancestors after the
// end of the child. If it is not paid then either, the time is lost to the tree and stays in the total for good. So the total
// grows by what the ancestors gained minus the debts that were paid, and never falls. Members must be read before their
// descendants, or a child's time would count twice in one reading.
//
// The only time missed is what no member reaps and no reading saw: at most the last second of such a process.
type ledger struct {
	members map[int]*member // by pid
	lost    ticks           // of ended members that no member reaped
	before  ticks           // what processes had used before they became the target
	last    ticks           // the total returned last

	user, system time.Duration // as exact returned them last
	coarse       bool          // since the last call of resolution, processes have ended, which count in ticks
}

// resolution is that of the growth of exact since the last call.
func (l *ledger) resolution() time.Duration {
	coarse := l.coarse
	l.coarse = false
	if coarse {
		return tick
	}
	return time.Nanosecond
}

// A member is a process of the tree.
type member struct {
	pid, ppid   int
	start       uint64 // clock ticks since boot
	own, reaped ticks
	owed        ticks // what ended descendants had used and reaped does not include yet
	spare       ticks // what reaped grew by in this reading and has paid no debt
	unpaid      ticks // what the last reading left owed and this one has not paid
}

func newMember(s *procfs.ProcStat) member {
	return member{
		pid: s.PID, ppid: s.PPID, start: s.Starttime,
		own:    ticks{uint64(s.UTime), uint64(s.STime)},
		reaped: ticks{uint64(max(s.CUTime, 0)), uint64(max(s.CSTime, 0))},
	}
}

func (m *member) sum() ticks { return m.own.add(m.reaped).add(m.owed) }

// update adds a reading: the members, parents before children. A new member counts from its start, or from now if older
// is true of it.
func (l *ledger) update(seen []member, older func(*member) bool) {
	next := make(map[int]*member, len(seen))
	known := make([]*member, len(seen)) // in the last reading
	for i := range seen {
		m := seen[i]
		next[m.pid] = &m
		old := l.members[m.pid]
		if old != nil && old.start == m.start {
			known[i] = old
			m.own, m.reaped = m.own.max(old.own), m.reaped.max(old.reaped)
		} else if older(&m) {
			l.before = l.before.add(m.sum())
		}
	}
	ended := l.ended(next)
	for pid := range l.members {
		l.coarse = l.coarse || !alive(next, l.members[pid])
	}
	for i := range seen {
		if known[i] != nil {
			m := next[seen[i].pid]
			m.spare = m.reaped.sub(known[i].reaped)
			l.coarse = l.coarse || m.spare != ticks{}
		}
	}
	// A member pays its own debts before it pays for others.
	for i := range seen {
		if m := next[seen[i].pid]; known[i] != nil {
			m.unpaid = m.pay(known[i].owed)
			m.owed = m.pay(ended[m.pid])
		}
	}
	for i := range seen {
		if m := next[seen[i].pid]; known[i] != nil {
			l.lost = l.lost.add(payAbove(next, m, m.unpaid))
			m.owed = payAbove(next, m, m.owed)
		}
	}
	l.members = next
}

// pay takes a debt from what a member gained and returns the rest of the debt.
func (m *member) pay(debt ticks) ticks {
	rest := debt.sub(m.spare)
	m.spare = m.spare.sub(debt)
	return rest
}

// payAbove lets the ancestors of a member pay its debt and returns the rest.
func payAbove(members map[int]*member, m *member, debt ticks) ticks {
	for range len(members) {
		m = members[m.ppid]
		if m == nil || debt == (ticks{}) {
			break
		}
		debt = m.pay(debt)
	}
	return debt
}

// ended adds up what ended members had used, by their nearest live ancestor.
func (l *ledger) ended(next map[int]*member) map[int]ticks {
	debts := map[int]ticks{}
	for pid, m := range l.members {
		if alive(next, m) {
			continue
		}
		parent := l.members[m.ppid]
		for steps := 0; parent != nil && !alive(next, parent) && steps < len(l.members); steps++ {
			parent = l.members[parent.ppid]
		}
		if parent == nil || !alive(next, parent) || parent.pid == pid {
			l.lost = l.lost.add(m.sum())
			continue
		}
		debts[parent.pid] = debts[parent.pid].add(m.sum())
	}
	return debts
}

func alive(next map[int]*member, m *member) bool {
	now := next[m.pid]
	return now != nil && now.start == m.start
}

// total is the CPU time of the tree. It never falls.
func (l *ledger) total() ticks {
	sum := l.lost
	for _, m := range l.members {
		sum = sum.add(m.sum())
	}
	l.last = l.last.max(sum.sub(l.before))
	return l.last
}

// exact is the total with what the live members have used beyond whole ticks, which cpu reads: the CPU time of a process so
// far, with that of its ended threads, and 0 if that is not known. Neither part ever falls.
//
// The rest of a member that ends is taken back, up to a tick or two, and may be in the ticks of its parent later: the total
// stands still until it has grown by as much.
func (l *ledger) exact(cpu func(pid int) time.Duration) (user, system time.Duration) {
	whole := l.total()
	user, system = time.Duration(whole.user)*tick, time.Duration(whole.system)*tick
	rest := time.Duration(0)
	for pid, m := range l.members {
		used := cpu(pid)
		rest += min(max(used-time.Duration(m.own.user+m.own.system)*tick, 0), 2*tick)
		l.coarse = l.coarse || used == 0
	}
	sum := max(user+system+rest, l.user+l.system)
	l.coarse = l.coarse || user+system+rest < sum
	if user+system > 0 {
		user += time.Duration(float64(rest) * float64(user) / float64(user+system))
	} else {
		user = rest
	}
	l.user = min(max(user, l.user), sum-l.system)
	l.system = sum - l.user
	return l.user, l.system
}
