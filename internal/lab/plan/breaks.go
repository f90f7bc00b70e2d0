package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// What takes over when a resource is used up.
const (
	nextHosts  = "more hosts behind a load balancer such as nginx, HAProxy or Envoy, if the application keeps no state of its own"
	nextReads  = "read replicas of PostgreSQL or MySQL, or a cache in Redis; first the indexes: spillway doctor --query"
	nextWrites = "several databases: partitioning with Citus (PostgreSQL) or Vitess (MySQL), or a distributed one such as CockroachDB, " +
		"TiDB or YugabyteDB"
	nextCommits = "more records per transaction; then a log such as Apache Kafka or Redpanda in front of the database, or partitioning " +
		"with Citus or Vitess"
	nextRedis    = "Redis Cluster or Valkey Cluster, replicas for reads, or client-side caching"
	nextSessions = "a pooler: PgBouncer or PgCat for PostgreSQL, ProxySQL for MySQL"
	nextPorts    = "connections that are kept open to the target; otherwise more source addresses (proxy_bind in nginx, source in " +
		"HAProxy), a wider net.ipv4.ip_local_port_range, or net.ipv4.tcp_tw_reuse=1"
	nextFiles   = "a higher limit of open files (LimitNOFILE, ulimit -n)"
	nextNetwork = "compression and a CDN such as Cloudflare, Fastly or Amazon CloudFront, or a faster link"
	nextShared  = "more processes of it, or more hosts"
)

// assumedLink is the payload of a link of 1 Gbit/s in bytes per second, in one direction: Ethernet, IP and TCP headers take 5 %.
const assumedLink = 1e9 / 8 * 0.95

// A Break is what is used up at a rate.
type Break struct {
	RateHz float64 `json:"rate_hz"`
	What   string  `json:"what"`
	// Ground is "slo" (measured: the SLO was met up to here), "ceiling" (the utilization law), "seen" (sessions
	// waited, and nothing higher was measured) or "assumed".
	Ground string `json:"ground"`
	Next   string `json:"next"` // what takes over
}

// The grounds of a Break.
const (
	GroundSLO     = "slo"
	GroundCeiling = "ceiling"
	GroundSeen    = "seen"
	GroundAssumed = "assumed"
)

func (b *builder) breaksAt(hz float64, ground, next, format string, args ...any) {
	if math.IsNaN(hz) || math.IsInf(hz, 0) {
		return // of a damaged file
	}
	b.plan.Breaks = append(b.plan.Breaks, Break{RateHz: hz, What: fmt.Sprintf(format, args...), Ground: ground, Next: next})
}

// breaks lists what is used up as the load grows, with the hosts of the plan and one of everything shared, as measured.
func (b *builder) breaks() {
	n := b.plan.hosts
	for _, p := range b.pools {
		b.breaksAt(n*p.rate(), GroundSLO, nextHosts, "CPU of %s on %s of %s: %s busy when the SLO was met", p.subject(), sheet.Plural(n, "host"),
			sheet.Plural(p.cores, "core"), sheet.Share(p.used))
	}
	for _, c := range b.basis.ceilings {
		switch {
		case c.Resource == Descriptors && b.role(c) == result.RoleApplication:
			b.breaksAt(n*c.RateHz, GroundCeiling, nextFiles, "open files of %s on %s of %s", c.Subject, sheet.Plural(n, "host"),
				sheet.Number(c.Capacity))
		case c.Resource == Ports:
			b.breaksAt(n*c.RateHz, GroundAssumed, nextPorts, "%s local ports on each of %s, if the application closes first",
				sheet.Number(c.Capacity),
				sheet.Plural(n, "host"))
		case b.isShared(c):
			b.breaksAt(c.RateHz, GroundCeiling, b.next(c), "%s", c.Sentence())
		}
	}
	for _, d := range b.databases() {
		b.databaseBreaks(d)
	}
	t := &b.basis.step.Total
	if bytes := float64(max(t.BytesIn, t.BytesOut)) / float64(t.Completed); bytes > 0 {
		b.breaksAt(assumedLink/bytes, GroundAssumed, nextNetwork, "a link of 1 Gbit/s, with %s per request in the busier direction",
			sheet.Size(bytes))
	}
	slices.SortStableFunc(b.plan.Breaks, func(x, y Break) int { return cmp.Compare(x.RateHz, y.RateHz) })
}

// next is what takes over from something shared.
func (b *builder) next(c *Ceiling) string {
	switch {
	case c.Resource == RedisThread || b.role(c) == result.RoleRedis && c.Resource == ProcessCPU:
		return nextRedis
	case c.Resource == Sessions:
		return nextSessions
	case b.role(c) == roleShared:
		return nextShared
	}
	for _, d := range b.databases() {
		if writes(d) {
			return nextWrites
		}
	}
	return nextReads
}

// connectionHosts is how many application hosts the connections of a database last for, 0 if that is not known.
func connectionHosts(d *result.SubjectUsage) float64 {
	each, limit := d.Value(result.ConnectionsMax), d.Value(result.ConnectionsLimit)
	if !(each >= 1) || !(limit >= each) {
		return 0
	}
	return math.Floor(limit / each)
}

// connectionsUsed says how many connections so many application hosts use.
func connectionsUsed(d *result.SubjectUsage, hosts float64) string {
	each := d.Value(result.ConnectionsMax)
	return fmt.Sprintf("%s of %s connections are used by %s with up to %s each", sheet.Number(hosts*each),
		sheet.Number(d.Value(result.ConnectionsLimit)), sheet.Plural(hosts, "application host"), sheet.Number(each))
}

// databaseBreaks adds the connections of a database, which grow with the hosts, and the commits that were seen.
func (b *builder) databaseBreaks(d *result.SubjectUsage) {
	if hosts := connectionHosts(d); hosts >= 1 {
		b.breaksAt(hosts*b.rate.Value, GroundCeiling, nextSessions, "%s", connectionsUsed(d, hosts))
	}
	commits, each := b.highest(d, result.Commits), d.Value(result.CommitsPerRequest)
	waits := d.Value(result.BusiestWaitMean) >= 1 && slices.Contains([]string{"io", "wal", "lwlock"}, d.BusiestWait) // mostly for a commit
	if commits > 0 && each > 0 && writes(d) && waits {
		b.breaksAt(commits/each, GroundSeen, nextCommits, "%s: %s commits/s, while %s sessions waited for %s", d.Name, sheet.Number(commits),
			sheet.Number(d.Value(result.BusiestWaitMean)), d.BusiestWait)
	}
}

// ports adds the local ports and source addresses of the hosts that open connections.
func (b *builder) ports() {
	for _, c := range b.basis.of(Ports) {
		f := b.demand(c, "local ports held per request")
		f.Name, f.Unit = fmt.Sprintf("connections opened per request x %d s", TimeWait), sheet.UnitSeconds
		l := Line{Name: "local ports to backends", Unit: "ports", Need: b.need(f), Figures: []Figure{f}}
		per := l.Need.Value / b.plan.hosts
		l.Formula = fmt.Sprintf("%s x %s connections x %d s = %s; per host %s of %s: %s for each backend address", b.times(),
			sheet.Number(c.Demand/TimeWait), TimeWait, whole(l.Need.Value),
			whole(per), sheet.Number(c.Capacity), sheet.Plural(math.Ceil(per/c.Capacity), "source address"))
		l.Note = "If the application closes first, which was not measured. Connections that are kept open need none of this."
		b.add(l)
	}
	if b.plan.Connections != Short {
		return
	}
	m := &b.basis.source.Run.Header.Machine
	ports := float64(m.PortHigh - m.PortLow + 1)
	if m.PortHigh <= m.PortLow || m.PortLow <= 0 {
		return
	}
	f := b.figure("connections per request", "count", func(o *observation) float64 {
		return float64(o.step.Total.Connects) / float64(o.step.Total.Completed)
	})
	l := Line{Name: "local ports of a proxy in front", Unit: "ports", Figures: []Figure{f}, Need: b.need(f)}
	l.Need = Estimate{l.Need.Value * TimeWait, l.Need.Low * TimeWait, l.Need.High * TimeWait}
	addresses := math.Ceil(l.Need.Value / ports / b.plan.hosts)
	l.Formula = fmt.Sprintf("%s x %s connections x %d s = %s; / %s ports / %s = %s", b.times(), sheet.Number(f.Value), TimeWait,
		whole(l.Need.Value), sheet.Number(ports),
		sheet.Plural(b.plan.hosts, "application host"), sheet.Plural(addresses, "source address"))
	l.Note = "If a proxy opens a connection per request and closes first. The range is that of the load generator's host. With " +
		"keep-alive to the application: " + whole(b.planned()*b.basis.step.Total.Little.ServiceMean) + " ports."
	b.add(l)
}

// notMeasured lists what the plan does not rest on.
func (b *builder) notMeasured() {
	missing := func(format string, args ...any) {
		b.plan.NotMeasured = append(b.plan.NotMeasured, fmt.Sprintf(format, args...))
	}
	if b.open {
		missing("a rate that misses the SLO: more than %s per host may be possible; 'spillway peak' finds it", sheet.Rate(b.rate.Value))
	}
	if len(b.databases()) == 0 {
		missing("a database: none was watched (--watch-db postgres://…)")
	}
	if !slices.ContainsFunc(b.basis.of(ProcessCPU), func(c *Ceiling) bool { return b.role(c) == result.RoleDatabase }) {
		missing("CPU of a database: its process was not watched (--watch db=:5432)")
	}
	if len(b.basis.usage.Of(result.SamplerRedis)) == 0 {
		missing("Redis: none was watched (--watch-db redis://…)")
	}
	for _, c := range b.basis.of(RedisThread) {
		if c.Basis != redisThreadBasis {
			missing("the main thread of %s: this version tells the CPU of all threads only, which is more", c.Subject)
		}
	}
	b.missingPorts(missing)
	missing("more than one application host: the plan assumes equal shares, and that hosts do not slow each other down")
	missing("a load balancer or proxy in front, unless it was watched")
	missing("the network: its speed, and the CPU of its interrupts")
	beside := func(p *pool) bool {
		return slices.ContainsFunc(p.processes, func(c *Ceiling) bool { return c.Host == "" })
	}
	h := &b.basis.source.Run.Header
	if h.Machine.Host != "" && len(h.Hosts) == 0 && slices.ContainsFunc(b.pools, beside) { // without cores of its own
		missing("the application on a host of its own: the load generator ran on the same one")
	}
}

// missingPorts mentions hosts that open connections without holding ports.
func (b *builder) missingPorts(missing func(format string, args ...any)) {
	rate := b.basis.step.Total.Rate()
	for _, t := range b.basis.usage.Of(result.SamplerTCP) {
		if opens := opened(b.basis.step, t) / rate; opens >= opensMin && b.basis.ceiling(&Ceiling{Resource: Ports, Host: t.Host}) == nil {
			missing("ports of connections to backends (%s opened per request) over a network: in the runs few were held, because the other "+
				"side closed first or the loopback interface reuses them", sheet.Number(opens))
		}
	}
}
