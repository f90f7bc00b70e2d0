package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
	"spillway/internal/stats"
)

// studyNote explains the tables of the levels.
const studyNote = "Median over the VALID runs (lowest–highest); *: over all, because none supports the figure. requests/s: good answers. " +
	"CPU: a process with its descendants, % of one core and per good answer. " +
	"TIME_WAIT and ports: highest value on one host. not valid: runs that are not valid measurements, by reason. " +
	"!: most runs fail more than 1 % of their requests, so that these are not the times of answers."

// closedLoopNote labels the percentiles of a closed loop.
const closedLoopNote = "closed loop: latency at saturation, not what users see"

// levelLoop is the loop of a level.
func levelLoop(s *experiment.Study, level string) string {
	if facts := s.Level(level); facts != nil && facts.Flags["rate"] == "" {
		return result.LoopClosed
	}
	return result.LoopOpen
}

// isPercentile reports whether a metric is a percentile of the latency.
func isPercentile(metric string) bool {
	return metric == experiment.MetricP50 || metric == experiment.MetricP99
}

// MetricTitle is the title of a metric at a level. Percentiles of a closed loop are labelled.
func MetricTitle(s *experiment.Study, metric, level string) string {
	title := metric
	if m := s.Metric(metric); m != nil {
		title = m.Title
	}
	if isPercentile(metric) && levelLoop(s, level) == result.LoopClosed {
		title += " (closed loop)"
	}
	return title
}

// shownVariants are the variants that have a cell at the level, in the order of the file.
func shownVariants(s *experiment.Study, level string) []string {
	var names []string
	for _, v := range s.Manifest.Variants {
		if s.Cell(v.Name, level) != nil {
			names = append(names, v.Name)
		}
	}
	return names
}

func peakSection(s *experiment.Study) sheet.Section {
	t := &sheet.Table{Heads: []string{"variant", "peak", "blocks", "against", "ratio", "interval", "A/A", "verdict"}, Left: []int{0, 7}}
	section := sheet.Section{
		Title: "Peak", Table: t,
		Note: "The highest rate that met " + s.Manifest.SLO + ", median over the blocks (lowest–highest). " + controlNote,
	}
	for _, name := range shownVariants(s, "") {
		cell := s.Cell(name, "")
		row := []string{
			name, studyRange(s.Figure(experiment.MetricPeak, name, ""), sheet.UnitRate), sheet.Integer(cell.Runs), "-", "-",
			"-", "-", "-",
		}
		if c := s.Compared(experiment.MetricPeak, "", name); c != nil {
			row[3], row[4], row[5], row[6], row[7] = c.Baseline, ratioText(s, c), spanText(s, c), controlText(s, c), verdictWords(s, c)
		}
		t.Add(doubtful(cell.Figures[experiment.MetricPeak].Unproved), row...)
	}
	return section
}

// doubtful is the mark of a row whose figures are not proved.
func doubtful(is bool) string {
	if is {
		return "doubtful"
	}
	return ""
}

// levelSections are the tables of one level: answers and cost.
func levelSections(s *experiment.Study, level string) []sheet.Section {
	title := "At " + level
	if flags := levelFlags(s, level); flags != "" {
		title += " (" + flags + ")"
	}
	answers, cost := sheet.Section{Title: title + ": answers"}, sheet.Section{Title: title + ": cost"}
	answered := presentColumns(s, level, metricColumns(s, experiment.MetricRate, experiment.MetricP50, experiment.MetricP99,
		experiment.MetricConnect, experiment.MetricFirstByte, experiment.MetricErrors, experiment.Metric502, experiment.MetricFirstFailure))
	costs := presentColumns(s, level, costColumns(s))
	heads := func(cols []studyColumn, last ...string) []string {
		row := []string{"variant"}
		for _, c := range cols {
			if isPercentile(c.metric) {
				c.title = MetricTitle(s, c.metric, level)
			}
			row = append(row, c.title)
		}
		return append(row, last...)
	}
	if levelLoop(s, level) == result.LoopClosed {
		answers.Note = sentence([]string{closedLoopNote})
	}
	answers.Table = &sheet.Table{Heads: heads(answered, "blocks", "error classes", "not valid"), Left: []int{0, len(answered) + 3}}
	cost.Table = &sheet.Table{Heads: heads(costs), Left: []int{0}}
	for _, name := range shownVariants(s, level) {
		cell := s.Cell(name, level)
		mark := doubtful(cell.NotValid() > 0)
		row := append(columnCells(cell, answered, name), sheet.Integer(cell.Runs), errorClasses(cell), invalidRuns(cell))
		answers.Table.Add(mark, row...)
		cost.Table.Add(mark, columnCells(cell, costs, name)...)
	}
	if slices.ContainsFunc(s.Manifest.Hosts, func(h experiment.HostFacts) bool { return h.CPUs > 0 }) {
		cost.Note = "host used: part of its share of CPU. throttled: part of the time in which its quota stopped it."
	}
	if len(costs) == 0 {
		return []sheet.Section{answers}
	}
	return []sheet.Section{answers, cost}
}

// A studyColumn is one column of a level's table.
type studyColumn struct {
	title  string
	metric string
	plus   string // second metric, written behind a plus sign
	unit   string
}

func (c studyColumn) cell(cell *experiment.Cell) string {
	first, ok := cell.Figures[c.metric]
	if !ok {
		return "-"
	}
	if c.plus == "" {
		return studyRange(&first, c.unit) + failMark(cell, c.metric)
	}
	second, ok := cell.Figures[c.plus]
	if !ok {
		return "-"
	}
	numbers, suffix := sheet.Together(c.unit, first.Median, second.Median)
	return numbers[0] + " + " + numbers[1] + suffix
}

// failMark marks the times of a cell that fails.
func failMark(cell *experiment.Cell, metric string) string {
	if cell.Fails() && (isPercentile(metric) || metric == experiment.MetricFirstByte) {
		return " !"
	}
	return ""
}

// metricColumns are a column per metric.
func metricColumns(s *experiment.Study, metrics ...string) []studyColumn {
	cols := make([]studyColumn, len(metrics))
	for i, metric := range metrics {
		cols[i].metric = metric
		if m := s.Metric(metric); m != nil {
			cols[i].title, cols[i].unit = m.Title, m.Unit
		}
	}
	return cols
}

func costColumns(s *experiment.Study) []studyColumn {
	var cols []studyColumn
	for _, process := range watchedProcesses(s) {
		name := func(metric string) string { return metric + "." + process }
		of := metricColumns(s, name(experiment.MetricCores), name(experiment.MetricCoreUser), name(experiment.MetricCPU),
			name(experiment.MetricCPUUser))
		of[1].title, of[1].plus = "user + sys", name(experiment.MetricCoreSystem)
		of[3].title, of[3].plus = "user + sys", name(experiment.MetricCPUSystem)
		cols = append(cols, of...)
	}
	for _, h := range s.Manifest.Hosts {
		of := metricColumns(s, experiment.MetricHostUsed+"."+h.Name, experiment.MetricThrottled+"."+h.Name)
		of[1].title = "throttled" // of the host in the column before
		cols = append(cols, of...)
	}
	return append(cols, metricColumns(s, experiment.MetricTimeWait, experiment.MetricPorts, experiment.MetricOpens, experiment.MetricOverflows,
		experiment.MetricFiles, experiment.MetricSessions, experiment.MetricLoad, experiment.MetricGenerator)...)
}

// watchedProcesses are the processes that have metrics, in order.
func watchedProcesses(s *experiment.Study) []string {
	var names []string
	for _, m := range s.Metrics {
		if m.Process != "" && !slices.Contains(names, m.Process) {
			names = append(names, m.Process)
		}
	}
	return names
}

// presentColumns removes columns that are empty at the level.
func presentColumns(s *experiment.Study, level string, cols []studyColumn) []studyColumn {
	return slices.DeleteFunc(cols, func(c studyColumn) bool {
		return !slices.ContainsFunc(shownVariants(s, level), func(name string) bool { return s.Figure(c.metric, name, level) != nil })
	})
}

func columnCells(cell *experiment.Cell, cols []studyColumn, variant string) []string {
	row := []string{variant}
	for _, c := range cols {
		row = append(row, c.cell(cell))
	}
	return row
}

// errorClasses lists failed requests of all runs by class.
func errorClasses(cell *experiment.Cell) string {
	var parts []string
	for _, class := range result.ErrorClasses() {
		if n := cell.Errors[class.String()]; n > 0 {
			parts = append(parts, class.String()+" "+sheet.Integer(n))
		}
	}
	if bad := badStatuses(cell.Statuses); bad != "" {
		parts = append(parts, "HTTP "+bad)
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// invalidRuns counts the runs that are not valid by verdict.
func invalidRuns(cell *experiment.Cell) string {
	var parts []string
	for _, validity := range slices.Sorted(maps.Keys(cell.Validity)) {
		if validity == result.Valid {
			continue
		}
		parts = append(parts, fmt.Sprintf("%d %s", cell.Validity[validity], validity.Word()))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// levelFlags are the flags of load and the settings that define a level.
func levelFlags(s *experiment.Study, level string) string {
	facts := s.Level(level)
	if facts == nil {
		return ""
	}
	var parts []string
	for _, flag := range []string{"rate", "connections", "per_connection", "duration"} {
		if v := facts.Flags[flag]; v != "" && !strings.Contains(v, "{{") {
			parts = append(parts, strings.ReplaceAll(flag, "_", " ")+" "+v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(facts.Settings)) {
		parts = append(parts, name+" "+facts.Settings[name])
	}
	return strings.Join(parts, ", ")
}

// byLevelSections are a table per metric of the experiment's charts, if there are at least three levels.
func byLevelSections(s *experiment.Study) []sheet.Section {
	var all []sheet.Section
	var done []string
	for _, chart := range s.Charts {
		metric := s.Metric(chart.Metric)
		if metric == nil || chart.Level == "" || len(s.Manifest.Levels) < 3 || slices.Contains(done, metric.Name) {
			continue
		}
		done = append(done, metric.Name)
		all = append(all, byLevelSection(s, metric))
	}
	return all
}

// byLevelSection has the medians of one metric with levels as columns.
func byLevelSection(s *experiment.Study, metric *experiment.Metric) sheet.Section {
	t := &sheet.Table{Heads: []string{"variant"}, Left: []int{0}}
	for _, level := range s.Manifest.Levels {
		t.Heads = append(t.Heads, level.Name)
	}
	for _, v := range s.Manifest.Variants {
		row := []string{v.Name}
		for _, level := range s.Manifest.Levels {
			text := "-"
			if f := s.Figure(metric.Name, v.Name, level.Name); f != nil {
				cell := s.Cell(v.Name, level.Name)
				text = sheet.Text(f.Median, metric.Unit) + failMark(cell, metric.Name)
				if f.Unproved {
					text += "*"
				}
			}
			row = append(row, text)
		}
		t.Add("", row...)
	}
	return sheet.Section{
		Title: metric.Title + " by level", Table: t,
		Note: "Medians over the VALID runs. *: over all, because none supports the figure.",
	}
}

// keyComparisons are the comparisons of the leading metric and the p99 at each key level.
func keyComparisons(s *experiment.Study) []experiment.Comparison {
	var key []experiment.Comparison
	for _, level := range keyLevels(s) {
		leading := s.Leading(level)
		for _, metric := range []string{leading, experiment.MetricP99} {
			if metric == experiment.MetricP99 && leading == experiment.MetricP99 && len(key) > 0 && key[len(key)-1].Level == level {
				continue
			}
			for _, c := range s.Comparisons {
				if c.Level == level && c.Metric == metric {
					key = append(key, c)
				}
			}
		}
	}
	return key
}

// comparisonNote explains comparisonSection.
func comparisonNote() string {
	return fmt.Sprintf("ratio: variant over baseline, geometric mean of the blocks that have both. interval: %d %% t interval of its "+
		"logarithm for this "+
		"comparison alone, or the range of the blocks if nothing is claimed. p: adjusted by Holm over the comparisons of the metric "+
		"(for A/A controls over all metrics); below %g is a difference. could have seen: smallest effect detectable with %d %% power. "+
		"Only pairs of VALID runs count, and none in which a side fails more than %g %% of its requests. %s",
		int(stats.Level*100), stats.Alpha, int(stats.Power*100), 100*result.ErrorShareMax, controlNote)
}

// KeyComparisons is the table of the comparisons of the leading metric and the p99 at each key level.
func KeyComparisons(s *experiment.Study) *sheet.Table {
	return comparisonSection(s, keyComparisons(s), "").Table
}

func comparisonSection(s *experiment.Study, comparisons []experiment.Comparison, title string) sheet.Section {
	t := &sheet.Table{
		Heads: []string{"variant", "against", "metric", "level", "ratio", "interval", "A/A", "p", "could have seen", "pairs", "verdict"},
		Left:  []int{0, 10},
	}
	for i := range comparisons {
		c := &comparisons[i]
		name := c.Variant
		if c.Again {
			name = "A/A: " + name
		}
		t.Add(
			"", name, c.Baseline, MetricTitle(s, c.Metric, c.Level), cmp.Or(c.Level, "-"), ratioText(s, c), spanText(s, c), controlText(s, c),
			pvalue(c.P), effect(c.MinimumEffect), sheet.Integer(c.Pairs), verdictWords(s, c),
		)
	}
	return sheet.Section{Title: title, Table: t, Note: comparisonNote()}
}

// differenceSection shows factors and settings that differ between variants.
func differenceSection(s *experiment.Study) sheet.Section {
	factors, settings := varying(s, func(v experiment.VariantFacts) map[string]string { return v.Values }),
		varying(s, func(v experiment.VariantFacts) map[string]string { return v.Settings })
	heads := append([]string{"variant", "baseline"}, factors...)
	for _, name := range settings {
		heads = append(heads, "setting "+name)
	}
	t := &sheet.Table{Heads: append(heads, "services"), Left: []int{0, len(heads)}}
	for _, v := range s.Manifest.Variants {
		base := s.Variant(v.Baseline)
		if base == nil {
			base = &v
		}
		row := []string{v.Name, cmp.Or(v.Baseline, "-")}
		for _, name := range factors {
			row = append(row, marked(v.Values[name], base.Values[name]))
		}
		for _, name := range settings {
			row = append(row, marked(v.Settings[name], base.Settings[name]))
		}
		row = append(row, marked(strings.Join(v.Services, " "), strings.Join(base.Services, " ")))
		t.Add("", row...)
	}
	return sheet.Section{Title: "What differs", Table: t, Note: "*: differs from the baseline. Everything else is equal in all variants."}
}

func marked(value, base string) string {
	text := cmp.Or(value, "-")
	if value != base {
		text += " *"
	}
	return text
}

// varying returns the names whose values differ between variants.
func varying(s *experiment.Study, of func(experiment.VariantFacts) map[string]string) []string {
	var names []string
	for _, v := range s.Manifest.Variants {
		for name, value := range of(v) {
			if first := of(s.Manifest.Variants[0])[name]; first != value && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}
