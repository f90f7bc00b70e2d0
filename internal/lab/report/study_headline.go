package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/sheet"
	"spillway/internal/stats"
)

func studyTitle(s *experiment.Study) string {
	return cmp.Or(s.Manifest.Title, s.Manifest.Name)
}

// newStudyHeadline states which variants fail, and the verdicts on the leading metric of the first key level. What has no
// verdict is not claimed.
func newStudyHeadline(s *experiment.Study) headline {
	h := headline{Mood: doubt, Text: "Nothing was measured.", Caveat: studyCaveat(s)}
	if len(s.Levels()) == 0 {
		return h
	}
	level := keyLevels(s)[0]
	text, claimed := "Nothing is claimed.", false
	if metric := s.Metric(s.Leading(level)); metric != nil {
		text, claimed = headlineClaim(s, metric, level)
	}
	h.Mood = good
	if h.Caveat != "" || !claimed {
		h.Mood = doubt
	}
	failing := failures(s)
	if len(failing) > 0 {
		h.Mood = bad
	}
	h.Text = strings.TrimSpace(strings.Join(append(failing, text), " "))
	return h
}

// headlineClaim writes the verdicts on a metric at a level. claimed is false if there are none.
func headlineClaim(s *experiment.Study, metric *experiment.Metric, level string) (text string, claimed bool) {
	const most = 3 // verdicts in a headline
	var differ, same []string
	for i := range s.Comparisons {
		c := &s.Comparisons[i]
		if c.Again || c.Metric != metric.Name || c.Level != level || c.Verdict == experiment.NoVerdict || c.Pairs == 0 {
			continue
		}
		if c.Verdict == experiment.VerdictNoneSeen || s.WithinControl(c) {
			same = append(same, c.Variant+" and "+c.Baseline)
			continue
		}
		differ = append(differ, fmt.Sprintf("%s %s that of %s, %s", c.Variant, ratioText(s, c), c.Baseline, verdictWords(s, c)))
	}
	what := metricAt(s, metric, level)
	switch {
	case len(differ) > most:
		return fmt.Sprintf("Verdicts on %s: %s; %d more below.", what, strings.Join(differ[:most], "; "), len(differ)-most), true
	case len(differ) > 0:
		return fmt.Sprintf("Verdicts on %s: %s.", what, strings.Join(differ, "; ")), true
	case len(same) > 0:
		return fmt.Sprintf("No difference seen in %s: %s.", what, strings.Join(same[:min(most, len(same))], "; ")), true
	}
	best, figure := bestVariant(s, metric, level)
	if figure == nil {
		return "Nothing is claimed.", false
	}
	extreme := "lowest"
	if metric.Better == experiment.BetterHigher {
		extreme = "highest"
	}
	return fmt.Sprintf("Nothing is claimed; %s %s seen: %s, %s.", extreme, what, best, studyRange(figure, metric.Unit)), false
}

// failures are a sentence about each variant that fails at a key level.
func failures(s *experiment.Study) []string {
	var lines []string
	for _, v := range s.Manifest.Variants {
		for _, level := range keyLevels(s) {
			if cell := s.Cell(v.Name, level); cell != nil && cell.Fails() && !v.Again {
				doubtful := ""
				if !cell.FailsByItself() {
					doubtful = " in runs that are not VALID"
				}
				lines = append(lines, fmt.Sprintf("%s fails%s: %s.", v.Name, doubtful, failure(s, v.Name, level)))
				break
			}
		}
	}
	return lines
}

// failure says how a variant fails at a level.
func failure(s *experiment.Study, variant, level string) string {
	cell := s.Cell(variant, level)
	if level == "" {
		return "no rate met " + s.Manifest.SLO
	}
	return fmt.Sprintf("%s of its requests%s (%s)", sheet.Share(cell.Figures[experiment.MetricErrors].Median), atLevelOf(s, level),
		errorClasses(cell))
}

// bestVariant is the variant with the best median of those that do not fail, A/A controls excluded.
func bestVariant(s *experiment.Study, metric *experiment.Metric, level string) (name string, best *experiment.Figure) {
	for _, v := range s.Manifest.Variants {
		f := s.Figure(metric.Name, v.Name, level)
		if v.Again || f == nil || s.Cell(v.Name, level).Fails() {
			continue
		}
		higher := best != nil && f.Median > best.Median
		if best == nil || f.Median != best.Median && higher == (metric.Better == experiment.BetterHigher) {
			name, best = v.Name, f
		}
	}
	return name, best
}

// metricAt names a metric and its level: "peak", "db CPU/req at rate-300".
func metricAt(s *experiment.Study, metric *experiment.Metric, level string) string {
	return MetricTitle(s, metric.Name, level) + atLevelOf(s, level)
}

// atLevelOf is " at rate-300", "" for a peak and if there is only one level.
func atLevelOf(s *experiment.Study, level string) string {
	if level == "" || len(s.Manifest.Levels) == 1 && s.Manifest.Peak == nil {
		return ""
	}
	return " at " + level
}

// studyCaveat lists what limits the conclusions.
func studyCaveat(s *experiment.Study) string {
	var parts []string
	if s.Manifest.Quick {
		parts = append(parts, "a quick run: ranges only, nothing is claimed")
	} else if !s.Claims() {
		parts = append(parts, fmt.Sprintf("fewer than %d pairs of VALID runs: ranges only, nothing is claimed", stats.MinPairs))
	}
	if s.Whole < s.Blocks {
		parts = append(parts, fmt.Sprintf("%d of %d blocks are whole", s.Whole, s.Blocks))
	}
	switch {
	case s.Ended == "":
		parts = append(parts, "the run has not ended")
	case s.Ended != "finished":
		parts = append(parts, "the run ended early: "+s.Ended)
	}
	if n := falseDifferences(s); n > 0 {
		parts = append(parts, fmt.Sprintf("the A/A pair differs in %d of its comparisons: the same twice did not measure the same", n))
	}
	doubtful, runs := 0, 0
	for i := range s.Cells {
		doubtful, runs = doubtful+s.Cells[i].NotValid(), runs+s.Cells[i].Runs
	}
	if doubtful > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s not valid", doubtful, sheet.Plural(runs, "run")))
	}
	return sentence(parts)
}

// falseDifferences is the number of differences in the A/A controls.
func falseDifferences(s *experiment.Study) int {
	n := 0
	for _, c := range s.Comparisons {
		if c.Again && c.Verdict != experiment.NoVerdict && c.Verdict != experiment.VerdictNoneSeen {
			n++
		}
	}
	return n
}

// studyFindings are a sentence about each A/A control and each variant.
func studyFindings(s *experiment.Study) []string {
	var lines []string
	for _, v := range s.Manifest.Variants {
		if v.Again {
			lines = append(lines, againFinding(s, &v))
		}
	}
	for _, v := range s.Manifest.Variants {
		if v.Again || v.Baseline == "" {
			continue
		}
		if line := finding(s, &v); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

func againFinding(s *experiment.Study, v *experiment.VariantFacts) string {
	judged, worst := 0, 1.0
	for _, c := range s.Comparisons {
		if c.Again && c.Variant == v.Name && c.Verdict != experiment.NoVerdict {
			judged++
			if c.MinimumEffect != nil {
				worst = max(worst, *c.MinimumEffect)
			}
		}
	}
	if judged == 0 {
		return fmt.Sprintf("A/A, %s twice: nothing can be claimed.", v.Baseline)
	}
	found := "no difference"
	if n := falseDifferences(s); n > 0 {
		found = sheet.Plural(n, "difference")
	}
	return fmt.Sprintf("A/A, %s twice: %s seen in %s; one of %s would have been, in the noisiest of them.",
		v.Baseline, found, sheet.Plural(judged, "comparison"), effect(&worst))
}

// finding compares a variant in the leading metric of each key level.
func finding(s *experiment.Study, v *experiment.VariantFacts) string {
	var parts []string
	for _, level := range keyLevels(s) {
		metric := s.Metric(s.Leading(level))
		if metric == nil {
			continue
		}
		c := s.Compared(metric.Name, level, v.Name)
		if c == nil {
			continue
		}
		if c.Pairs == 0 {
			parts = append(parts, fmt.Sprintf("%s: %s", metricAt(s, metric, level), verdictWords(s, c)))
			continue
		}
		verdict := shortVerdict(s, c, "no difference seen, one of "+effect(c.MinimumEffect)+" would have been")
		parts = append(parts, fmt.Sprintf("%s %s (%s), %s", metricAt(s, metric, level), ratioText(s, c), spanText(s, c), verdict))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("%s against %s (%s): %s.", v.Name, v.Baseline, changes(s, v), strings.Join(parts, "; "))
}

// shortVerdict is the verdict in few words. noneSeen are those for no difference.
func shortVerdict(s *experiment.Study, c *experiment.Comparison, noneSeen string) string {
	switch c.Verdict {
	case experiment.VerdictNoneSeen:
		return noneSeen
	case experiment.NoVerdict:
		return "no verdict"
	}
	return verdictWords(s, c)
}

// changes writes what differs from the baseline: "pool: none to pgbouncer".
func changes(s *experiment.Study, v *experiment.VariantFacts) string {
	base := s.Variant(v.Baseline)
	if base == nil || len(v.Differs) == 0 {
		return "nothing differs"
	}
	var parts []string
	for _, factor := range v.Differs {
		parts = append(parts, fmt.Sprintf("%s: %s to %s", factor, base.Values[factor], v.Values[factor]))
	}
	return strings.Join(parts, ", ")
}

// keyLevels are the levels that sentences and comparison panels cover: the peak, the levels of the charts, and otherwise
// all levels if there are few.
func keyLevels(s *experiment.Study) []string {
	const few = 3
	all := s.Levels()
	charted := func(level string) bool {
		return slices.ContainsFunc(s.Charts, func(c experiment.Chart) bool { return c.Level == level })
	}
	anyCharted := slices.ContainsFunc(all, func(level string) bool { return level != "" && charted(level) })
	var key []string
	for _, level := range all {
		if level == "" || charted(level) || !anyCharted && len(s.Manifest.Levels) <= few {
			key = append(key, level)
		}
	}
	if len(key) == 0 && len(all) > 0 {
		return all[len(all)-1:]
	}
	return key
}

// studyProblems are the problems as sentences, grouped by text.
func studyProblems(s *experiment.Study) []string {
	type group struct {
		text   string
		places []string
	}
	var groups []group
	for _, p := range s.Problems {
		place := strings.TrimSpace(strings.Join([]string{p.Variant, p.Level}, " "))
		if p.Block > 0 {
			place = strings.TrimSpace(fmt.Sprintf("block %d %s", p.Block, place))
		}
		i := slices.IndexFunc(groups, func(g group) bool { return g.text == p.Text })
		if i < 0 {
			groups = append(groups, group{text: p.Text})
			i = len(groups) - 1
		}
		groups[i].places = append(groups[i].places, place)
	}
	const named = 12 // places per line; the JSON has all
	var lines []string
	for _, g := range groups {
		places := strings.Join(g.places[:min(named, len(g.places))], ", ")
		if more := len(g.places) - named; more > 0 {
			places += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, g.text+" ("+places+")")
	}
	return lines
}
