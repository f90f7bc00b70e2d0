package report

import (
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A grid divides the time axis of a run into cells of equal width, so that figures of different samplers can be stacked.
type grid struct {
	run   *run
	width float64
	end   float64
	x     numbers // the middle of each cell
}

// watchCharts show what was watched: one chart for each kind that has data, repeated for each host and database.
func (t *timeline) watchCharts() []chart {
	if len(t.run.watched) == 0 {
		return nil
	}
	g := &grid{run: t.run, width: t.width, end: t.end}
	for from := 0.0; from < t.end; from += t.width {
		g.x = append(g.x, (from+min(from+t.width, t.end))/2)
	}
	drafts := []draft{g.processCPU(t.bins), g.processWait()}
	for _, host := range g.run.hosts() {
		drafts = append(append(drafts, g.hostCPU(host), g.acceptQueue(host)), g.tcp(host)...)
	}
	for _, s := range g.run.watched {
		if result.Database(s.Sampler) {
			drafts = append(drafts, g.connections(s), g.throughput(s))
		}
	}
	var charts []chart
	for _, d := range drafts {
		if c, ok := d.chart(g.x, t.axis()); ok {
			charts = append(charts, c)
		}
	}
	return charts
}

// A draft is a chart of watched figures before it is known whether it has data.
type draft struct {
	title string
	share bool // the values are 0 to 1
	lines []line
	limit mark // shown only near the values
	quiet bool // leave the chart out if every value is 0
}

// nearLimit is the share of a limit that values must reach for the limit to be shown. A more distant limit would squeeze
// them to the bottom.
const nearLimit = 0.3

// chart returns false if there is nothing to show.
func (d *draft) chart(x numbers, time axis) (chart, bool) {
	values := table{X: x}
	for _, l := range d.lines {
		if !math.IsNaN(l.Y.highest()) {
			values.Series = append(values.Series, l)
		}
	}
	c := chart{Title: d.title, Height: smallHeight, X: time, Y: axis{Title: d.title, Unit: unitNumber}, Tables: []table{values}}
	if d.share {
		c.Y.Unit = unitShare
	}
	highest := values.highest()
	if d.limit.At > 0 && highest >= nearLimit*d.limit.At {
		c.Limits = []mark{d.limit}
	}
	return c, highest > 0 || highest == 0 && !d.quiet
}

// values computes a value for each cell.
func (g *grid) values(value func(from, to float64) float64) numbers {
	values := make(numbers, len(g.x))
	for i := range g.x {
		from := float64(i) * g.width
		values[i] = value(from, min(from+g.width, g.end))
	}
	return values
}

// of is a counter's growth per second or a gauge's maximum in each cell.
func (g *grid) of(s *result.Series, name string) numbers {
	if result.Counter(name) {
		return g.values(func(from, to float64) float64 { return s.Growth(name, from, to) / (to - from) })
	}
	return g.gauge(s, name, s.Max)
}

// longestGap is the longest time in seconds between two samples over which a gauge is interpolated.
const longestGap = 3.5

// gauge reads each cell, and interpolates a cell without a sample between its neighbours.
func (g *grid) gauge(s *result.Series, name string, read func(string, float64, float64) float64) numbers {
	return g.values(func(from, to float64) float64 {
		if v := read(name, from, to); !math.IsNaN(v) {
			return v
		}
		return s.Interpolate(name, (from+to)/2, longestGap)
	})
}

// all returns the series of a sampler.
func (g *grid) all(sampler string) []*result.Series {
	return slices.DeleteFunc(slices.Clone(g.run.watched), func(s *result.Series) bool { return s.Sampler != sampler })
}

// onHost returns the series of a sampler that reads a whole host. Without one it returns an empty series.
func (g *grid) onHost(sampler, host string) *result.Series {
	for _, s := range g.all(sampler) {
		if s.Host == host {
			return s
		}
	}
	return &result.Series{}
}

// title names the host if there are several.
func (g *grid) title(host, text string) string {
	if len(g.run.hosts()) < 2 {
		return text
	}
	return g.run.subject(host, "") + ": " + text
}

// processCPU stacks user and system time of each process, and the CPU time of the load generator on top.
func (g *grid) processCPU(load []bin) draft {
	d := draft{title: "CPU by process, cores"}
	for i, s := range g.all(result.SamplerProcess) {
		name := g.run.subject(s.Host, s.Subject)
		d.lines = append(d.lines,
			line{Name: name + " user", Color: hue(i), Style: styleStack, Y: g.of(s, "cpu_user_seconds_total")},
			line{Name: name + " system", Color: hue(i), Style: stylePale, Y: g.of(s, "cpu_system_seconds_total")},
		)
	}
	known := slices.ContainsFunc(d.lines, func(l line) bool { return !math.IsNaN(l.Y.highest()) })
	if known && slices.Contains(g.run.hosts(), "") && len(load) > 0 {
		d.lines = append(d.lines, line{Name: "load", Color: "idle", Style: stylePale, Y: g.generator(load)})
	}
	if cores := g.onHost(result.SamplerHost, "").Last("cores", 0, g.end); cores > 0 && len(g.run.hosts()) == 1 {
		d.limit = mark{cores, sheet.Plural(cores, "core")}
	}
	return d
}

// generator is the CPU of the load generator, in cores.
func (g *grid) generator(load []bin) numbers {
	k := 0
	return g.values(func(from, to float64) float64 {
		middle := (from + to) / 2
		for k < len(load)-1 && load[k].start+load[k].length < middle {
			k++
		}
		if b := &load[k]; b.start <= middle && middle <= b.start+b.length {
			return b.cpu / b.length
		}
		return math.NaN()
	})
}

func (g *grid) processWait() draft {
	d := draft{title: "threads that wait for a CPU", quiet: true}
	for i, s := range g.all(result.SamplerProcess) {
		d.lines = append(d.lines, line{Name: g.run.subject(s.Host, s.Subject), Color: hue(i), Y: g.of(s, "run_queue_wait_seconds_total")})
	}
	return d
}

func (g *grid) hostCPU(host string) draft {
	d := draft{title: g.title(host, "host CPU, share of all cores"), share: true}
	s := g.onHost(result.SamplerHost, host)
	for _, mode := range []struct{ name, color string }{
		{"user", "r0"},
		{"system", "r4"},
		{"softirq", "r6"},
		{"iowait", "r2"},
		{"steal", "r7"},
	} {
		d.lines = append(d.lines, line{Name: mode.name, Color: mode.color, Style: styleStack, Y: g.of(s, "cpu_"+mode.name+"_seconds_total")})
	}
	all := g.of(s, "cpu_idle_seconds_total")
	for k := range all {
		for _, l := range d.lines {
			if !math.IsNaN(l.Y[k]) {
				all[k] += l.Y[k]
			}
		}
		for _, l := range d.lines {
			l.Y[k] /= all[k] // NaN if nothing is known
		}
	}
	return d
}

// tcp shows the ports, the new connections and the rejected ones of a host.
func (g *grid) tcp(host string) []draft {
	s := g.onHost(result.SamplerTCP, host)
	drafts := []draft{
		{title: "TIME_WAIT, ephemeral ports in use", lines: []line{
			{Name: "TIME_WAIT", Color: "h4", Y: g.of(s, "time_wait")},
			{Name: "ports", Color: "h1", Y: g.of(s, "ports_in_use")},
		}},
		{title: "new connections/s", lines: []line{
			{Name: "opened", Color: "h0", Y: g.of(s, "active_opens_total")},
			{Name: "accepted", Color: "h2", Y: g.of(s, "passive_opens_total")},
		}},
		{title: "listen drops/s", quiet: true, lines: []line{
			{Name: "drops", Color: "h3", Y: g.of(s, "listen_drops_total")},
			{Name: "overflows", Color: "h5", Style: styleThin, Y: g.of(s, "listen_overflows_total")},
		}},
	}
	if n := s.Last("ports_range", 0, g.end); n > 0 {
		drafts[0].title += " of " + sheet.Number(n)
		drafts[0].limit = mark{n, "all ports"}
	}
	for i := range drafts {
		drafts[i].title = g.title(host, drafts[i].title)
	}
	return drafts
}

// acceptQueue is the deepest queue of all listeners in each cell, with the limit of the listener whose queue was deepest
// of all.
func (g *grid) acceptQueue(host string) draft {
	d := draft{quiet: true}
	highest := math.Inf(-1)
	deepest := make(numbers, len(g.x))
	for i := range deepest {
		deepest[i] = math.NaN()
	}
	for _, s := range g.all(result.SamplerListener) {
		if s.Host != host {
			continue
		}
		for i, v := range g.of(s, "accept_queue") {
			deepest[i] = numbers{deepest[i], v}.highest()
		}
		if v := s.Max("accept_queue", 0, g.end); v > highest {
			highest = v
			limit := s.Last("accept_queue_limit", 0, g.end)
			d.title = g.title(host, fmt.Sprintf("accept queue, the deepest (%s)", s.Subject))
			d.limit = mark{limit, "limit " + sheet.Number(limit)}
		}
	}
	d.lines = []line{{Name: "waiting", Color: "h3", Y: deepest}}
	return d
}

func (g *grid) connections(s *result.Series) draft {
	name := g.run.subject(s.Host, s.Subject)
	d := draft{title: name + ": connections, and sessions by what they do"}
	if s.Sampler == result.SamplerRedis || len(s.Waits()) == 0 {
		d.title = name + ": connections"
	}
	for i, wait := range s.Waits() {
		if values := g.gauge(s, wait, s.Mean); values.highest() > 0 {
			d.lines = append(d.lines, line{Name: wait[len(result.WaitPrefix):], Color: shade(i%8, 8), Style: styleStack, Y: values})
		}
	}
	d.lines = append(d.lines,
		line{Name: "open", Color: "ideal", Style: styleDashed, Y: g.of(s, "connections")},
		line{Name: "active", Color: "h0", Y: g.gauge(s, "connections_active", s.Mean)})
	if limit := s.Last("connections_limit", 0, g.end); limit > 0 {
		d.limit = mark{limit, "limit " + sheet.Number(limit)}
	}
	return d
}

func (g *grid) throughput(s *result.Series) draft {
	d := draft{title: g.run.subject(s.Host, s.Subject) + ": per second"}
	if !s.Has("commits_total") && !s.Has("commands_total") { // MySQL does not count commits
		d.lines = append(d.lines, line{Name: "queries", Color: "h4", Y: g.of(s, "statements_total")})
	}
	for i, name := range []string{"commands", "commits", "fsyncs", "rollbacks"} {
		values := g.of(s, name+"_total")
		if name != "rollbacks" || values.highest() > 0 {
			d.lines = append(d.lines, line{Name: name, Color: hue(i), Y: values})
		}
	}
	return d
}
