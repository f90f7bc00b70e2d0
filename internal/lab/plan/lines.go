package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A builder makes the lines of a plan from the observations.
type builder struct {
	plan  *Plan
	all   []*observation // that tell costs
	every []*observation // besides, VALID steps without samples, which only tell whether they met the SLO
	basis *observation
	pools []*pool // of the application

	rate Estimate // that met the SLO: of the basis, from the highest below all that missed it to the lowest above it that did
	open bool     // no rate above missed it
}

// A pool is the cores that processes of the application share on one host.
type pool struct {
	name      string
	cores     float64
	processes []*Ceiling // of the application
	used      float64    // share, by the application
	others    float64    // share, by other watched processes, which the plan counts on their own
	demand    float64    // CPU seconds per request of the application
}

// rate is what one host with these cores takes: the cores that the application used when the SLO was met, over what a request needs.
func (p *pool) rate() float64 { return p.cores * p.used / p.demand }

func (p *pool) subject() string {
	names := make([]string, len(p.processes))
	for i := range p.processes {
		names[i] = p.processes[i].Subject
	}
	return strings.Join(names, " + ")
}

func (b *builder) build() error {
	b.operatingRate()
	if err := b.oneHost(); err != nil {
		return exit.UsageError(err)
	}
	if err := b.givenCores(); err != nil {
		return exit.UsageError(err)
	}
	b.findPools()
	if len(b.pools) == 0 {
		return exit.NothingValidError(errors.New("the runs have no samples of the CPU of the application and its cores: run load with " +
			"--watch app=:PORT, or name its cores with --cpus app=N"))
	}
	b.scale()
	if c := b.plan.Capacity; !(b.plan.hosts >= 1 && b.plan.hosts <= hostsMax) || c != nil && !c.RateHz.finite() {
		return exit.NothingValidError(fmt.Errorf("the figures of %s make %g hosts: repeat the run, or plan for a lower rate", b.basis.source.File,
			b.plan.hosts))
	}
	b.extrapolation()
	for _, p := range b.pools {
		b.application(p)
	}
	b.memory()
	for _, c := range b.basis.ceilings {
		b.sharedCPU(c)
	}
	b.redisMemory()
	b.connections()
	b.ports()
	b.network()
	b.commits()
	b.breaks()
	b.notMeasured()
	return nil
}

// operatingRate sets the rate that met the SLO, and its interval.
func (b *builder) operatingRate() {
	b.rate = Estimate{b.basis.rate, b.basis.rate, b.basis.rate}
	found := searches(b.all, b.every)
	bracketed := slices.DeleteFunc(slices.Clone(found), func(s search) bool { return s.missed == nil })
	b.open = len(bracketed) == 0
	for _, s := range bracketed {
		b.rate.Low, b.rate.High = min(b.rate.Low, s.met.rate), max(b.rate.High, s.missed.offered)
	}
	missed, met := lowestMiss(b.every)
	if missed == nil || missed.offered > b.basis.offered {
		return
	}
	text := fmt.Sprintf("%s of %s missed the SLO (%s), below the rate of the plan, %s of %s", sheet.Rate(missed.offered), missed.source.File,
		missed.missed, sheet.Rate(b.rate.Value), b.basis.source.File)
	if met == nil {
		b.rate.Low = min(b.rate.Low, missed.rate)
		b.note("%s, and no lower rate met it: repeat the runs, from lower rates on.", text)
		return
	}
	b.rate.Low = min(b.rate.Low, met.rate)
	b.note("%s: only up to %s no rate missed it; repeat the runs.", text, sheet.Rate(b.rate.Low))
}

func (b *builder) note(format string, args ...any) {
	b.plan.Notes = append(b.plan.Notes, fmt.Sprintf(format, args...))
}

// oneHost returns an error if a process of the application ran on several hosts: a plan multiplies one.
func (b *builder) oneHost() error {
	hosts := map[string]string{}
	for _, c := range b.basis.of(ProcessCPU) {
		if b.role(c) != result.RoleApplication {
			continue
		}
		if other, found := hosts[c.Subject]; found && other != c.Host {
			one, two := cmp.Or(other, generatorPool), cmp.Or(c.Host, generatorPool)
			return fmt.Errorf("%s watched %s on %s and on %s, and a plan multiplies one application host: measure one alone", b.basis.source.File,
				c.Subject, one, two)
		}
		hosts[c.Subject] = c.Host
	}
	return nil
}

// overGiven is how much more than the given cores a process may have used, for the quota of a period.
const overGiven = 1.1

// givenCores returns an error if a process used more cores than --cpus gives it.
func (b *builder) givenCores() error {
	for i := range b.all {
		for _, c := range b.all[i].of(ProcessCPU) {
			if given, found := b.plan.settings.CPUs[c.Subject]; found && c.Basis == givenBasis && c.Utilization > overGiven {
				return fmt.Errorf("--cpus %s=%g: it used %s in %s of %s: give the cores that it could use", c.Subject, given,
					sheet.Plural(c.Utilization*c.Capacity, "core"), b.all[i].step.Title(), b.all[i].source.File)
			}
		}
	}
	return nil
}

// findPools groups the processes of the basis by the cores that they share.
func (b *builder) findPools() {
	for _, c := range b.basis.of(ProcessCPU) {
		if b.role(c) != result.RoleApplication {
			continue
		}
		at := slices.IndexFunc(b.pools, func(p *pool) bool { return p.name == c.pool })
		if at < 0 {
			at = len(b.pools)
			b.pools = append(b.pools, &pool{name: c.pool, cores: c.Capacity})
		}
		b.pools[at].processes = append(b.pools[at].processes, c)
		b.pools[at].demand += c.Demand
	}
	for _, p := range b.pools {
		for _, c := range b.basis.of(ProcessCPU) {
			switch {
			case c.pool != p.name:
			case b.role(c) == result.RoleApplication:
				p.used += c.Utilization
			default:
				p.others += c.Utilization
			}
		}
	}
}

// role tells whether there is one of a process per application host.
func (b *builder) role(c *Ceiling) result.Role {
	if slices.Contains(b.plan.settings.Shared, c.Subject) {
		return roleShared
	}
	return b.basis.source.Run.Role(c.Host, c.Subject)
}

// scale sets the rate for the hosts, or the hosts for the rate.
func (b *builder) scale() {
	p := b.plan
	if p.settings.Hosts == 0 {
		for _, pool := range b.pools {
			p.hosts = max(p.hosts, b.hosts(pool).Value)
		}
		return
	}
	p.hosts = float64(p.settings.Hosts)
	limit := slices.MinFunc(b.pools, func(x, y *pool) int { return cmp.Compare(x.rate(), y.rate()) })
	one := limit.rate() / b.rate.Value
	c := &Capacity{
		Hosts: p.settings.Hosts, Binding: "CPU of " + limit.subject(),
		RateHz: Estimate{p.hosts * one * b.rate.Value, p.hosts * one * b.rate.Low, p.hosts * one * b.rate.High},
	}
	b.sharedLimits(c)
	c.WithHeadroomHz = c.RateHz.Value / (1 + p.Headroom)
	p.Capacity, p.RateHz = c, c.WithHeadroomHz
}

// hostsMax is beyond any number of hosts.
const hostsMax = 1e18

// farBeyond is from which multiple of the measured rate on a plan says that it extrapolates.
const farBeyond = 10

// extrapolation notes what a plan does not know of rates far from the measured ones.
func (b *builder) extrapolation() {
	if times := b.planned() / b.rate.Value; times >= farBeyond {
		b.note("The plan with its headroom is %s times the rate that was measured, %s: costs per request may change on the way; measure "+
			"again at a higher rate.", sheet.Number(math.Round(times)), sheet.Rate(b.rate.Value))
	}
	if b.figure("", "", func(*observation) float64 { return 0 }).Steps < 2 {
		b.note("The figures rest on one step alone, so that their intervals are not known: measure at several rates.")
	}
}

// sharedLimits lowers a capacity to what all application hosts share: no rate is above a ceiling, and below it the SLO is only known
// to be met up to the measured rate.
func (b *builder) sharedLimits(c *Capacity) {
	limit := func(hz, low float64, binding string) {
		if hz < c.RateHz.Value {
			c.Binding, c.RateHz.Value, c.RateHz.Low = binding, hz, min(c.RateHz.Low, low)
		}
		c.RateHz.High = max(c.RateHz.Value, min(c.RateHz.High, hz))
		c.RateHz.Low = min(c.RateHz.Low, c.RateHz.Value)
	}
	for _, d := range b.databases() {
		if hosts := connectionHosts(d); hosts >= 1 && hosts < float64(c.Hosts) {
			limit(hosts*b.rate.Value, hosts*b.rate.Low, connectionsUsed(d, hosts))
		}
	}
	for _, s := range b.basis.ceilings {
		if b.isShared(s) {
			limit(s.RateHz, b.rate.Low, s.Sentence()+", all busy; "+
				"latencies rise before that, and the SLO was measured only up to "+sheet.Rate(b.rate.Value))
		}
	}
	for _, s := range b.basis.ceilings {
		if used := c.RateHz.Value / s.RateHz; b.isShared(s) && used > max(s.Utilization, busyShared) && used < 1 {
			b.note("%s would be %s busy at %s, and was %s busy in the run: how its latency grows in between was not measured.",
				s.Subject, sheet.Share(used), sheet.Rate(c.RateHz.Value), sheet.Share(s.Utilization))
		}
	}
}

// busyShared is the utilization of something shared from which a plan that loads it more than the run did says so.
const busyShared = 0.7

// isShared reports whether a ceiling stays where it is when there are more application hosts.
func (b *builder) isShared(c *Ceiling) bool {
	switch c.Resource {
	case ProcessCPU:
		return b.role(c) != result.RoleApplication && !(b.role(c) == result.RoleRedis && len(b.basis.of(RedisThread)) > 0)
	case RedisThread, Sessions:
		return true
	}
	return false
}

// planned is the rate with its headroom.
func (b *builder) planned() float64 { return b.plan.RateHz * (1 + b.plan.Headroom) }

func (b *builder) times() string {
	return fmt.Sprintf("%s x %s", sheet.Rate(b.plan.RateHz), sheet.Number(1+b.plan.Headroom))
}

// hosts is how many hosts a pool needs.
func (b *builder) hosts(p *pool) Estimate {
	need := func(of float64) float64 {
		return max(1, math.Ceil(b.planned()/(p.rate()*of/b.rate.Value)-1e-9))
	}
	return Estimate{need(b.rate.Value), need(b.rate.High), need(b.rate.Low)}
}

// demand is the figure of a resource's demand: that of the basis, and its range.
func (b *builder) demand(c *Ceiling, name string) Figure {
	f := b.figure(name, sheet.UnitSeconds, func(o *observation) float64 {
		if other := o.ceiling(c); other != nil {
			return other.Demand
		}
		return math.NaN()
	})
	f.AtMost = c.AtLeast
	return f
}

// figure is a value of the basis and its range over the steps of an open loop with the same kind of connections and at least half
// of its rate. of is NaN for a step without it.
func (b *builder) figure(name, unit string, of func(*observation) float64) Figure {
	v := of(b.basis)
	f := Figure{Name: name, Unit: unit, Value: v, Low: v, High: v, File: b.basis.source.File, Step: b.basis.step.Title()}
	for _, o := range b.all {
		if !o.open || !o.cost || o.rate < b.basis.rate/2 || connectionsOf(o.step) != b.plan.Connections {
			continue
		}
		if other := of(o); !math.IsNaN(other) {
			f.Low, f.High, f.Steps = min(f.Low, other), max(f.High, other), f.Steps+1
		}
	}
	return f
}

// add adds a line, unless a figure of it is unknown, or a damaged file made it infinite.
func (b *builder) add(l Line) {
	known := l.Need.finite()
	for _, f := range l.Figures {
		known = known && (Estimate{f.Value, f.Low, f.High}).finite()
	}
	if known {
		b.plan.Lines = append(b.plan.Lines, l)
	}
}

// finite reports whether all figures are numbers.
func (e Estimate) finite() bool {
	return !slices.ContainsFunc([]float64{e.Value, e.Low, e.High}, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// Busy shares of cores: below the first, CPU did not decide; above the second, it may have.
const (
	lightLoad = 0.5
	fullLoad  = 0.8
)

// application adds the hosts that a pool needs.
func (b *builder) application(p *pool) {
	l := Line{Name: "application hosts", Subject: p.subject(), Unit: "hosts", Need: b.hosts(p)}
	for _, c := range p.processes {
		l.Figures = append(l.Figures, b.demand(c, "CPU per request of "+c.Subject))
	}
	used := b.figure("CPU of "+p.name+" in use when the SLO was met", sheet.UnitShare, func(o *observation) float64 {
		if !o.met {
			return math.NaN()
		}
		return o.used(p.name, p.processes)
	})
	l.Figures = append(l.Figures, used, Figure{
		Name: "rate that met the SLO", Unit: sheet.UnitRate, Value: b.rate.Value, Low: b.rate.Low, High: b.rate.High, Steps: 1,
		File: b.basis.source.File, Step: b.basis.step.Title(),
	})
	l.Formula = fmt.Sprintf("%s x %s CPU / %s busy = %s; %s of %s", b.times(), sheet.Duration(p.demand), sheet.Share(p.used),
		sheet.Plural(roundUp(b.planned()*p.demand/p.used), "core"), sheet.Plural(l.Need.Value, "host"), sheet.Plural(p.cores, "core"))
	l.Note = b.lightNote(p)
	b.add(l)
}

// lightNote tells why the operating point used only a part of the cores, "" if it used most of them.
func (b *builder) lightNote(p *pool) string {
	if p.others > 0.005 {
		return fmt.Sprintf("Other watched processes used %s of the same cores; the plan counts them on their own. That a host takes more "+
			"without them was not measured.", sheet.Share(p.others))
	}
	if p.used >= lightLoad {
		return ""
	}
	if b.open {
		return fmt.Sprintf("The runs used only %s of the cores of %s, so that fewer hosts may do: add runs at higher rates.", sheet.Share(p.used),
			p.subject())
	}
	for _, s := range searches(b.all, b.every) {
		if s.met == b.basis && s.missed != nil && s.missed.used(p.name, p.processes) >= fullLoad {
			return fmt.Sprintf("At the next rate, %s, %s used %s of the cores and missed the SLO: add a run at rates in between.",
				sheet.Rate(s.missed.offered), p.subject(), sheet.Share(s.missed.used(p.name, p.processes)))
		}
	}
	return fmt.Sprintf("Something else missed the SLO while %s used %s of the cores, so that fewer hosts may do: see what breaks first.",
		p.subject(), sheet.Share(p.used))
}

// memory adds the memory of the application's processes on one host.
func (b *builder) memory() {
	for _, u := range b.basis.usage.Of(result.SamplerProcess) {
		c := Ceiling{Resource: ProcessCPU, Host: u.Host, Subject: u.Name}
		if b.basis.ceiling(&c) == nil || b.role(&c) != result.RoleApplication {
			continue
		}
		f := b.usageFigure("resident memory of "+u.Name, sheet.UnitBytes, u, result.RSSMax)
		b.add(Line{
			Name: "memory of each application host", Subject: u.Name, Unit: sheet.UnitBytes, Need: Estimate{f.High, f.Low, f.High},
			Figures: []Figure{f},
			Formula: sheet.Size(f.High) + " were used at most",
		})
	}
}

// need is the planned rate times a figure.
func (b *builder) need(f Figure) Estimate {
	return Estimate{b.planned() * f.Value, b.planned() * f.Low, b.planned() * f.High}
}

// sharedCPU adds the cores of a process that all application hosts share, or of a Redis.
func (b *builder) sharedCPU(c *Ceiling) {
	if !b.isShared(c) || c.Resource == Sessions {
		return
	}
	f := b.demand(c, "CPU per request of "+c.Subject)
	l := Line{Name: "CPU of " + c.Subject, Subject: c.Subject, Unit: sheet.UnitCores, Need: b.need(f), Figures: []Figure{f}}
	l.Formula = fmt.Sprintf("%s x %s CPU = %s, all busy", b.times(), sheet.Duration(f.Value), sheet.Plural(roundUp(l.Need.Value), "core"))
	kind := b.role(c)
	switch {
	case c.Resource == RedisThread:
		l.Name, l.Unit = "Redis threads", "threads"
		f.Name = "CPU per request of the main thread of " + c.Subject
		l.Figures = []Figure{f}
		l.Formula = fmt.Sprintf("%s x %s CPU of the main thread = %s of one core", b.times(), sheet.Duration(f.Value), sheet.Share(l.Need.Value))
		if l.Need.Value > 1 {
			l.Note = fmt.Sprintf("One Redis is not enough: Redis Cluster with at least %s, if the keys spread evenly.",
				sheet.Plural(math.Ceil(l.Need.Value), "primary shard"))
		}
	case kind == result.RoleDatabase:
		l.Name = "database CPU"
	}
	if c.Resource == ProcessCPU && l.Need.Value > c.Capacity {
		l.Note = fmt.Sprintf("More than the %s on which it was measured; that it scales to more cores was not measured.",
			sheet.Plural(c.Capacity, "core"))
	}
	b.add(l)
}

func (b *builder) redisMemory() {
	for _, d := range b.basis.usage.Of(result.SamplerRedis) {
		f := b.usageFigure("memory of "+d.Name, sheet.UnitBytes, d, result.MemoryMax)
		b.add(Line{
			Name: "Redis memory", Subject: d.Name, Unit: sheet.UnitBytes, Need: Estimate{f.High, f.Low, f.High}, Figures: []Figure{f},
			Formula: sheet.Size(f.High) + " were used at most", Note: "Memory grows with the keys, not with the rate: multiply it by the users of " +
				"the target over those of the runs.",
		})
	}
}

// databases are those of the basis, without Redis.
func (b *builder) databases() []*result.SubjectUsage {
	return b.basis.usage.Of(result.SamplerPostgres, result.SamplerMySQL)
}

// usageFigure is a figure of a watched subject of the basis, and its range.
func (b *builder) usageFigure(name, unit string, u *result.SubjectUsage, f result.Figure) Figure {
	return b.figure(name, unit, func(o *observation) float64 {
		return o.usage.Find(u.Sampler, u.Host, u.Name).Value(f)
	})
}

// connections adds the requests in flight and the sessions of databases, by Little's law.
func (b *builder) connections() {
	service := func(o *observation) float64 {
		if !(o.step.Total.Little.ServiceMean > 0) {
			return math.NaN()
		}
		return o.step.Total.Little.ServiceMean
	}
	f := b.figure("mean service time", sheet.UnitSeconds, service)
	l := Line{Name: "requests in flight", Unit: "requests", Need: b.need(f), Figures: []Figure{f}}
	l.Formula = fmt.Sprintf("%s x %s = %s, %s per application host (Little's law)", b.times(), sheet.Duration(f.Value), whole(l.Need.Value),
		whole(l.Need.Value/b.plan.hosts))
	l.Note = "Each has a connection or stream. Idle keep-alive connections of clients come on top: one per client."
	if b.plan.Connections == Short {
		l.Note = "Each has a connection."
	}
	b.add(l)
	for _, c := range b.basis.of(Sessions) {
		f := b.demand(c, "busy time of a session of "+c.Subject+" per request")
		l := Line{Name: "busy database sessions", Subject: c.Subject, Unit: "sessions", Need: b.need(f), Figures: []Figure{f}}
		l.Formula = fmt.Sprintf("%s x %s = %s of %s", b.times(), sheet.Duration(f.Value), whole(l.Need.Value),
			sheet.Plural(c.Capacity, "connection"))
		b.add(l)
	}
	for _, d := range b.databases() {
		f := b.usageFigure("connections of "+d.Name, "connections", d, result.ConnectionsMax)
		l := Line{
			Name: "database connections", Subject: d.Name, Unit: "connections",
			Need: Estimate{b.plan.hosts * f.High, b.plan.hosts * f.Low, b.plan.hosts * f.High}, Figures: []Figure{f},
		}
		l.Formula = fmt.Sprintf("%s x %s at most", sheet.Plural(b.plan.hosts, "host"), sheet.Plural(f.High, "connection"))
		if limit := d.Value(result.ConnectionsLimit); l.Need.Value > limit {
			l.Note = fmt.Sprintf("More than the limit of %s: %s.", sheet.Number(limit), nextSessions)
		}
		b.add(l)
	}
}

// network adds the bytes per second.
func (b *builder) network() {
	bytes := func(o *observation) float64 {
		return float64(o.step.Total.BytesIn+o.step.Total.BytesOut) / float64(o.step.Total.Completed)
	}
	if v := bytes(b.basis); v > 0 {
		f := b.figure("payload per request, both directions", sheet.UnitBytes, bytes)
		l := Line{
			Name: "network", Unit: sheet.UnitBytesRate, Need: b.need(f), Figures: []Figure{f},
			Note: "Without headers of TCP, IP and Ethernet. TLS is included if the runs used it.",
		}
		l.Formula = fmt.Sprintf("%s x %s = %s/s (%s Mbit/s)", b.times(), sheet.Size(f.Value), sheet.Size(l.Need.Value),
			sheet.Number(l.Need.Value*8/1e6))
		b.add(l)
	}
}

// commits adds the commits and fsyncs per second of databases.
func (b *builder) commits() {
	for _, d := range b.databases() {
		for _, kind := range []struct {
			name       string
			each, rate result.Figure
		}{
			{"commits", result.CommitsPerRequest, result.Commits},
			{"fsyncs", result.FsyncsPerRequest, result.Fsyncs},
		} {
			v := d.Value(kind.each)
			if !(v >= 0.001) || kind.name == "commits" && !writes(d) {
				continue
			}
			f := b.usageFigure(kind.name+" of "+d.Name+" per request", "count", d, kind.each)
			l := Line{Name: kind.name + " of the database", Subject: d.Name, Unit: sheet.UnitRate, Need: b.need(f), Figures: []Figure{f}}
			l.Formula = fmt.Sprintf("%s x %s = %s", b.times(), sheet.Number(v), sheet.Rate(l.Need.Value))
			if seen := b.highest(d, kind.rate); l.Need.Value > seen {
				l.Note = fmt.Sprintf("Not measured beyond %s. Group commit lowers the number per request as the load grows.", sheet.Rate(seen))
			}
			b.add(l)
		}
	}
}

// writes reports whether requests change the database. PostgreSQL counts a commit per SELECT, too.
func writes(d *result.SubjectUsage) bool {
	return d.Value(result.FsyncsPerRequest) >= 0.001 || d.Value(result.WALPerRequest) >= 50
}

// highest is the highest value of a figure of a database in a VALID step.
func (b *builder) highest(d *result.SubjectUsage, f result.Figure) float64 {
	highest := 0.0
	for i := range b.all {
		if v := b.all[i].usage.Find(d.Sampler, d.Host, d.Name).Value(f); v > highest {
			highest = v
		}
	}
	return highest
}
