package report

import (
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
)

// watchPanels draws what was watched, a panel for each kind that has data. Panels of hosts and databases come once for
// each of them.
func (t *timeline) watchPanels(size sizing) []plot {
	c := t.cells()
	if c == nil {
		return nil
	}
	var drawn []drawing
	drawn = append(drawn, c.cpuByProcess(t), c.waitByProcess())
	for _, host := range c.run.hosts() {
		drawn = append(drawn, c.hostCPU(host), c.ports(host), c.opens(host), c.acceptQueue(host), c.listenDrops(host))
	}
	for _, track := range c.run.tracks {
		if result.Database(track.Sampler) {
			drawn = append(drawn, c.connections(track), c.throughput(track))
		}
	}
	var panels []plot
	for i := range drawn {
		if d := &drawn[i]; !d.empty() {
			panels = append(panels, t.watchPanel(d, size))
		}
	}
	return panels
}

// A drawing is what a panel shows, before it has a size.
type drawing struct {
	title  string
	layers []layer
	lines  []series
	limit  mark // drawn when it is not far above the values
	write  func(float64) string
	quiet  bool // not drawn when everything is 0
}

// empty says whether there is nothing to draw.
func (d *drawing) empty() bool {
	highest := d.highest()
	return math.IsNaN(highest) || d.quiet && highest == 0
}

// highest is the highest value, NaN without any.
func (d *drawing) highest() float64 {
	highest := math.NaN()
	for _, l := range d.layers {
		for _, v := range l.values {
			if v > highest || math.IsNaN(highest) {
				highest = v
			}
		}
	}
	for _, line := range d.lines {
		for _, p := range line.points {
			if p.y > highest || math.IsNaN(highest) {
				highest = p.y
			}
		}
	}
	return highest
}

// nearLimit is the share of a limit that values must reach for it to be drawn: else they would be a line at the bottom.
const nearLimit = 0.3

func (t *timeline) watchPanel(d *drawing, size sizing) plot {
	p, bottom, top := t.panel(d.title, smallHeight, size)
	p.areas = stack(t.cells().x, d.layers)
	for _, line := range d.lines {
		if !empty(&line) {
			p.series = append(p.series, line)
		}
	}
	bounds := slices.Clone(p.series)
	for _, a := range p.areas {
		bounds = append(bounds, series{points: a.upper})
	}
	if d.limit.at > 0 && highestOf(bounds) >= nearLimit*d.limit.at {
		p.levels = []mark{d.limit}
		bounds = append(bounds, series{points: []point{{y: d.limit.at}}})
	}
	p.y = countAxis(bounds, bottom, top, 3)
	if d.write != nil {
		p.y.write = d.write
	}
	return p
}

func highestOf(lines []series) float64 {
	highest := 0.0
	for _, line := range lines {
		for _, p := range line.points {
			if p.y > highest {
				highest = p.y
			}
		}
	}
	return highest
}

// ofKind are the tracks of a sampler.
func (c *cells) ofKind(sampler string) []*result.Track {
	var found []*result.Track
	for _, t := range c.run.tracks {
		if t.Sampler == sampler {
			found = append(found, t)
		}
	}
	return found
}

// onHost is the track of a sampler that reads a whole host; nil without one.
func (c *cells) onHost(sampler, host string) *result.Track {
	for _, t := range c.ofKind(sampler) {
		if t.Host == host {
			return t
		}
	}
	return nil
}

// title names the host where there are several.
func (c *cells) title(host, text string) string {
	if len(c.run.hosts()) < 2 {
		return text
	}
	return c.run.on(host, "") + ": " + text
}

func (c *cells) cpuByProcess(t *timeline) drawing {
	d := drawing{title: "CPU by process, cores (full: user, pale: system)", write: coreNumber}
	for i, track := range c.ofKind(result.SamplerProcess) {
		name := short(c.run.on(track.Host, track.Subject))
		d.layers = append(
			d.layers,
			layer{name, hue(i), c.rate(track, "cpu_user_seconds_total")},
			layer{"", hue(i) + " light", c.rate(track, "cpu_system_seconds_total")},
		)
	}
	local := slices.Contains(c.run.hosts(), "")
	if !d.empty() && local && len(t.bins[0]) > 0 {
		d.layers = append(d.layers, layer{"load", "idle", c.generator(t.bins[0])})
	}
	if track := c.onHost(result.SamplerHost, ""); track != nil && len(c.run.hosts()) == 1 {
		if n := track.Last("cores", 0, c.end); n > 0 {
			d.limit = mark{n, plural(int64(n), "core")}
		}
	}
	return d
}

// generator is the CPU of the process that made the load.
func (c *cells) generator(bins []bin) []float64 {
	values := make([]float64, len(c.x))
	k := 0
	for i, x := range c.x {
		for k < len(bins)-1 && bins[k].start+bins[k].length < x {
			k++
		}
		values[i] = math.NaN()
		if b := &bins[k]; b.start <= x && x <= b.start+b.length {
			values[i] = b.cpu / b.length
		}
	}
	return values
}

func (c *cells) waitByProcess() drawing {
	d := drawing{title: "threads that wait for a CPU", write: coreNumber, quiet: true}
	for i, track := range c.ofKind(result.SamplerProcess) {
		d.lines = append(d.lines, c.line(short(c.run.on(track.Host, track.Subject)), hue(i), c.rate(track, "run_queue_wait_seconds_total")))
	}
	return d
}

func (c *cells) hostCPU(host string) drawing {
	d := drawing{title: c.title(host, "host CPU, share of all cores"), write: percent}
	track := c.onHost(result.SamplerHost, host)
	if track == nil {
		return d
	}
	ways := []struct{ name, class string }{{"user", "r0"}, {"system", "r4"}, {"softirq", "r6"}, {"iowait", "r2"}, {"steal", "r7"}}
	all := c.rate(track, "cpu_idle_seconds_total")
	rates := make([][]float64, len(ways))
	for i, way := range ways {
		rates[i] = c.rate(track, "cpu_"+way.name+"_seconds_total")
		for k, v := range rates[i] {
			if !math.IsNaN(v) {
				all[k] += v
			}
		}
	}
	for i, way := range ways {
		l := layer{way.name, way.class, rates[i]}
		for k := range l.values {
			l.values[k] /= all[k] // NaN where nothing is known
		}
		if way.name != "user" && way.name != "system" && !matters(l.values) {
			l.name = ""
		}
		d.layers = append(d.layers, l)
	}
	return d
}

// matters says whether a share is ever so large that its layer is seen.
func matters(values []float64) bool {
	return slices.ContainsFunc(values, func(v float64) bool { return v > 0.02 })
}

func (c *cells) ports(host string) drawing {
	d := drawing{title: c.title(host, "TIME_WAIT, ephemeral ports in use")}
	track := c.onHost(result.SamplerTCP, host)
	if track == nil {
		return d
	}
	if n := track.Last("ports_range", 0, c.end); n > 0 {
		d.title += " of " + whole(n)
		d.limit = mark{n, "all ports"}
	}
	d.lines = []series{
		c.line("TIME_WAIT", "h4", c.highest(track, "time_wait")),
		c.line("ports", "h1", c.highest(track, "ports_in_use")),
	}
	return d
}

func (c *cells) opens(host string) drawing {
	d := drawing{title: c.title(host, "new connections/s")}
	if track := c.onHost(result.SamplerTCP, host); track != nil {
		d.lines = []series{
			c.line("opened", "h0", c.rate(track, "active_opens_total")),
			c.line("accepted", "h2", c.rate(track, "passive_opens_total")),
		}
	}
	return d
}

// acceptQueue is the deepest queue of all listeners in each cell, with the limit of the one that was deepest of all.
func (c *cells) acceptQueue(host string) drawing {
	d := drawing{title: c.title(host, "accept queue, the deepest"), quiet: true}
	var deepest []float64
	most := math.Inf(-1)
	for _, track := range c.ofKind(result.SamplerListener) {
		if track.Host != host {
			continue
		}
		values := c.highest(track, "accept_queue")
		if deepest == nil {
			deepest = slices.Clone(values)
		}
		for i, v := range values {
			if v > deepest[i] || math.IsNaN(deepest[i]) {
				deepest[i] = v
			}
		}
		if top := track.Highest("accept_queue", 0, c.end); top > most {
			most = top
			limit := track.Last("accept_queue_limit", 0, c.end)
			d.title = c.title(host, fmt.Sprintf("accept queue, the deepest (%s)", track.Subject))
			d.limit = mark{limit, "limit " + whole(limit)}
		}
	}
	if deepest != nil {
		d.lines = []series{c.line("waiting", "h3", deepest)}
	}
	return d
}

func (c *cells) listenDrops(host string) drawing {
	d := drawing{title: c.title(host, "listen drops/s"), quiet: true}
	if track := c.onHost(result.SamplerTCP, host); track != nil {
		d.lines = []series{
			c.line("drops", "h3", c.rate(track, "listen_drops_total")),
			c.line("overflows", "h5 thin", c.rate(track, "listen_overflows_total")),
		}
	}
	return d
}

func (c *cells) connections(track *result.Track) drawing {
	name := c.run.on(track.Host, track.Subject)
	d := drawing{title: name + ": connections, and sessions by what they do"}
	if track.Sampler == result.SamplerRedis || len(track.Waits()) == 0 {
		d.title = name + ": connections"
	}
	for i, wait := range track.Waits() {
		values := c.mean(track, wait)
		l := layer{short(wait[len(result.WaitPrefix):]), fmt.Sprintf("r%d", i%8), values}
		if !slices.ContainsFunc(values, func(v float64) bool { return v > 0 }) {
			l.name = ""
		}
		d.layers = append(d.layers, l)
	}
	d.lines = []series{c.line("open", "ideal", c.highest(track, "connections")), c.line("active", "h0", c.mean(track, "connections_active"))}
	if limit := track.Last("connections_limit", 0, c.end); limit > 0 {
		d.limit = mark{limit, "limit " + whole(limit)}
	}
	return d
}

func (c *cells) throughput(track *result.Track) drawing {
	d := drawing{title: c.run.on(track.Host, track.Subject) + ": a second"}
	if !track.Has("commits_total") && !track.Has("commands_total") { // MySQL does not count commits
		d.lines = append(d.lines, c.line("queries", "h4", c.rate(track, "statements_total")))
	}
	for i, counter := range []struct{ name, value string }{
		{"commands", "commands_total"}, {"commits", "commits_total"}, {"fsyncs", "fsyncs_total"}, {"rollbacks", "rollbacks_total"},
	} {
		values := c.rate(track, counter.value)
		if track.Has(counter.value) && (i < 3 || slices.ContainsFunc(values, func(v float64) bool { return v > 0 })) {
			d.lines = append(d.lines, c.line(counter.name, hue(i), values))
		}
	}
	return d
}

// percent writes a share on an axis.
func percent(v float64) string { return fmt.Sprintf("%.0f %%", v*100) }
