package diagnose

import (
	"fmt"
	"math"
	"slices"

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
	u := s.host(d.Host)
	cores := u.Value(result.Cores)
	busy := 1 - u.Value(result.IdleShare) - u.Value(result.IOWaitShare)
	return unknown * (1 - min(ramp(d.Value(result.WaitCPU), 0.7*cores, cores), s.full().of(busy)))
}

// serverOf returns the watched process of a database, nil if there is none.
func (s *step) serverOf(d *database) *process {
	for _, p := range s.processes {
		if p.Host == d.Host && p.role == result.RoleDatabase {
			return p
		}
	}
	return nil
}

// databaseLock: most of the sessions that run a statement wait for a lock of another session.
func (c *comparison) databaseLock() Verdict {
	return worst(c.failing.databases, func(d *database) Verdict {
		waiting, active := d.Value(result.WaitLock), d.Value(result.ConnectionsActive)
		return Verdict{
			Name:  DatabaseLock,
			Score: c.failing.roomOr(0.8) * c.databaseRoom(d, 0.8) * ramp(waiting, 0.4, 0.9) * ramp(waiting/max(active, 1), 0.25, 0.5),
			Sentence: fmt.Sprintf("%s of %s running statements of %s wait for a lock that another session holds %s.",
				sheet.Number(waiting), sheet.Number(active), d.Name, c.at()) + d.top(true).sentence(true),
			Evidence: slices.Concat(c.sessionFigures(d), c.statementFigures(d, d.top(true)), c.processesUsed()),
			Advice: "Find the row or table that all transactions change, and change it less often (one statement for many records, several " +
				"rows added up when read), or as the last statement of a shorter transaction.",
		}
	})
}

// syncsMin is the number of fsyncs per second from which commits may wait for them.
const syncsMin = 10

// commit: the database waits for the disk, above all for its log, with CPU to spare.
func (c *comparison) commit() Verdict {
	s := c.failing
	if len(s.databases) > 0 {
		return worst(s.databases, c.commitOf)
	}
	waited := func(s *step) float64 { return s.hostsHighest(result.PSIIOSome) }
	return Verdict{
		Name: Commit, Score: 0.8 * s.room() * c.pressure(waited, span{0.25, 0.6}),
		Sentence: fmt.Sprintf("Some program waits for the disk %s of the time %s%s: the service writes and syncs for each request.",
			sheet.Share(waited(s)), c.at(), s.spare()),
		Evidence: append([]Figure{c.figure("time in which a program waited for a disk", sheet.UnitShare, waited)}, c.processesUsed()...),
		Advice:   "Sync once for many requests (group commit), or use a faster disk. --watch-db shows whether it is the database that syncs.",
	}
}

// commitOf is the verdict on one database.
func (c *comparison) commitOf(d *database) Verdict {
	if d.Sampler == result.SamplerRedis {
		return Verdict{}
	}
	s := c.failing
	commits, fsyncs := d.Value(result.Commits), d.Value(result.Fsyncs)
	waits, either := d.Value(result.WaitLog), highest(d.Value(result.WaitLog), d.Value(result.WaitIO))
	if ramp(waits, 0.3, 0.8) == 0 && fsyncs >= syncsMin && !(fsyncs < 0.1*commits) {
		waits = either
	}
	score := ramp(waits, 0.3, 0.8) * ramp(waits/max(d.Value(result.ConnectionsActive), 1), 0.25, 0.5)
	if !(either >= 0) || d.Sampler == result.SamplerMySQL && score == 0 { // MySQL says of commits only what they wait for
		pressure := c.pressure(func(s *step) float64 { return s.host(d.Host).Value(result.PSIIOSome) }, span{0.25, 0.6})
		score = 0.8 * ramp(fsyncs, syncsMin, 3*syncsMin) * pressure
	}
	spare := ", with CPU to spare"
	if s.serverOf(d) == nil {
		spare = "; its CPU was not watched"
	}
	return Verdict{
		Name: Commit, Score: score * (s.roomOr(0.8) * c.databaseRoom(d, 0.8)),
		Sentence: fmt.Sprintf("%s waits for the disk %s: %s commits and %s fsyncs of its log%s.",
			d.Name, c.at(), sheet.Rate(commits), sheet.Rate(fsyncs), spare),
		Evidence: slices.Concat(c.sessionFigures(d), c.usageFigures(d.SubjectUsage, result.Commits, result.Fsyncs), c.ioFigures(d.Host),
			c.processesUsed()),
		Advice: "Put more records into one transaction (group commit), let several sessions commit at once, or use a faster disk. " +
			"synchronous_commit=off loses the last commits in a crash.",
	}
}

// databaseReads: most of the sessions that run a statement read from a disk, and no log is written.
func (c *comparison) databaseReads() Verdict {
	if c.commit().Score >= mentioned {
		return Verdict{}
	}
	return worst(c.failing.databases, func(d *database) Verdict {
		waiting, active := d.Value(result.WaitIO), d.Value(result.ConnectionsActive)
		reads := waiting - highest(d.Value(result.WaitLog), 0)
		return Verdict{
			Name:  Memory,
			Score: 0.8 * c.failing.roomOr(0.8) * c.databaseRoom(d, 0.8) * ramp(reads, 0.4, 0.9) * ramp(reads/max(active, 1), 0.25, 0.5),
			Sentence: fmt.Sprintf("%s of %s running statements of %s wait for a disk %s, and not for the log: they read what does not fit "+
				"into memory.", sheet.Number(waiting), sheet.Number(active), d.Name, c.at()) + d.top(false).sentence(false),
			Evidence: slices.Concat(c.sessionFigures(d), c.statementFigures(d, d.top(false)), c.ioFigures(d.Host)),
			Advice: "EXPLAIN (ANALYZE, BUFFERS) the statement: look for a missing index or too many rows read. Otherwise give the database " +
				"more memory for its cache.",
		}
	})
}

// databaseSessions: most of the statements that run are on a CPU or wait for one, of a database whose CPU was not watched.
func (c *comparison) databaseSessions() Verdict {
	return worst(c.failing.databases, func(d *database) Verdict {
		if c.failing.serverOf(d) != nil {
			return Verdict{}
		}
		return Verdict{
			Name: DatabaseCPU, Score: undecided * c.failing.roomOr(0.8) * onCPU(d) * ramp(d.Value(result.WaitCPU), 0.8, 1.6),
			Sentence: fmt.Sprintf("%s of %s running statements of %s compute or wait for a CPU %s; its CPU was not watched.",
				sheet.Number(d.Value(result.WaitCPU)), sheet.Number(d.Value(result.ConnectionsActive)), d.Name, c.at()) +
				d.top(false).sentence(false),
			Evidence: append(c.sessionFigures(d), c.statementFigures(d, d.top(false))...),
			Advice:   "Watch the process of the database (--watch db=:5432), on its own host, to see whether it has CPU left.",
		}
	})
}

// onCPU is how surely the running statements of a database compute, 0 to 1.
func onCPU(d *database) float64 {
	return ramp(d.Value(result.WaitCPU)/d.Value(result.ConnectionsActive), 0.4, 0.8)
}

func (c *comparison) ioFigures(host string) []Figure {
	return c.usageFigures(c.failing.host(host), result.PSIIOSome)
}

// databasePool: all connections to the database are taken, there are no more than before, and the database itself has room.
func (c *comparison) databasePool() Verdict { return worst(c.failing.databases, c.poolOf) }

// poolOf is the verdict on the connections to one database.
func (c *comparison) poolOf(d *database) Verdict {
	s := c.failing
	connections, taken := d.Value(result.ConnectionsMax), d.Value(result.ConnectionsTaken)
	before := c.passing.find(d.SubjectUsage).Value(result.ConnectionsMax)
	if math.IsNaN(before) {
		before = c.lightest.find(d.SubjectUsage).Value(result.ConnectionsMax)
	}
	if d.Sampler == result.SamplerRedis || connections > 1.1*before+1 || connections < 1 {
		return Verdict{}
	}
	queue := ramp(s.inFlight/taken, 1.05, 1.4)
	if s.load == nil && connections >= 2 { // nothing shows that a request waits
		queue = undecided
	}
	room, spare := c.databaseRoom(d, undecided), ", while the database has CPU to spare"
	if s.serverOf(d) == nil {
		room, spare = room*(1-onCPU(d)), " (its CPU was not watched)"
	}
	score := queue * s.roomOr(0.8) * room * ramp(taken/connections, 0.6, 0.85) * (1 - 0.6*max(c.databaseLock().Score, c.commit().Score))
	if s.load != nil && (c.lightest == nil || c.lightest.load == s.load) && c.passing == nil { // nothing shows that they do not grow
		score = min(score, undecided)
	}
	return Verdict{
		Name: DatabasePool, Score: score,
		Sentence: fmt.Sprintf("The service has %s connections to %s, and on average %s of them are taken %s%s: requests wait for a connection.",
			sheet.Number(connections), d.Name, sheet.Number(taken), c.at(), spare) + d.top(false).sentence(false),
		Evidence: slices.Concat(c.sessionFigures(d), c.statementFigures(d, d.top(false)), c.processesUsed()),
		Advice: "Make the pool larger, step by step, as long as the database has CPU. Or hold a connection for a shorter time: no other " +
			"work between BEGIN and COMMIT, and cheaper statements.",
	}
}

// sessionFigures are what the sessions of a database do.
func (c *comparison) sessionFigures(d *database) []Figure {
	return c.usageFigures(d.SubjectUsage, result.ConnectionsMax, result.ConnectionsTaken, result.ConnectionsActive, result.WaitLock,
		result.WaitLog, result.WaitIO, result.WaitCPU)
}
