package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/sheet"
	"spillway/internal/uplot"
)

var (
	//go:embed page.html
	pageTemplate string
	//go:embed page.css
	pageStyle string
	//go:embed page.js
	pageScript string
)

// A page is the data of page.html: a sheet with what only a page has.
type page struct {
	Title    string
	Live     bool // served while the run is under way: page.js fetches it again every second
	Mood     mood
	Subtitle string
	Panels   []panel
	Sheet    *sheet.Sheet

	Style  template.CSS
	Script template.JS
	Data   template.JS // the JSON document with the panels
}

// write writes one HTML file that loads nothing. The template escapes its text.
func (p page) write(w io.Writer, document []byte) error {
	p.Style, p.Script = template.CSS(uplot.Style()+pageStyle), template.JS(uplot.Script()+pageScript)
	for i := range p.Panels {
		p.Panels[i].Index = i
	}
	data, err := pageData(document, p.Panels)
	if err != nil {
		return err
	}
	p.Data = template.JS(data)
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("read page template: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return sheet.Emit(w, &out)
}

// writeHTML writes the page of a run.
func writeHTML(w io.Writer, r *run) error {
	panels, err := loadPanels(r)
	if err != nil {
		return err
	}
	p := page{Title: "Load report: " + r.label, Live: r.underWay(), Mood: r.headline().Mood, Panels: panels, Sheet: r.sheet(HTML)}
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
	document, err := json.Marshal(r.document())
	if err != nil {
		return fmt.Errorf("write page data: %w", err)
	}
	return p.write(w, document)
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
