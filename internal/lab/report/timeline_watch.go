package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
)

// A grid divides the time axis into cells of one width, so that values of different samplers can be stacked.
type grid struct {
	run   *run
	width float64
	end   float64
	x     []float64 // the middle of each cell
}

// grid is that of a timeline of one run in which something was watched; nil otherwise.
func (t *timeline) grid() *grid {
	if len(t.runs) != 1 || len(t.runs[0].tracks) == 0 {
		return nil
	}
	g := &grid{run: &t.runs[0], width: t.width, end: t.end}
	for from := 0.0; from < t.end; from += t.width {
		g.x = append(g.x, (from+min(from+t.width, t.end))/2)
	}
	return g
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

// rate is a counter's growth per second.
func (g *grid) rate(t *result.Track, name string) numbers {
	return g.values(func(from, to float64) float64 { return t.Grown(name, from, to) / (to - from) })
}

// longestGap is the longest time in seconds between two samples over which a gauge is interpolated.
const longestGap = 3.5

// highest is a gauge's highest value in each cell; a cell without a sample is interpolated between its neighbours.
func (g *grid) highest(t *result.Track, name string) numbers { return g.gauge(t, name, t.Highest) }

// mean is a gauge's mean in each cell.
func (g *grid) mean(t *result.Track, name string) numbers { return g.gauge(t, name, t.Mean) }

func (g *grid) gauge(t *result.Track, name string, of func(string, float64, float64) float64) numbers {
	return g.values(func(from, to float64) float64 {
		if v := of(name, from, to); !math.IsNaN(v) {
			return v
		}
		return t.Between(name, (from+to)/2, longestGap)
	})
}

// watchCharts are what was watched: a chart for each kind that has data, for hosts and databases one each.
func (t *timeline) watchCharts() []chart {
	g := t.grid()
	if g == nil {
		return nil
	}
	drawn := []drawing{g.cpuByProcess(t), g.waitByProcess()}
	for _, host := range g.run.hosts() {
		drawn = append(drawn, g.hostCPU(host), g.ports(host), g.opens(host), g.acceptQueue(host), g.listenDrops(host))
	}
	for _, track := range g.run.tracks {
		if result.Database(track.Sampler) {
			drawn = append(drawn, g.connections(track), g.throughput(track))
		}
	}
	var charts []chart
	for i := range drawn {
		if c := drawn[i].chart(t); c != nil {
			charts = append(charts, *c)
		}
	}
	return charts
}

// A drawing is what a chart of watched things shows.
type drawing struct {
	title string
	unit  string // unitNumber by default
	lines []line
	limit mark // shown if the values come near it
	quiet bool // left out if everything is 0
}

// nearLimit is the share of a limit that values must reach for it to be shown; below it they would be a line at the
// bottom.
const nearLimit = 0.3

// chart is nil if there is nothing to show.
func (d *drawing) chart(t *timeline) *chart {
	values := table{X: t.grid().x}
	for _, l := range d.lines {
		if !math.IsNaN(l.Y.highest()) {
			values.Series = append(values.Series, l)
		}
	}
	highest := values.highest()
	if math.IsNaN(highest) || d.quiet && highest == 0 {
		return nil
	}
	c := &chart{
		Title: d.title, Height: smallHeight, X: t.axis(), Y: axis{Title: d.title, Unit: cmp.Or(d.unit, unitNumber)}, Tables: []table{values},
	}
	if d.limit.At > 0 && highest >= nearLimit*d.limit.At {
		c.Limits = []mark{d.limit}
	}
	return c
}

// ofKind are the tracks of a sampler.
func (g *grid) ofKind(sampler string) []*result.Track {
	var found []*result.Track
	for _, t := range g.run.tracks {
		if t.Sampler == sampler {
			found = append(found, t)
		}
	}
	return found
}

// onHost is the track of a sampler that reads a whole host; nil without one.
func (g *grid) onHost(sampler, host string) *result.Track {
	for _, t := range g.ofKind(sampler) {
		if t.Host == host {
			return t
		}
	}
	return nil
}

// title names the host if there are several.
func (g *grid) title(host, text string) string {
	if len(g.run.hosts()) < 2 {
		return text
	}
	return g.run.on(host, "") + ": " + text
}

func (g *grid) cpuByProcess(t *timeline) drawing {
	d := drawing{title: "CPU by process, cores"}
	for i, track := range g.ofKind(result.SamplerProcess) {
		name := g.run.on(track.Host, track.Subject)
		d.lines = append(d.lines,
			line{Name: name + " user", Color: hue(i), Style: styleStack, Y: g.rate(track, "cpu_user_seconds_total")},
			line{Name: name + " system", Color: hue(i), Style: stylePale, Y: g.rate(track, "cpu_system_seconds_total")},
		)
	}
	known := slices.ContainsFunc(d.lines, func(l line) bool { return !math.IsNaN(l.Y.highest()) })
	if known && slices.Contains(g.run.hosts(), "") && len(t.bins[0]) > 0 {
		d.lines = append(d.lines, line{Name: "load", Color: "idle", Style: stylePale, Y: g.generator(t.bins[0])})
	}
	if track := g.onHost(result.SamplerHost, ""); track != nil && len(g.run.hosts()) == 1 {
		if n := track.Last("cores", 0, g.end); n > 0 {
			d.limit = mark{n, plural(int64(n), "core")}
		}
	}
	return d
}

// generator is the CPU of the process that made the load, in cores.
func (g *grid) generator(bins []bin) numbers {
	k := 0
	return g.values(func(from, to float64) float64 {
		middle := (from + to) / 2
		for k < len(bins)-1 && bins[k].start+bins[k].length < middle {
			k++
		}
		if b := &bins[k]; b.start <= middle && middle <= b.start+b.length {
			return b.cpu / b.length
		}
		return math.NaN()
	})
}

func (g *grid) waitByProcess() drawing {
	d := drawing{title: "threads that wait for a CPU", quiet: true}
	for i, track := range g.ofKind(result.SamplerProcess) {
		d.lines = append(d.lines, line{Name: g.run.on(track.Host, track.Subject), Color: hue(i), Y: g.rate(track, "run_queue_wait_seconds_total")})
	}
	return d
}

func (g *grid) hostCPU(host string) drawing {
	d := drawing{title: g.title(host, "host CPU, share of all cores"), unit: unitShare}
	track := g.onHost(result.SamplerHost, host)
	if track == nil {
		return d
	}
	for _, way := range []struct{ name, color string }{{"user", "r0"}, {"system", "r4"}, {"softirq", "r6"}, {"iowait", "r2"}, {"steal", "r7"}} {
		d.lines = append(d.lines, line{Name: way.name, Color: way.color, Style: styleStack, Y: g.rate(track, "cpu_"+way.name+"_seconds_total")})
	}
	all := g.rate(track, "cpu_idle_seconds_total")
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

func (g *grid) ports(host string) drawing {
	d := drawing{title: g.title(host, "TIME_WAIT, ephemeral ports in use")}
	track := g.onHost(result.SamplerTCP, host)
	if track == nil {
		return d
	}
	if n := track.Last("ports_range", 0, g.end); n > 0 {
		d.title += " of " + whole(n)
		d.limit = mark{n, "all ports"}
	}
	d.lines = []line{
		{Name: "TIME_WAIT", Color: "h4", Y: g.highest(track, "time_wait")},
		{Name: "ports", Color: "h1", Y: g.highest(track, "ports_in_use")},
	}
	return d
}

func (g *grid) opens(host string) drawing {
	d := drawing{title: g.title(host, "new connections/s")}
	if track := g.onHost(result.SamplerTCP, host); track != nil {
		d.lines = []line{
			{Name: "opened", Color: "h0", Y: g.rate(track, "active_opens_total")},
			{Name: "accepted", Color: "h2", Y: g.rate(track, "passive_opens_total")},
		}
	}
	return d
}

// acceptQueue is the deepest queue of all listeners in each cell, with the limit of the listener whose queue was deepest
// of all.
func (g *grid) acceptQueue(host string) drawing {
	d := drawing{title: g.title(host, "accept queue, the deepest"), quiet: true}
	most := math.Inf(-1)
	for _, track := range g.ofKind(result.SamplerListener) {
		if track.Host != host {
			continue
		}
		values := g.highest(track, "accept_queue")
		if d.lines == nil {
			d.lines = []line{{Name: "waiting", Color: "h3", Y: values}}
		}
		deepest := d.lines[0].Y
		for i, v := range values {
			deepest[i] = numbers{deepest[i], v}.highest()
		}
		if top := track.Highest("accept_queue", 0, g.end); top > most {
			most = top
			limit := track.Last("accept_queue_limit", 0, g.end)
			d.title = g.title(host, fmt.Sprintf("accept queue, the deepest (%s)", track.Subject))
			d.limit = mark{limit, "limit " + whole(limit)}
		}
	}
	return d
}

func (g *grid) listenDrops(host string) drawing {
	d := drawing{title: g.title(host, "listen drops/s"), quiet: true}
	if track := g.onHost(result.SamplerTCP, host); track != nil {
		d.lines = []line{
			{Name: "drops", Color: "h3", Y: g.rate(track, "listen_drops_total")},
			{Name: "overflows", Color: "h5", Style: styleThin, Y: g.rate(track, "listen_overflows_total")},
		}
	}
	return d
}

func (g *grid) connections(track *result.Track) drawing {
	name := g.run.on(track.Host, track.Subject)
	d := drawing{title: name + ": connections, and sessions by what they do"}
	if track.Sampler == result.SamplerRedis || len(track.Waits()) == 0 {
		d.title = name + ": connections"
	}
	for i, wait := range track.Waits() {
		if values := g.mean(track, wait); values.highest() > 0 {
			d.lines = append(d.lines, line{Name: wait[len(result.WaitPrefix):], Color: fmt.Sprintf("r%d", i%8), Style: styleStack, Y: values})
		}
	}
	d.lines = append(d.lines,
		line{Name: "open", Color: "ideal", Style: styleDashed, Y: g.highest(track, "connections")},
		line{Name: "active", Color: "h0", Y: g.mean(track, "connections_active")})
	if limit := track.Last("connections_limit", 0, g.end); limit > 0 {
		d.limit = mark{limit, "limit " + whole(limit)}
	}
	return d
}

func (g *grid) throughput(track *result.Track) drawing {
	d := drawing{title: g.run.on(track.Host, track.Subject) + ": per second"}
	if !track.Has("commits_total") && !track.Has("commands_total") { // MySQL does not count commits
		d.lines = append(d.lines, line{Name: "queries", Color: "h4", Y: g.rate(track, "statements_total")})
	}
	for i, name := range []string{"commands", "commits", "fsyncs", "rollbacks"} {
		values := g.rate(track, name+"_total")
		if name != "rollbacks" || values.highest() > 0 {
			d.lines = append(d.lines, line{Name: name, Color: hue(i), Y: values})
		}
	}
	return d
}
