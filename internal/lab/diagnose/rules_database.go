package diagnose

import (
	"fmt"
	"math"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// databaseRoom is how surely a database has CPU to spare, by its watched process. Without one nobody knows, since the database may
// run on another host than the one that asks it: then it is the given figure, or less if that host has no CPU left.
func (c *comparison) databaseRoom(d *database, unknown float64) float64 {
	s := c.failing
	if p := s.serverOf(d); p != nil && !math.IsNaN(s.use(p)) {
		return 1 - s.full().of(s.use(p))
	}
	u := s.hostUsage(d.host)
	cores := value(u.Cores)
	return unknown * (1 - min(ramp(d.waitCPU, 0.7*cores, cores), s.full().of(1-value(u.Idle)-value(u.IOWait))))
}

// serverOf returns the watched process of a database, nil if there is none.
func (s *step) serverOf(d *database) *process {
	for i := range s.processes {
		if p := &s.processes[i]; p.host == d.host && p.role == result.RoleDatabase {
			return p
		}
	}
	return nil
}

// databaseLock: most of the sessions that run a statement wait for a lock of another session.
func (c *comparison) databaseLock() Verdict {
	v := Verdict{Name: DatabaseLock}
	for i := range c.failing.databases {
		d := &c.failing.databases[i]
		score := c.failing.roomOr(0.8) * c.databaseRoom(d, 0.8) * ramp(d.waitLock, 0.4, 0.9) * ramp(d.waitLock/max(d.active, 1), 0.25, 0.5)
		if score <= v.Score {
			continue
		}
		v.Score = score
		v.Sentence = fmt.Sprintf("%s of %s running statements of %s wait for a lock that another session holds %s.",
			sheet.Number(d.waitLock), sheet.Number(d.active), d.name, c.at()) + d.top(true).sentence(true)
		v.Evidence = append(append(c.sessionFigures(d), c.statementFigures(d, d.top(true))...), c.processesUsed()...)
		v.Advice = "Find the row or table that all transactions change, and change it less often (one statement for many records, several " +
			"rows added up " +
			"when read), or as the last statement of a shorter transaction."
	}
	return v
}

// syncsMin is the number of fsyncs per second from which commits may wait for them.
const syncsMin = 10

// commit: the database waits for the disk, above all for its log, with CPU to spare.
func (c *comparison) commit() Verdict {
	v := Verdict{Name: Commit}
	s := c.failing
	for i := range s.databases {
		d := &s.databases[i]
		if d.kind == result.SamplerRedis {
			continue
		}
		waits := d.waitLog
		if ramp(d.waitLog, 0.3, 0.8) == 0 && d.fsyncs >= syncsMin && !(d.fsyncs < 0.1*d.commits) {
			waits = highest(d.waitLog, d.waitIO)
		}
		score := ramp(waits, 0.3, 0.8) * ramp(waits/max(d.active, 1), 0.25, 0.5)
		if !(highest(d.waitLog, d.waitIO) >= 0) { // MySQL does not say what sessions wait for
			score = 0.8 * ramp(d.fsyncs, syncsMin, 3*syncsMin) * c.pressure(func(s *step) float64 { return s.ioPressure(d.host) }, span{0.25, 0.6})
		}
		score *= s.roomOr(0.8) * c.databaseRoom(d, 0.8)
		if score <= v.Score {
			continue
		}
		v.Score = score
		v.Sentence = fmt.Sprintf("%s waits for the disk %s: %s commits and %s fsyncs of its log%s.",
			d.name, c.at(), sheet.Rate(d.commits), sheet.Rate(d.fsyncs), s.databaseSpare(d))
		v.Evidence = append(c.sessionFigures(d),
			c.databaseFigure(d, "commits", sheet.UnitRate, func(d *database) float64 { return d.commits }),
			c.databaseFigure(d, "fsyncs", sheet.UnitRate, func(d *database) float64 { return d.fsyncs }), c.ioFigure(d.host))
		v.Evidence = append(v.Evidence, c.processesUsed()...)
		v.Advice = "Put more records into one transaction (group commit), let several sessions commit at once, or use a faster disk. " +
			"synchronous_commit=off loses the last commits in a crash."
	}
	if len(s.databases) == 0 && v.Score == 0 {
		waited := func(s *step) float64 {
			return s.hostsHighest(func(u *result.HostUsage) *float64 { return u.PSIIOSome })
		}
		v.Score = 0.8 * s.room() * c.pressure(waited, span{0.25, 0.6})
		v.Sentence = fmt.Sprintf("Some program waits for the disk %s of the time %s%s: the service writes and syncs for each request.",
			sheet.Share(waited(s)), c.at(), s.spare())
		v.Evidence = append([]Figure{c.figure("time in which a program waited for a disk", sheet.UnitShare, waited)}, c.processesUsed()...)
		v.Advice = "Sync once for many requests (group commit), or use a faster disk. --watch-db shows whether it is the database that syncs."
	}
	return v
}

// databaseSpare ends a clause as spare does, for a database.
func (s *step) databaseSpare(d *database) string {
	if s.serverOf(d) == nil {
		return "; its CPU was not watched"
	}
	return ", with CPU to spare"
}

// databaseReads: most of the sessions that run a statement read from a disk, and no log is written.
func (c *comparison) databaseReads() Verdict {
	v := Verdict{Name: Memory}
	if c.commit().Score >= mentioned {
		return Verdict{}
	}
	for i := range c.failing.databases {
		d := &c.failing.databases[i]
		reads := d.waitIO - highest(d.waitLog, 0)
		score := 0.8 * c.failing.roomOr(0.8) * c.databaseRoom(d, 0.8) * ramp(reads, 0.4, 0.9) * ramp(reads/max(d.active, 1), 0.25, 0.5)
		if score <= v.Score {
			continue
		}
		v.Score = score
		v.Sentence = fmt.Sprintf("%s of %s running statements of %s wait for a disk %s, and not for the log: they read what does not fit "+
			"into memory.",
			sheet.Number(d.waitIO), sheet.Number(d.active), d.name, c.at()) + d.top(false).sentence(false)
		v.Evidence = append(append(c.sessionFigures(d), c.statementFigures(d, d.top(false))...), c.ioFigure(d.host))
		v.Advice = "EXPLAIN (ANALYZE, BUFFERS) the statement: look for a missing index or too many rows read. Otherwise give the database " +
			"more memory for its cache."
	}
	return v
}

// databaseSessions: most of the statements that run are on a CPU or wait for one, of a database whose CPU was not watched.
func (c *comparison) databaseSessions() Verdict {
	v := Verdict{Name: DatabaseCPU}
	for i := range c.failing.databases {
		d := &c.failing.databases[i]
		score := undecided * c.failing.roomOr(0.8) * onCPU(d) * ramp(d.waitCPU, 0.8, 1.6)
		if c.failing.serverOf(d) != nil || score <= v.Score {
			continue
		}
		v.Score = score
		v.Sentence = fmt.Sprintf("%s of %s running statements of %s compute or wait for a CPU %s; its CPU was not watched.",
			sheet.Number(d.waitCPU), sheet.Number(d.active), d.name, c.at()) + d.top(false).sentence(false)
		v.Evidence = append(c.sessionFigures(d), c.statementFigures(d, d.top(false))...)
		v.Advice = "Watch the process of the database (--watch db=:5432), on its own host, to see whether it has CPU left."
	}
	return v
}

// onCPU is how surely the running statements of a database compute, 0 to 1.
func onCPU(d *database) float64 { return ramp(d.waitCPU/d.active, 0.4, 0.8) }

// ioPressure is the share of the time in which some program of a host waited for a disk.
func (s *step) ioPressure(host string) float64 { return value(s.hostUsage(host).PSIIOSome) }

func (c *comparison) ioFigure(host string) Figure {
	return c.figure("time in which a program waited for a disk", sheet.UnitShare, func(s *step) float64 { return s.ioPressure(host) })
}

// databasePool: all connections to the database are taken, there are no more than before, and the database itself has room.
func (c *comparison) databasePool() Verdict {
	v := Verdict{Name: DatabasePool}
	s := c.failing
	for i := range s.databases {
		d := &s.databases[i]
		before := c.passing.findDatabase(d).connections
		if math.IsNaN(before) {
			before = c.lightest.findDatabase(d).connections
		}
		if d.kind == result.SamplerRedis || d.connections > 1.1*before+1 || d.connections < 1 {
			continue
		}
		queue := ramp(s.inFlight/d.held, 1.05, 1.4)
		if s.load == nil && d.connections >= 2 { // nothing shows that a request waits
			queue = undecided
		}
		room := c.databaseRoom(d, undecided)
		if s.serverOf(d) == nil {
			room *= 1 - onCPU(d)
		}
		score := queue * s.roomOr(0.8) * room * ramp(d.held/d.connections, 0.6, 0.85) * (1 - 0.6*max(c.databaseLock().Score, c.commit().Score))
		if s.load != nil && (c.lightest == nil || c.lightest.load == s.load) && c.passing == nil { // nothing shows that they do not grow
			score = min(score, undecided)
		}
		if score <= v.Score {
			continue
		}
		v.Score = score
		spare := ", while the database has CPU to spare"
		if s.serverOf(d) == nil {
			spare = " (its CPU was not watched)"
		}
		v.Sentence = fmt.Sprintf("The service has %s connections to %s, and on average %s of them are taken %s%s: "+
			"requests wait for a connection.",
			sheet.Number(d.connections), d.name, sheet.Number(d.held), c.at(), spare)
		v.Sentence += d.top(false).sentence(false)
		v.Evidence = append(append(c.sessionFigures(d), c.statementFigures(d, d.top(false))...), c.processesUsed()...)
		v.Advice = "Make the pool larger, step by step, as long as the database has CPU. Or hold a connection for a shorter time: no other " +
			"work between BEGIN and COMMIT, and cheaper statements."
	}
	return v
}

// sessionFigures are what the sessions of a database do.
func (c *comparison) sessionFigures(d *database) []Figure {
	return []Figure{
		c.databaseFigure(d, "connections", "", func(d *database) float64 { return d.connections }),
		c.databaseFigure(d, "connections taken", "", func(d *database) float64 { return d.held }),
		c.databaseFigure(d, "running statements", "", func(d *database) float64 { return d.active }),
		c.databaseFigure(d, "waiting for a lock", "", func(d *database) float64 { return d.waitLock }),
		c.databaseFigure(d, "waiting for the log", "", func(d *database) float64 { return d.waitLog }),
		c.databaseFigure(d, "waiting for a disk", "", func(d *database) float64 { return d.waitIO }),
		c.databaseFigure(d, "running or ready to", "", func(d *database) float64 { return d.waitCPU }),
	}
}
