package report

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"time"

	"spillway/internal/lab/result"
)

//go:embed page.html page.css page.js
var pageFiles embed.FS

// A page is what page.html shows. Text is escaped by the template, pictures by svg.
type page struct {
	Title  string
	Style  template.CSS
	Script template.JS
	Data   template.JS // the JSON document, for whoever wants the figures
	Runs   []pageRun
	Charts []figure
	Heads  []string // of the table of several runs by load level
	Rows   [][]string
	Note   string
}

type pageRun struct {
	Label    string
	Hue      string // "" when there is only one
	Subtitle string
	Headline headline
	TilesOf  string // which step the tiles show
	Tiles    []tile
	Heads    []string
	Rows     []pageRow
	Costs    [][]string
	Used     []block
	UsedRows [][]string // of the table of what was used, heads first
	UsedNote string
	Unread   []string // what could not be watched
	Manifest []fact
}

type pageRow struct {
	Cells   []string
	Valid   bool
	Missed  bool
	Remarks []string
	Load    string
}

// A tile is a figure to be seen first.
type tile struct{ Name, Value, Note string }

// A figure is a chart in its two sizes. A timeline has several pictures in each.
type figure struct {
	Title, Caption string
	Half           bool
	Legend         []legend
	Wide, Narrow   []template.HTML
}

// A legend names a colour.
type legend struct{ Name, Class string }

func writeHTML(w io.Writer, runs []run) error {
	p, err := newPage(runs)
	if err != nil {
		return err
	}
	t, err := template.ParseFS(pageFiles, "page.html")
	if err != nil {
		return fmt.Errorf("read page template: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return emit(w, &out)
}

func newPage(runs []run) (*page, error) {
	p := &page{Title: "Load report", Note: tableNote}
	for i := range runs {
		p.Runs = append(p.Runs, newPageRun(runs, i))
	}
	if len(runs) > 0 && runs[0].usage != nil {
		p.Title = "Watch report: " + runs[0].label
	} else if len(runs) > 0 {
		p.Title = "Load report: " + runs[0].label
	}
	p.Heads, p.Rows = sideBySide(runs)
	style, script, err := pageAssets()
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(documents(runs)) // escapes <, > and &, so it cannot close its element
	if err != nil {
		return nil, fmt.Errorf("write page data: %w", err)
	}
	p.Style, p.Script, p.Data = template.CSS(style), template.JS(script), template.JS(data) // our own files, and escaped JSON
	p.Charts, err = pageCharts(runs)
	return p, err
}

func pageAssets() (style, script []byte, err error) {
	if style, err = pageFiles.ReadFile("page.css"); err != nil {
		return nil, nil, fmt.Errorf("read page style: %w", err)
	}
	if script, err = pageFiles.ReadFile("page.js"); err != nil {
		return nil, nil, fmt.Errorf("read page script: %w", err)
	}
	return style, script, nil
}

func newPageRun(runs []run, i int) pageRun {
	r := &runs[i]
	view := pageRun{
		Label: r.label, Headline: r.headline(), Manifest: r.manifest(), Costs: r.costs(),
		Used: r.blocks(), UsedRows: r.watchTable(), UsedNote: watchTableNote, Unread: r.watchRemarks(),
	}
	view.Subtitle = fmt.Sprintf("%s, from %s", r.Header.StartedAt.UTC().Format("2006-01-02 15:04 UTC"), r.Header.Machine.Host)
	if r.End.Elapsed > 0 {
		view.Subtitle += ", " + secondsLabelLong(r.End.Elapsed)
	}
	if len(runs) > 1 {
		view.Hue = hue(i)
	} else if s := r.keyStep(); s != nil {
		view.Tiles, view.TilesOf = append(s.tiles(), r.usageTiles(s.usage)...), tilesOf(r, s)
	} else if r.usage != nil {
		view.Tiles = r.usageTiles(r.usage)
	}
	cols := columns(runs)
	for _, c := range cols {
		view.Heads = append(view.Heads, c.name)
	}
	for k := range r.steps {
		s := &r.steps[k]
		row := pageRow{Valid: s.valid(), Missed: !s.sloMet(), Remarks: s.remarks(), Load: s.load()}
		for _, c := range cols {
			row.Cells = append(row.Cells, c.value(s))
		}
		view.Rows = append(view.Rows, row)
	}
	return view
}

func secondsLabelLong(v float64) string {
	return time.Duration(v * float64(time.Second)).Round(time.Second).String()
}

// keyStep is the step whose figures are worth seeing first: the highest valid one that holds, else the first.
func (r *run) keyStep() *step {
	var key *step
	for i := range r.steps {
		s := &r.steps[i]
		if s.valid() && s.holds() && (key == nil || s.Total.Rate() > key.Total.Rate()) {
			key = s
		}
	}
	if key == nil && len(r.steps) > 0 {
		return &r.steps[0]
	}
	return key
}

func tilesOf(r *run, key *step) string {
	switch {
	case len(r.steps) == 1:
		return ""
	case key.valid() && key.holds():
		return "The step with the highest rate that held, " + key.load() + ":"
	}
	return "The first step, " + key.load() + ":"
}

func (s *step) tiles() []tile {
	f := figuresOf(s.response)
	name, value := tail(s)
	note := ""
	if f.P99Interval != nil {
		note = "95 % interval: " + seconds(f.P99Interval[0]) + " to " + seconds(f.P99Interval[1])
	}
	tiles := []tile{
		{"answered", rate(s.Total.Rate()), s.offer()},
		{"median", orDash(f.P50), ""},
		{name, value, note},
		{"longest", orDash(f.Max), ""},
		{"errors", share(s.Total.ErrorShare()), s.Total.Errors.String()},
		{"generator", s.ownCPU(), "CPU per request"},
	}
	return tiles
}

// tiledProcesses is how many processes are shown as tiles; all are in the lines below.
const tiledProcesses = 4

// usageTiles are the CPU of each process: for one request, or in cores.
func (r *run) usageTiles(u *result.Usage) []tile {
	if u == nil {
		return nil
	}
	var tiles []tile
	for i := range u.Processes[:min(len(u.Processes), tiledProcesses)] {
		p := &u.Processes[i]
		name := r.on(p.Host, p.Name)
		switch {
		case p.CPUPerRequest != nil:
			note := fmt.Sprintf("CPU per request: %s user + %s system", seconds(*p.CPUUserPerRequest), seconds(*p.CPUSystemPerRequest))
			tiles = append(tiles, tile{name, seconds(*p.CPUPerRequest), note})
		case p.CPUCores != nil:
			note := fmt.Sprintf("CPU: %s user + %s system", coreNumber(*p.CPUUserCores), coreNumber(*p.CPUSystemCores))
			tiles = append(tiles, tile{name, cores(*p.CPUCores), note})
		}
	}
	return tiles
}

// offer says what the answered rate is to be read against: "of 1,000/s", "with 64 connections".
func (s *step) offer() string {
	if s.Loop == result.LoopOpen {
		return "of " + s.load()
	}
	return "with " + s.load()
}

// costHeads are the columns of the table about the generator and the connections.
func costHeads() []string {
	return []string{
		"load", "requests", "connects", "reconnects", "received", "requests per connection, min / mean / max", "N / (X R)",
		"lag p99", "CPU user", "CPU system", "busiest thread", "run-queue wait", "memory",
	}
}

func (r *run) costs() [][]string {
	if r.usage != nil {
		return nil
	}
	rows := [][]string{costHeads()}
	for i := range r.steps {
		s := &r.steps[i]
		t := &s.Total
		rows = append(rows, []string{
			s.load(), integer(t.Requests()), integer(t.Connects), integer(t.Reconnects), size(float64(t.BytesIn)), fairness(&t.Connections),
			ratio(t.Little.Ratio), orDash(figuresOf(s.lag).P99), seconds(t.Cost.CPUUser), seconds(t.Cost.CPUSystem),
			share(t.Cost.ThreadBusyMax), seconds(t.Cost.RunQueueWait), size(float64(t.Cost.MemoryMax)),
		})
	}
	return rows
}

func fairness(c *result.ConnectionStats) string {
	if c.Slots == 0 {
		return "-"
	}
	return fmt.Sprintf("%s / %s / %s", integer(c.RequestsMin), number(c.RequestsMean), integer(c.RequestsMax))
}

func ratio(v float64) string {
	if v == 0 {
		return "-"
	}
	return significant(v)
}
