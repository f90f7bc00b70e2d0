package report

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"slices"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
)

//go:embed study.html study.css
var studyFiles embed.FS

// A studyPage is what study.html shows.
type studyPage struct {
	Title, Question string
	Style           template.CSS
	Script          template.JS
	Data            template.JS
	Headline        headline
	Subtitle        string
	Findings        []string
	Charts          []figure
	Sections        []studyPageSection
	Timelines       []studyTimeline
	Problems        []string
	Manifest        []fact
}

type studyPageSection struct {
	Title, Note string
	Folded      bool
	Words       bool
	Heads       []string
	Rows        []studyPageRow
}

type studyPageRow struct {
	Mark  string
	Cells []string
}

// A studyTimeline is the levels of one variant in one block, folded.
type studyTimeline struct {
	Name, Hue string
	Open      bool
	Charts    figure
}

func writeStudyHTML(out *bytes.Buffer, s *experiment.Study) error {
	p, err := newStudyPage(s)
	if err != nil {
		return err
	}
	t, err := template.ParseFS(studyFiles, "study.html")
	if err != nil {
		return fmt.Errorf("read page template: %w", err)
	}
	if err := t.Execute(out, p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

func newStudyPage(s *experiment.Study) (*studyPage, error) {
	style, script, err := pageAssets()
	if err != nil {
		return nil, err
	}
	more, err := studyFiles.ReadFile("study.css")
	if err != nil {
		return nil, fmt.Errorf("read page style: %w", err)
	}
	data, err := studyData(s)
	if err != nil {
		return nil, err
	}
	m := &s.Manifest
	p := &studyPage{
		Title: studyTitle(s), Question: m.Question, Headline: newStudyHeadline(s), Findings: studyFindings(s), Charts: studyCharts(s),
		Problems: studyProblems(s), Manifest: studyManifest(s),
		Style: template.CSS(append(style, more...)), Script: template.JS(script), Data: data, // our own files, and escaped JSON
	}
	p.Subtitle = fmt.Sprintf("%s, %s, %s, on %s", m.StartedAt.UTC().Format("2006-01-02 15:04 UTC"),
		plural(int64(s.Blocks), "block"), plural(int64(len(m.Variants)), "variant"), m.Machine.Host)
	for _, section := range studySections(s) {
		p.Sections = append(p.Sections, newPageSection(section))
	}
	every := comparisonSection(s, s.Comparisons, "Every comparison")
	every.folded = true
	p.Sections = append(p.Sections, newPageSection(every))
	p.Timelines, err = studyTimelines(s)
	return p, err
}

// studyData is the summary, escaped so that it cannot close its element.
func studyData(s *experiment.Study) (template.JS, error) {
	var out bytes.Buffer
	if err := s.WriteSummary(&out); err != nil {
		return "", err
	}
	var escaped bytes.Buffer
	for _, r := range out.String() {
		switch r {
		case '<', '>', '&', '\u2028', '\u2029':
			fmt.Fprintf(&escaped, `\u%04x`, r)
		default:
			escaped.WriteRune(r)
		}
	}
	return template.JS(escaped.String()), nil
}

func newPageSection(section studySection) studyPageSection {
	view := studyPageSection{Title: section.title, Note: section.note, Folded: section.folded, Words: section.words, Heads: section.rows[0]}
	for i, cells := range section.rows[1:] {
		view.Rows = append(view.Rows, studyPageRow{Mark: section.marks[i], Cells: cells})
	}
	return view
}

// studyCharts are the bar charts, lines over the load and forest plots.
func studyCharts(s *experiment.Study) []figure {
	var figures []figure
	half2 := len(s.Charts) > 1
	for _, chart := range s.Charts {
		size := wide
		if half2 {
			size = half
		}
		picture := barChart(s, chart, size)
		if picture == "" {
			continue
		}
		f := figure{
			Title: chartTitle(s, chart), Caption: "median and range of the blocks", Half: half2,
			Wide: []template.HTML{picture}, Narrow: []template.HTML{barChart(s, chart, narrow)},
		}
		if slices.ContainsFunc(s.Published, func(p experiment.PublishedCheck) bool { return p.Metric == chart.Metric && p.Level == chart.Level }) {
			f.Legend = []legend{{"published", "published-key"}}
		}
		figures = append(figures, f)
	}
	figures = append(figures, lineFigures(s)...)
	return append(figures, forestFigures(s)...)
}

// lineFigures are what the charts show, over all levels, and the p99.
func lineFigures(s *experiment.Study) []figure {
	if !levelsRise(s) {
		return nil
	}
	var names []string
	for _, chart := range s.Charts {
		if chart.Level != "" {
			names = append(names, chart.Metric)
		}
	}
	names = append(names, experiment.MetricRate, experiment.MetricP99)
	var figures []figure
	var done []string
	for _, name := range names {
		metric := s.Metric(name)
		if metric == nil || slices.Contains(done, name) {
			continue
		}
		done = append(done, name)
		picture := linesOverLevels(s, metric, half)
		if picture == "" {
			continue
		}
		figures = append(figures, figure{
			Title: metric.Title + " by load", Caption: "medians; hollow: a run was not valid", Half: true, Legend: variantLegend(s),
			Wide: []template.HTML{picture}, Narrow: []template.HTML{linesOverLevels(s, metric, narrow)},
		})
	}
	return figures
}

// forestFigures are a forest plot for each metric at each key level.
func forestFigures(s *experiment.Study) []figure {
	var figures []figure
	key := keyComparisons(s)
	for len(key) > 0 {
		first := key[0]
		end := slices.IndexFunc(key, func(c experiment.Comparison) bool { return c.Metric != first.Metric || c.Level != first.Level })
		if end < 0 {
			end = len(key)
		}
		group := key[:end]
		key = key[end:]
		title := first.Metric
		if m := s.Metric(first.Metric); m != nil {
			title = metricAt(s, m, first.Level)
		}
		caption := "square: geometric mean; line: 95 % interval"
		if group[0].Low == nil {
			caption = "square: geometric mean; line: range of the blocks, nothing is claimed"
		}
		figures = append(figures, figure{
			Title: "Against the baseline: " + title, Caption: caption,
			Wide: []template.HTML{forestChart(s, group, wide)}, Narrow: []template.HTML{forestChart(s, group, narrow)},
		})
	}
	return figures
}

// studyTimelines draws the timeline of each variant.
func studyTimelines(s *experiment.Study) ([]studyTimeline, error) {
	var all []studyTimeline
	for _, line := range s.Timelines {
		runs, err := decode([]*result.Run{line})
		if err != nil {
			return nil, err
		}
		slo := sloLevels(runs)
		t := studyTimeline{Name: line.Header.Label, Hue: variantHue(s, line.Header.Label)}
		if t.Charts.Wide, err = timelineCharts(runs, slo, wide); err != nil {
			return nil, err
		}
		if t.Charts.Narrow, err = timelineCharts(runs, slo, narrow); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	slices.SortStableFunc(all, func(a, b studyTimeline) int { return variantIndex(s, a.Name) - variantIndex(s, b.Name) })
	return all, nil
}

func variantIndex(s *experiment.Study, name string) int {
	return slices.IndexFunc(s.Manifest.Variants, func(v experiment.VariantFacts) bool { return v.Name == name })
}
