package diagnose

import (
	"fmt"
	"math"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Shares that make system time the main cost.
const (
	systemShare = 0.5  // of the CPU time, in general
	churnShare  = 0.35 // with a connection per request
	churn       = 0.5  // connections per request from which connections are short
)

// Cores of a thread that has room left, and of one that has none.
const (
	threadFree = 0.70
	threadFull = 0.88
)

// oneThreadShare is the part of a process's CPU time that one thread uses which does nearly all of its work.
const oneThreadShare = 0.8

// cpu: the processes of the service use what CPU they may. The verdict is about the one that uses the most of it.
func (c *comparison) cpu() Verdict {
	p, use := c.failing.fullest()
	if p == nil {
		return Verdict{}
	}
	full, single := c.failing.full(), math.NaN()
	v := Verdict{Name: UserCPU, Score: ramp(use, full.low-0.1, full.high-0.07)}
	if one, busy := c.oneThread(); one != nil && ramp(busy, threadFree, threadFull) > v.Score {
		p, single, v.Score = one, busy, ramp(busy, threadFree, threadFull)
	}
	switch p.role {
	case result.RoleRedis:
		v.Name = RedisThread
	case result.RoleDatabase:
		v.Name = DatabaseCPU
	}
	if v.Name != UserCPU && math.IsNaN(single) && p.cores < 0.5*use*p.limit && !c.failing.ownQuota(p) {
		v.Name = UserCPU // others fill its cores
		if together, _ := c.failing.sharing(p); together < 0.9*use*p.limit {
			v.Score = min(v.Score, undecided) // and these are not watched
		}
	}
	connections := c.failing.sockets(p.Host).Value(result.PassiveOpensPerRequest)
	if v.Name == UserCPU && c.isSystem(p, connections) {
		v.Name = SystemCPU
	}
	v.Sentence, v.Advice = c.cpuWords(p, v.Name, single, connections)
	v.Evidence = c.cpuFigures(p)
	if v.Name == DatabaseCPU {
		for _, d := range c.failing.databases {
			v.Evidence = append(v.Evidence, c.statementFigures(d, d.top(false))...)
		}
	}
	return v
}

// oneThread returns the process of the service whose one working thread is the busiest, and the cores of that thread; nil if there is
// none. Its other threads use little.
func (c *comparison) oneThread() (busiest *process, cores float64) {
	for _, p := range c.failing.processes {
		thread := p.Value(result.BusiestThread)
		if p.role == result.RoleApplication && thread >= oneThreadShare*p.cores && thread > max(threadFree, cores) {
			busiest, cores = p, thread
		}
	}
	return busiest, cores
}

// isSystem reports whether a process spends its time in the kernel.
func (c *comparison) isSystem(p *process, connections float64) bool {
	_, share := p.split()
	return share >= systemShare || share >= churnShare && connections >= churn
}

// split is the shares of user and system time in the CPU time of a process.
func (p *process) split() (user, system float64) {
	user, system = p.Value(result.CPUUserCores), p.Value(result.CPUSystemCores)
	return user / (user + system), system / (user + system)
}

func (c *comparison) cpuFigures(p *process) []Figure {
	figures := c.usageFigures(p.SubjectUsage, result.CPUCores, result.CPULimit, result.CPUUserCores, result.CPUSystemCores,
		result.CPUPerRequest, result.RunQueueWait, result.BusiestThread, result.Throttled)
	return append(figures, c.usageFigures(c.failing.sockets(p.Host), result.PassiveOpensPerRequest)...)
}

// cpuWords are the sentence and the advice of a verdict on a process without CPU to spare.
func (c *comparison) cpuWords(p *process, name string, single, connections float64) (sentence, advice string) {
	used := fmt.Sprintf("%s uses %s of the %s that it may use %s", p.Name, sheet.Number(p.cores), sheet.Plural(p.limit, "core"), c.at())
	if user, system := p.split(); user >= 0 {
		used += fmt.Sprintf(" (%s user, %s system)", sheet.Share(user), sheet.Share(system))
	}
	rest := ", and nothing else is as full."
	together, _ := c.failing.sharing(p) // on the same CPUs, unless it is more than these were busy
	apart := c.failing.generatorCores+p.Value(result.CPUAllowed) <= c.failing.host("").Value(result.Cores)
	switch undivided := c.failing.share(p) == nil; {
	case p.cores < 0.8*p.limit && undivided && together-p.cores > 0.15*p.limit && together <= p.Value(result.CPUAllowedBusy)+0.05*p.limit:
		rest = fmt.Sprintf(", and the other watched processes use %s of the same CPUs.", sheet.Plural(together-p.cores, "core"))
	case p.cores < 0.8*p.limit && c.failing.generator > 0.15*p.limit && undivided && p.Host == "" && !apart:
		rest = fmt.Sprintf(", and the load generator uses %s of the same CPUs: --pin gives each its own.",
			sheet.Plural(c.failing.generator, "core"))
	case p.cores < 0.8*p.limit:
		rest = ", and the other programs on these CPUs use the rest."
	}
	more := "Make a request cheaper (profile " + p.Name + "), give it more CPU, or add a second host."
	switch {
	case p.Value(result.Throttled) > 0.05:
		return used + fmt.Sprintf("; its quota stopped it for at least %s of the time.", sheet.Share(p.Value(result.Throttled))),
			"Raise the CPU quota of " + p.Name + ", or make a request cheaper."
	case p.limit < p.Value(result.CPUAllowed) && p.cores >= 0.9*p.limit && name != RedisThread && name != DatabaseCPU:
		return used + ", which is its quota.", "Raise the CPU quota of " + p.Name + ", or make a request cheaper."
	case name == RedisThread:
		return used + ", on the one thread that runs commands.", "Find the slow commands (SLOWLOG GET, INFO commandstats), use cheaper " +
			"ones, or divide the keys among several servers."
	case name == DatabaseCPU && c.isSystem(p, 0) && connections >= churn:
		return used + fmt.Sprintf("; connections are opened for each request (%s per request).", sheet.Number(connections)),
			"Keep connections to " + p.Name + " open: a pool in the program, or a pooler in front of it."
	case name == DatabaseCPU:
		return used + c.databaseWords(), "Find the statement that uses the CPU of " + p.Name +
			", and EXPLAIN it: look for a missing index, too many rows read, or work that a cache can save."
	case single > 0:
		return fmt.Sprintf("One thread of %s uses %s %s, and its other threads %s: more CPUs do not help it.", p.Name,
				sheet.Plural(single, "core"), c.at(), sheet.Plural(max(p.cores-single, 0), "core")),
			"Run one process per core (a cluster of workers), or make a request cheaper (profile " + p.Name + ")."
	case name == SystemCPU && connections >= churn:
		return used + fmt.Sprintf("; with %s new connections per request, the kernel opens and closes connections.", sheet.Number(connections)),
			"Keep connections open between requests (keep-alive in the clients and in " + p.Name + ")."
	case name == SystemCPU:
		return used + ", most of it in the kernel.", "Find the system calls (strace -c -f -p PID, perf trace -s): larger reads and writes, " +
			"fewer wake-ups and fewer copies."
	}
	return used + rest, more
}

// databaseWords says how many sessions run on a database's CPU, and in which statement, "" if that is not known.
func (c *comparison) databaseWords() string {
	for _, d := range c.failing.databases {
		text := ""
		if running := d.Value(result.WaitCPU); running > 0 {
			text = fmt.Sprintf("; %s of its sessions run or are ready to", sheet.Number(running))
		}
		if top := d.top(false); top != nil {
			return text + "." + top.sentence(false)
		}
		if text != "" {
			return text + "."
		}
	}
	return "."
}

// redisThread: the one thread of Redis that runs commands has no room, whatever the other CPUs do.
func (c *comparison) redisThread() Verdict {
	v := worst(c.failing.databases, func(d *database) Verdict {
		if d.Sampler != result.SamplerRedis {
			return Verdict{}
		}
		thread, each := d.Value(result.MainThread), ""
		if commands := d.Value(result.Commands); commands > 0 {
			each = fmt.Sprintf(": a command takes it %s", sheet.Duration(thread/commands))
		}
		return Verdict{
			Name: RedisThread, Score: ramp(thread, threadFree, threadFull),
			Sentence: fmt.Sprintf("The thread of %s that runs commands uses %s %s%s.", d.Name, sheet.Plural(thread, "core"), c.at(), each),
			Evidence: c.usageFigures(d.SubjectUsage, result.MainThread, result.Commands, result.CPUCores),
		}
	})
	for _, p := range c.failing.processes {
		thread := p.Value(result.BusiestThread)
		if score := ramp(thread, threadFree, threadFull); p.role == result.RoleRedis && score > v.Score {
			v = Verdict{
				Name: RedisThread, Score: score, Evidence: c.usageFigures(p.SubjectUsage, result.BusiestThread, result.CPUCores),
				Sentence: fmt.Sprintf("One thread of %s uses %s %s, and Redis runs commands on one thread.", p.Name, sheet.Plural(thread, "core"),
					c.at()),
			}
		}
	}
	v.Advice = "Find the slow commands (SLOWLOG GET, INFO commandstats), use cheaper ones, keep hot values in the service, or divide the " +
		"keys among several servers."
	return v
}
