package watch

// A ledger adds up the CPU time of a process tree so that no time is lost or counted twice when processes come and go,
// however short they live.
//
// Why it is right. The kernel keeps two sums for a process: what its own threads have used (utime, stime; ended threads
// included) and what the children that it waited for had used, with theirs (cutime, cstime). A child's time moves from
// its own sum to the parent's at the very moment it is reaped, and a zombie keeps its sum until then. So the sum of both
// over the live members is the time of everything that ever ran in the tree: a child that was born and died between
// two readings is in it too. The kernel adds up nanoseconds and cuts a sum to clock ticks when it is read; reaping never
// lowers what is read, and each figure is at most a tick a member too low. Of a tick's user and system part the kernel
// knows what it saw at the timer's interrupts; their sum it knows exactly.
//
// The sum does fall when a member ends and no member gets its time: the parent ignores SIGCHLD, or has ended first, so
// that an init outside of the tree reaps the child. And it falls for one reading when the child is reaped after its
// parent was read and before it was to be read itself. The ledger tells these apart: what the last reading saw of a
// member that is gone is a debt of the nearest ancestor that is alive, paid by what that one's reaped time grew by, or
// else an ancestor's above it (a subreaper may have adopted the child). What is not paid stays in the total for one more
// reading, which reads the ancestors after the end of the child; a debt that is not paid then either is lost to the
// tree and stays in the total for good. So the total grows by what the ancestors gained less the debts that were paid,
// and never falls. Members must be read before their descendants, or a child's time would be seen twice in one reading.
//
// Only what nobody reaps and no reading saw is missed: at most the last second of such a process.
type ledger struct {
	members map[int]*member // by pid
	lost    ticks           // of members that ended and that no member reaped
	before  ticks           // what processes had used before they became the target
	told    ticks           // the total told last
}

// A member is a process of the tree.
type member struct {
	pid, ppid   int
	start       uint64 // clock ticks since boot
	own, reaped ticks
	owed        ticks // what ended descendants had used and reaped does not hold yet
	spare       ticks // what reaped grew by in this reading and pays no debt
	unpaid      ticks // what the last reading left owed and this one has not paid
}

func (m *member) sum() ticks { return m.own.add(m.reaped).add(m.owed) }

// update takes a reading in: the members that are there, each behind its parent. A new one counts from its start, or from
// now when foreign is true of it.
func (l *ledger) update(seen []member, foreign func(*member) bool) {
	next := make(map[int]*member, len(seen))
	known := make([]*member, len(seen)) // as they were last time
	for i := range seen {
		m := seen[i]
		next[m.pid] = &m
		old := l.members[m.pid]
		if old != nil && old.start == m.start {
			known[i] = old
			m.own, m.reaped = m.own.most(old.own), m.reaped.most(old.reaped)
		} else if foreign(&m) {
			l.before = l.before.add(m.sum())
		}
	}
	ended := l.ended(next)
	for i := range seen {
		if known[i] != nil {
			m := next[seen[i].pid]
			m.spare = m.reaped.less(known[i].reaped)
		}
	}
	// Each pays its own debts before it pays for others.
	for i := range seen {
		if m := next[seen[i].pid]; known[i] != nil {
			m.unpaid = m.pay(known[i].owed)
			m.owed = m.pay(ended[m.pid])
		}
	}
	for i := range seen {
		if m := next[seen[i].pid]; known[i] != nil {
			l.lost = l.lost.add(above(next, m, m.unpaid))
			m.owed = above(next, m, m.owed)
		}
	}
	l.members = next
}

// pay takes a debt out of what a member gained and returns what is left of it.
func (m *member) pay(debt ticks) ticks {
	rest := debt.less(m.spare)
	m.spare = m.spare.less(debt)
	return rest
}

// above lets the ancestors of a member pay its debt, and returns what is left of it.
func above(members map[int]*member, m *member, debt ticks) ticks {
	for range len(members) {
		m = members[m.ppid]
		if m == nil || debt == (ticks{}) {
			break
		}
		debt = m.pay(debt)
	}
	return debt
}

// ended adds up what the members that are gone had used, by the nearest ancestor that is alive.
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

// total is the CPU time of the tree. It never falls, whatever /proc says.
func (l *ledger) total() ticks {
	sum := l.lost
	for _, m := range l.members {
		sum = sum.add(m.sum())
	}
	l.told = l.told.most(sum.less(l.before))
	return l.told
}
