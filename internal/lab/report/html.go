package report

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
	"spillway/internal/uplot"
)

//go:embed page.html page.css page.js
var pageFiles embed.FS

// A page is the data of page.html: a sheet with what only a page has.
type page struct {
	Title    string
	Live     bool // served while the run is under way: page.js fetches it again every second
	Mood     mood
	Subtitle string
	TilesOf  string // which step the tiles show
	Tiles    []tile
	Panels   []panel
	Sheet    *sheet.Sheet

	Style  template.CSS
	Script template.JS
	Data   template.JS // the JSON document with the panels
}

// A tile is one value at the top of the page.
type tile struct{ Name, Value, Note string }

// write writes one HTML file that loads nothing. The template escapes its text.
func (p page) write(w io.Writer, document []byte) error {
	css, err := pageFiles.ReadFile("page.css")
	if err != nil {
		return fmt.Errorf("read page file: %w", err)
	}
	script, err := pageFiles.ReadFile("page.js")
	if err != nil {
		return fmt.Errorf("read page file: %w", err)
	}
	p.Style, p.Script = template.CSS(uplot.Style()+string(css)), template.JS(uplot.Script()+string(script))
	for i := range p.Panels {
		p.Panels[i].Index = i
	}
	data, err := pageData(document, p.Panels)
	if err != nil {
		return err
	}
	p.Data = template.JS(data)
	t, err := template.ParseFS(pageFiles, "page.html")
	if err != nil {
		return fmt.Errorf("read page template: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return sheet.Emit(w, &out)
}

// writeHTML writes the page of a run, or of a plan without one.
func writeHTML(w io.Writer, r *run, s *sheet.Sheet) error {
	if r == nil {
		return page{Title: "Plan", Mood: plain, Sheet: s}.write(w, []byte("{}"))
	}
	panels, err := loadPanels(r)
	if err != nil {
		return err
	}
	p := page{Title: "Load report: " + r.label, Live: r.underWay(), Mood: r.headline().Mood, Panels: panels, Sheet: s}
	switch {
	case r.usage != nil:
		p.Title = "Watch report: " + r.label
	case r.search != nil:
		p.Title = "Peak report: " + r.label
	}
	p.Subtitle = fmt.Sprintf("%s, from %s", r.Header.StartedAt.UTC().Format("2006-01-02 15:04 UTC"), r.Header.Machine.Host)
	if r.End.Elapsed > 0 {
		p.Subtitle += ", " + sheet.Duration(r.End.Elapsed)
	}
	if s := r.keyStep(); s != nil && (r.search == nil || r.search.Passing >= 0) {
		p.Tiles, p.TilesOf = append(s.tiles(), r.usageTiles(s.usage)...), tilesOf(r, s)
	} else if r.usage != nil {
		p.Tiles = r.usageTiles(r.usage)
	}
	document, err := json.Marshal(r.document())
	if err != nil {
		return fmt.Errorf("write page data: %w", err)
	}
	return p.write(w, document)
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
		note = "95 % interval: " + sheet.Duration(f.P99Interval[0]) + " to "
		if f.bounded(figureP99 + "_interval") {
			note = "95 % interval: from " + sheet.Duration(f.P99Interval[0])
		} else {
			note += sheet.Duration(f.P99Interval[1])
		}
	}
	median := ""
	if s.saturates() {
		median = closedLoopNote(s.Loop)
	}
	tiles := []tile{
		{"answered", sheet.Rate(s.Total.Rate()), s.offer()},
		{"median", f.text(figureP50), median},
		{name, value, note},
		{"longest", f.text(figureMax), ""},
		{"errors", sheet.Share(s.Total.ErrorShare()), errorList(&s.Total.Errors)},
		{"generator", s.ownCPU(), "CPU per request"},
	}
	return tiles
}

// tiledProcesses is how many processes have a tile. The lines below have all.
const tiledProcesses = 4

// usageTiles are the CPU of each process, per request or in cores.
func (r *run) usageTiles(u *result.Usage) []tile {
	var tiles []tile
	processes := u.Of(result.SamplerProcess)
	for _, p := range processes[:min(len(processes), tiledProcesses)] {
		name := r.subject(p.Host, p.Name)
		switch {
		case !math.IsNaN(p.Value(result.CPUPerRequest)):
			note := "CPU per request" + afterColon(splitPerRequest(p, "system"))
			tiles = append(tiles, tile{name, bounded(p, result.CPUPerRequest, sheet.UnitSeconds), note})
		case !math.IsNaN(p.Value(result.CPUCores)):
			note := "CPU" + afterColon(splitCores(p, "system"))
			tiles = append(tiles, tile{name, bounded(p, result.CPUCores, sheet.UnitCores), note})
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

func writeStudyHTML(w io.Writer, s *experiment.Study) error {
	m := &s.Manifest
	p := page{Title: studyTitle(s), Mood: newStudyHeadline(s).Mood, Panels: studyPanels(s), Sheet: studySheet(s)}
	p.Subtitle = fmt.Sprintf("%s, %s, %s, on %s", m.StartedAt.UTC().Format("2006-01-02 15:04 UTC"),
		sheet.Plural(s.Blocks, "block"), sheet.Plural(len(m.Variants), "variant"), m.Machine.Host)
	every := comparisonSection(s, s.Comparisons, "Every comparison")
	every.Folded = true
	last := len(p.Sheet.Sections) - 1
	p.Sheet.Sections = slices.Insert(p.Sheet.Sections, last, every)
	var summary bytes.Buffer
	if err := s.WriteSummary(&summary); err != nil {
		return err
	}
	return p.write(w, summary.Bytes())
}
