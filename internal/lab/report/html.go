package report

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"time"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/plan"
	"spillway/internal/lab/result"
)

//go:embed page.html load.html study.html page.css page.js uplot
var pageFiles embed.FS

// A page is the data of page.html. Its body is load.html or study.html.
type page struct {
	Title  string
	Live   bool // served while the run is under way: page.js fetches it again every second
	Style  template.CSS
	Script template.JS
	Data   template.JS // the JSON document with the panels
	Body   any
}

// writePage writes one HTML file that loads nothing. The template escapes its text.
func writePage(out *bytes.Buffer, bodyFile string, p page, document []byte, panels []panel) error {
	for _, file := range []struct {
		name  string
		style bool
	}{{"uplot/uPlot.min.css", true}, {"page.css", true}, {"uplot/uPlot.iife.min.js", false}, {"page.js", false}} {
		text, err := pageFiles.ReadFile(file.name)
		if err != nil {
			return fmt.Errorf("read page file: %w", err)
		}
		if file.style {
			p.Style += template.CSS(text)
		} else {
			p.Script += template.JS(text)
		}
	}
	data, err := pageData(document, panels)
	if err != nil {
		return err
	}
	p.Data = template.JS(data)
	t, err := template.ParseFS(pageFiles, "page.html", bodyFile)
	if err != nil {
		return fmt.Errorf("read page template: %w", err)
	}
	if err := t.Execute(out, p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// numbered sets the index of each panel.
func numbered(panels []panel) []panel {
	for i := range panels {
		panels[i].Index = i
	}
	return panels
}

// A pageHeader is a headline and its context.
type pageHeader struct {
	headline
	Label, Subtitle string
}

// A pageTable is a table with its note.
type pageTable struct {
	Title, Note string
	Folded      bool
	Words       bool // the last column is text
	Heads       []string
	Rows        []pageRow
}

// A pageRow is a row of a table; Mark is "doubtful" or "missed".
type pageRow struct {
	Mark  string
	Cells []string
}

// newPageTable takes rows, heads first. It returns nil without rows.
func newPageTable(rows [][]string, note string) *pageTable {
	if len(rows) == 0 {
		return nil
	}
	t := &pageTable{Heads: rows[0], Note: note}
	for _, cells := range rows[1:] {
		t.Rows = append(t.Rows, pageRow{Cells: cells})
	}
	return t
}

// mark marks the rows of named requests that belong to a step that is not valid, or that missed their SLO.
func (t *pageTable) mark(r *run) {
	if t == nil {
		return
	}
	row := 0
	for k := range r.steps {
		for l := range r.steps[k].labels {
			t.Rows[row].Mark = r.steps[k].labels[l].mark()
			row++
		}
	}
}

// mark is "doubtful" for a step that is not valid and "missed" for one that missed its SLO.
func (s *step) mark() string {
	switch {
	case !s.valid():
		return "doubtful"
	case !s.sloMet():
		return "missed"
	}
	return ""
}

// A loadPage is the data of load.html.
type loadPage struct {
	Run    *pageRun // nil: the plan alone
	Panels []panel
	Plan   *pagePlan
}

type pageRun struct {
	Header     pageHeader
	TilesOf    string // which step the tiles show
	Tiles      []tile
	Search     []fact        // the answer of a search for a peak
	Verdicts   []pageVerdict // what stopped it
	Steps      *pageTable
	Labels     *pageTable
	Remarks    []string
	UsedByStep *pageTable
	Used       []usageSummary
	Unread     []string // what could not be watched
	Costs      *pageTable
	Manifest   []fact
}

// A tile is one value at the top of the page.
type tile struct{ Name, Value, Note string }

func writeHTML(w io.Writer, r *run, planned *plan.Plan) error {
	if r == nil {
		return writePlanPage(w, planned)
	}
	panels, err := loadPanels(r)
	if err != nil {
		return err
	}
	p := loadPage{Run: newPageRun(r), Panels: numbered(panels), Plan: newPagePlan(planned)}
	title := "Load report: " + r.label
	switch {
	case r.usage != nil:
		title = "Watch report: " + r.label
	case r.search != nil:
		title = "Peak report: " + r.label
	}
	document, err := json.Marshal(r.document())
	if err != nil {
		return fmt.Errorf("write page data: %w", err)
	}
	var out bytes.Buffer
	if err := writePage(&out, "load.html", page{Title: title, Body: p, Live: r.underWay()}, document, panels); err != nil {
		return err
	}
	return emit(w, &out)
}

// writePlanPage writes a page that has a plan only.
func writePlanPage(w io.Writer, planned *plan.Plan) error {
	var out bytes.Buffer
	p := page{Title: "Plan", Body: loadPage{Plan: newPagePlan(planned)}}
	if err := writePage(&out, "load.html", p, []byte("{}"), nil); err != nil {
		return err
	}
	return emit(w, &out)
}

func newPageRun(r *run) *pageRun {
	view := &pageRun{
		Header:   pageHeader{headline: r.headline(), Label: r.label},
		Manifest: r.manifest(), Costs: r.costs(), Used: r.usageSummaries(), UsedByStep: newPageTable(r.watchTable(),
			watchTableNote), Unread: r.watchRemarks(),
	}
	view.Header.Subtitle = fmt.Sprintf("%s, from %s", r.Header.StartedAt.UTC().Format("2006-01-02 15:04 UTC"), r.Header.Machine.Host)
	if r.search != nil {
		view.Search, view.Verdicts = r.searchFacts(), r.pageVerdicts()
	}
	if r.End.Elapsed > 0 {
		view.Header.Subtitle += ", " + wholeSeconds(r.End.Elapsed)
	}
	if s := r.keyStep(); s != nil && (r.search == nil || r.search.Passing >= 0) {
		view.Tiles, view.TilesOf = append(s.tiles(), r.usageTiles(s.usage)...), tilesOf(r, s)
	} else if r.usage != nil {
		view.Tiles = r.usageTiles(r.usage)
	}
	if len(r.steps) == 0 {
		return view
	}
	rows, _ := stepTable(r.columns(), r.steps)
	view.Steps = newPageTable(rows, r.tableNote())
	view.Steps.Title, view.Steps.Words = "Steps", true
	labels, _ := labelTable(r)
	view.Labels = newPageTable(labels, "")
	view.Labels.mark(r)
	for k := range r.steps {
		s := &r.steps[k]
		view.Steps.Rows[k].Mark = s.mark()
		for _, remark := range s.remarks() {
			view.Remarks = append(view.Remarks, s.load()+": "+remark)
		}
	}
	return view
}

func wholeSeconds(v float64) string {
	return time.Duration(v * float64(time.Second)).Round(time.Second).String()
}

// keyStep is the valid step with the highest rate that holds, or the first step.
func (r *run) keyStep() *step {
	var key *step
	if r.search != nil && r.search.Passing >= 0 {
		return &r.steps[r.search.Passing]
	}
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
	f := &s.figures
	name, value := tail(s)
	note := ""
	if f.P99Interval != nil {
		note = "95 % interval: " + seconds(f.P99Interval[0]) + " to "
		if f.bounded(figureP99 + "_interval") {
			note = "95 % interval: from " + seconds(f.P99Interval[0])
		} else {
			note += seconds(f.P99Interval[1])
		}
	}
	median := ""
	if s.saturates() {
		median = closedLoopNote(s.Loop)
	}
	tiles := []tile{
		{"answered", rate(s.Total.Rate()), s.offer()},
		{"median", f.text(figureP50), median},
		{name, value, note},
		{"longest", f.text(figureMax), ""},
		{"errors", share(s.Total.ErrorShare()), errorList(&s.Total.Errors)},
		{"generator", s.ownCPU(), "CPU per request"},
	}
	return tiles
}

// tiledProcesses is how many processes have a tile. The lines below have all.
const tiledProcesses = 4

// usageTiles are the CPU of each process, per request or in cores.
func (r *run) usageTiles(u *result.Usage) []tile {
	if u == nil {
		return nil
	}
	var tiles []tile
	for i := range u.Processes[:min(len(u.Processes), tiledProcesses)] {
		p := &u.Processes[i]
		name := r.subject(p.Host, p.Name)
		switch {
		case p.CPUPerRequest != nil:
			note := "CPU per request" + afterColon(splitPerRequest(p, "system"))
			tiles = append(tiles, tile{name, bounded(p, "cpu_seconds_per_request", seconds, *p.CPUPerRequest), note})
		case p.CPUCores != nil:
			note := "CPU" + afterColon(splitCores(p, "system"))
			tiles = append(tiles, tile{name, bounded(p, "cpu_cores", cores, *p.CPUCores), note})
		}
	}
	return tiles
}

func afterColon(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// offer is the load behind the answered rate: "of 1,000/s", "with 64 connections".
func (s *step) offer() string {
	if s.Loop == result.LoopOpen {
		return "of " + s.load()
	}
	return "with " + s.load()
}

// costHeads are the columns of the table about load generator and connections.
func costHeads() []string {
	return []string{
		"load", "requests", "connects", "reconnects", "received", "requests per connection, min / mean / max", "N / (X R)",
		"lag p99", "CPU user", "CPU system", "busiest thread", "run-queue wait", "memory",
	}
}

func (r *run) costs() *pageTable {
	if r.usage != nil {
		return nil
	}
	rows := [][]string{costHeads()}
	for i := range r.steps {
		s := &r.steps[i]
		t := &s.Total
		rows = append(rows, []string{
			s.load(), integer(t.Requests()), integer(t.Connects), integer(t.Reconnects), size(float64(t.BytesIn)), fairness(&t.Connections),
			ratio(t.Little.Ratio), orDash(figuresOf(exact(s.lag)).P99), seconds(t.Cost.CPUUser), seconds(t.Cost.CPUSystem),
			share(t.Cost.ThreadBusyMax), seconds(t.Cost.RunQueueWait), size(float64(t.Cost.MemoryMax)),
		})
	}
	return newPageTable(rows, "N / (X R): requests in flight over rate times service time, 1 if Little's law holds. lag: from the "+
		"intended start until the "+
		"pacer took the request up.")
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

// A studyPage is the data of study.html.
type studyPage struct {
	Header   pageHeader
	Findings []string
	Panels   []panel
	Problems []string
	Sections []pageTable
	Manifest []fact
}

func writeStudyHTML(out *bytes.Buffer, s *experiment.Study) error {
	m := &s.Manifest
	p := studyPage{
		Header:   pageHeader{headline: newStudyHeadline(s), Label: studyTitle(s)},
		Findings: studyFindings(s), Problems: studyProblems(s), Manifest: studyManifest(s),
	}
	if m.Question != "" {
		p.Header.Label += " · " + m.Question
	}
	p.Header.Subtitle = fmt.Sprintf("%s, %s, %s, on %s", m.StartedAt.UTC().Format("2006-01-02 15:04 UTC"),
		plural(int64(s.Blocks), "block"), plural(int64(len(m.Variants)), "variant"), m.Machine.Host)
	every := comparisonSection(s, s.Comparisons, "Every comparison")
	every.folded = true
	for _, section := range append(studySections(s), every) {
		p.Sections = append(p.Sections, section.pageTable())
	}
	panels := studyPanels(s)
	p.Panels = numbered(panels)
	var summary bytes.Buffer
	if err := s.WriteSummary(&summary); err != nil {
		return err
	}
	return writePage(out, "study.html", page{Title: studyTitle(s), Body: p}, summary.Bytes(), panels)
}

func (s *studySection) pageTable() pageTable {
	t := newPageTable(s.rows, s.note)
	t.Title, t.Folded, t.Words = s.title, s.folded, s.words
	for i := range t.Rows {
		if s.doubtful[i] {
			t.Rows[i].Mark = "doubtful"
		}
	}
	return *t
}
