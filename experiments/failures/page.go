//go:build linux

package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Places of the results and of what is made from them.
const (
	resultsPath = "experiments/failures/results/failures.json"
	pagePath    = "docs/explanation/failures.md"
	imagePath   = "docs/images/failures-%s.svg"
)

// writePage writes the page and its pictures below the root of the repository.
func writePage(root string) error {
	files, err := renderPage(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), text, 0o644); err != nil {
			return fmt.Errorf("write the page: %w", err)
		}
	}
	return nil
}

// renderPage returns the page and its pictures by path.
func renderPage(root string) (map[string][]byte, error) {
	all, err := readResults(filepath.Join(root, resultsPath))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	files := map[string][]byte{}
	out.WriteString(intro)
	var parts bytes.Buffer
	for _, s := range scenarios() {
		i := slices.IndexFunc(all.Failures, func(f *failure) bool { return f.Name == s.name })
		if i < 0 {
			continue
		}
		f := all.Failures[i]
		base := f.variant("base")
		if base == nil {
			return nil, fmt.Errorf("%s has no run of the failure itself", s.name)
		}
		fmt.Fprintf(&out, "| [%s](#%s) | %s | %s | %s | %s | %s | %s |\n", s.title, s.name, s.predictor, shortPrediction(base), shortSeen(base),
			base.predictedText(), f.namedText(), f.curedText(&s))
		if err := f.section(&parts, &s); err != nil {
			return nil, err
		}
		files[fmt.Sprintf(imagePath, s.name)] = f.picture(&s)
	}
	out.Write(parts.Bytes())
	files[pagePath] = bytes.ReplaceAll(out.Bytes(), []byte("~"), []byte("`")) // raw strings of the scenarios have no other marks
	return files, nil
}

// intro is the head of the page. A tilde stands for the mark of code.
const intro = `# Failures

<!-- made by bin/failures -write from experiments/failures/results/failures.json -->

Four teams' systems failed, and each found out why. Here each failure is made again, on the real programs, with what
tells of it: [~spillway doctor~](../reference/doctor.md) before the load, a [load](../reference/load.md) that runs into
it, and [~spillway diagnose~](../reference/diagnose.md) behind it. Then each cure is turned alone.

~make failures~ makes all of them, as root, in network namespaces that end with it; ~make failures ARGS=ports-nginx~
does one. Limits are scaled, which each part says. The load has one core, where it goes before other programs, and what
it loads the other. *Gone* means that the level met its limit of errors and times, *later* that it did, and that doctor
expects the failure after its end. A figure with * is of runs that were not all
[VALID](../reference/load.md#validity): the host was disturbed, or the load itself was what failed. Runs that only the
host disturbed were repeated.

A failure ran three times or more, each cure only once: what differs by less than the failure does from run to run is
called *not*. The runs are of several commits, which each part lists; what git does not know became part of 33100924.
Seconds count from 0, as in the reports: second 4 is the one that ends after 5 s.

Predictions are of three kinds: of ~doctor~; arithmetic, a formula in the source of the experiment; and own load,
arithmetic with what a request costs alone, which the experiment measures first. *As predicted* counts the runs of
the failure that failed within a second of the predicted one, that answered within 20 % of the predicted rate, or that
missed their limits after a warning.

| failure | predicted by | predicted | seen | as predicted | named right | cured by |
|---|---|---|---|---|---|---|
`

// section writes the part of a failure.
func (f *failure) section(out *bytes.Buffer, s *scenario) error {
	base := f.variant("base")
	first := base.last()
	seen := longSeen(base)
	if first.First != "" {
		seen += fmt.Sprintf(" The first error: `%s`.", strings.Trim(short(first.First), "`"))
	}
	if first.Logged != "" && first.Logged != first.First {
		seen += fmt.Sprintf(" The log of the other side: `%s`.", short(first.Logged))
	}
	predicted := "nothing"
	if first.Predicted != nil {
		predicted = strings.TrimSuffix(first.Predicted.Text, ".")
	}
	fmt.Fprintf(out, "\n## %s\n\n%s.\n\n%s\n\n", s.name, s.title, flow(strings.Join(s.story[:], " "), ""))
	for _, item := range []string{
		"**Scale.** " + s.scale, fmt.Sprintf("**Predicted** (%s). %s. As predicted: %s.", s.predictor, predicted, base.predictedText()),
		"**Seen.** " + seen,
		fmt.Sprintf("**Named.** %s. The first verdict: `%s`, \"%s\"", f.namedText(), first.Verdicts[0], short(first.Sentence)),
	} {
		fmt.Fprintf(out, "- %s\n", flow(item, "  "))
	}
	out.WriteString("\n")
	out.WriteString("| variant | good answers | errors | median | p99 | used | effect |\n|---|---|---|---|---|---|---|\n")
	for _, v := range append([]variant{{name: "base", title: "the failure"}}, s.cures...) {
		if t := f.variant(v.name); t != nil {
			fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s | %s |\n", v.title, t.text(sheet.UnitRate, goodRate),
				t.text(sheet.UnitShare, errorShare), t.text(sheet.UnitSeconds, typical), t.text(sheet.UnitSeconds, slowest), t.used(s), t.effect(base))
		}
	}
	fmt.Fprintf(out, "\n![%s](../images/failures-%s.svg)\n", s.title, s.name)
	doubt, err := f.withFigures(s.doubt)
	if doubt != "" {
		fmt.Fprintf(out, "\n%s\n", flow("**What to doubt.** "+doubt, ""))
	}
	measured := fmt.Sprintf("Measured at commits %s: %s of the failure, %s of each variant.", f.Commit, sheet.Plural(len(base.Runs), "run"),
		f.variantRuns(s))
	fmt.Fprintf(out, "\n%s\n\n%s\n", flow("**Today.** "+s.today, ""), flow(measured, ""))
	return err
}

// last is the last run.
func (t *tried) last() *run { return t.Runs[len(t.Runs)-1] }

// variantRuns is how often the variants ran.
func (f *failure) variantRuns(s *scenario) string {
	var all []int
	for _, v := range s.cures {
		if t := f.variant(v.name); t != nil {
			all = append(all, len(t.Runs))
		}
	}
	return span(all)
}

// predictedText is how many runs went as predicted, of those whose prediction can be refuted.
func (t *tried) predictedText() string {
	n, of := 0, 0
	for _, r := range t.Runs {
		if right, known := r.asPredicted(); known {
			of++
			if right {
				n++
			}
		}
	}
	if of == 0 {
		return "no figure to compare"
	}
	return fmt.Sprintf("%d of %d", n, of)
}

// placeholder is a figure of a variant in a text: {kept p50}.
var placeholder = regexp.MustCompile(`\{([a-z0-9-]+) ([a-z0-9-]+)\}`)

// withFigures puts the figures of runs into a text.
func (f *failure) withFigures(text string) (string, error) {
	var missing error
	text = placeholder.ReplaceAllStringFunc(text, func(mark string) string {
		words := placeholder.FindStringSubmatch(mark)
		t := f.variant(words[1])
		if t == nil {
			missing = fmt.Errorf("%s has no run for %s", f.Name, mark)
			return mark
		}
		switch words[2] {
		case "good":
			return sheet.Rate(t.middle(goodRate)) + t.doubt()
		case "errors":
			return sheet.Share(t.middle(errorShare)) + t.doubt()
		case "p50":
			return sheet.Duration(t.middle(typical)) + t.doubt()
		case "p99":
			return sheet.Duration(t.middle(slowest)) + t.doubt()
		}
		return sheet.Number(t.middle(func(r *run) float64 { return r.Figures[words[2]] })) + t.doubt()
	})
	return text, missing
}

// flow breaks a text into lines that begin with indent, but the first.
func flow(text, indent string) string {
	const most = 116
	var out strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch long := utf8.RuneCountInString(word); {
		case i > 0 && column+1+long > most:
			out.WriteString("\n" + indent)
			column = len(indent)
		case i > 0:
			out.WriteString(" ")
			column++
		}
		out.WriteString(word)
		column += utf8.RuneCountInString(word)
	}
	return out.String()
}

// tags are those of a page that is the first error.
var tags = regexp.MustCompile(`<[^>]*>`)

// short cuts a text that is only a sample.
func short(text string) string {
	const most = 260
	text = strings.ReplaceAll(tags.ReplaceAllString(text, ""), "|", "/")
	text = html.UnescapeString(strings.Join(strings.Fields(text), " "))
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

func shortPrediction(t *tried) string {
	switch p := t.last().Predicted; {
	case p == nil:
		return "-"
	case p.Seconds != nil:
		return "after " + sheet.Duration(*p.Seconds)
	case p.RateHz != nil:
		return "above " + t.text(sheet.UnitRate, func(r *run) float64 { return *r.Predicted.RateHz })
	}
	if strings.HasPrefix(t.last().Predicted.Text, "warn") {
		return "warned"
	}
	return "too many"
}

// shortSeen is when the failure began, or what it was.
func shortSeen(t *tried) string {
	r := t.last()
	kind := r.Class
	if r.Status > 0 {
		kind = fmt.Sprint(r.Status)
	}
	if seconds := t.seconds(); len(seconds) == len(t.Runs) {
		return fmt.Sprintf("%s from second %s", kind, span(seconds))
	}
	return t.text(sheet.UnitRate, goodRate) + ", p99 " + t.text(sheet.UnitSeconds, slowest)
}

func longSeen(t *tried) string {
	r := t.last()
	text := t.text(sheet.UnitRate, goodRate) + " good answers"
	if r.OfferedHz > 0 {
		text += " of " + sheet.Rate(r.OfferedHz)
	}
	if r.Class != "" {
		text += ", " + t.text(sheet.UnitShare, errorShare) + " errors, most of them " + r.Class
		if r.Status > 0 {
			text += fmt.Sprintf(" %d", r.Status)
		}
		if seconds := t.seconds(); len(seconds) > 0 {
			text += ", from second " + span(seconds) + " on"
		}
	}
	return text + "."
}

func goodRate(r *run) float64   { return r.GoodHz }
func errorShare(r *run) float64 { return r.Errors }
func typical(r *run) float64    { return r.P50 }
func slowest(r *run) float64    { return r.P99 }

// middle is the median of a figure.
func (t *tried) middle(of func(*run) float64) float64 {
	var all []float64
	for _, r := range t.Runs {
		all = append(all, of(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// seconds are those in which the runs failed first, from 0 on. Requests that were never sent are counted at the end: they have none.
func (t *tried) seconds() []int {
	var all []int
	for _, r := range t.Runs {
		if r.FirstSecond != nil && r.Class != result.Unsent.String() {
			all = append(all, *r.FirstSecond)
		}
	}
	return all
}

func span(n []int) string {
	if low, high := slices.Min(n), slices.Max(n); low != high {
		return fmt.Sprintf("%d to %d", low, high)
	}
	return fmt.Sprint(n[0])
}

// doubt is * if a run was not VALID.
func (t *tried) doubt() string {
	for _, r := range t.Runs {
		if r.Validity != string(result.Valid) && r.Validity != string(result.TooFewSamples) {
			return "*"
		}
	}
	return ""
}

// text is the median of a figure with its spread, and doubt.
func (t *tried) text(unit string, of func(*run) float64) string {
	var all []float64
	for _, r := range t.Runs {
		all = append(all, of(r))
	}
	slices.Sort(all)
	text := sheet.Text(all[len(all)/2], unit)
	if low, high := sheet.Text(all[0], unit), sheet.Text(all[len(all)-1], unit); low != high {
		text += " (" + low + "–" + high + ")"
	}
	return text + t.doubt()
}

// used is what a run used of what runs out.
func (t *tried) used(s *scenario) string {
	r := t.Runs[len(t.Runs)/2]
	switch {
	case s.chart == chartPorts:
		text := fmt.Sprintf("%s of %s ports; predicted to run out ", sheet.Number(r.Figures["ports"]), sheet.Number(r.Figures["range"]))
		if p := t.Runs[0].Predicted; p != nil && p.Seconds != nil {
			return text + "after " + sheet.Duration(*p.Seconds)
		}
		return text + "never"
	case s.name == "descriptors":
		return sheet.Number(r.Figures["app-files"]) + " files"
	case s.name == "accept-queue":
		return sheet.Number(r.Figures["overflows"]) + " overflows"
	case r.Figures["connections"] > 0:
		return fmt.Sprintf("%s sessions, database %.0f %% of a core (%.0f %% system)", sheet.Number(r.Figures["connections"]),
			100*(r.Figures["db-user"]+r.Figures["db-system"]), 100*r.Figures["db-system"])
	case r.Figures["app-user"] > 0:
		return fmt.Sprintf("program %.0f %% of a core", 100*(r.Figures["app-user"]+r.Figures["app-system"]))
	}
	return "-"
}

// effect is what a variant made of the failure. A rate within what the failure's own runs differ by is none.
func (t *tried) effect(base *tried) string {
	if t == base {
		return "fails"
	}
	a, b := t.last(), base.last()
	good, spread := t.middle(goodRate), base.spread(goodRate)
	times := ""
	if good > 1.1*spread[1] || good < 0.9*spread[0] {
		times = fmt.Sprintf("%.2g times as many", good/max(base.middle(goodRate), 1e-9))
	}
	predicted := t.last().Predicted
	switch met := t.met(); {
	case met == len(t.Runs) && predicted != nil && predicted.Seconds != nil:
		return "later: after " + sheet.Duration(*predicted.Seconds)
	case met == len(t.Runs) && a.OfferedHz == 0 && times != "":
		return "gone; " + times
	case met == len(t.Runs):
		return "gone"
	case met > 0:
		return fmt.Sprintf("gone in %d of %d runs", met, len(t.Runs))
	case times != "":
		return "not gone; " + times
	case a.Errors < b.Errors/2 && b.Errors > 0.01:
		return "not gone; fewer errors"
	}
	return "not"
}

// spread is the least and the most of a figure.
func (t *tried) spread(of func(*run) float64) [2]float64 {
	low, high := of(t.Runs[0]), of(t.Runs[0])
	for _, r := range t.Runs {
		low, high = min(low, of(r)), max(high, of(r))
	}
	return [2]float64{low, high}
}

// namedText says in how many runs the first verdict was right.
func (f *failure) namedText() string {
	n, of := f.right(f.variant("base"))
	text := fmt.Sprintf("%d of %d", n, of)
	for _, t := range f.Beside {
		if t.Name == "base" {
			n, of = f.right(t)
			text += fmt.Sprintf("; beside two busy loops %d of %d", n, of)
		}
	}
	return text
}

// curedText lists the variants in which the failure is gone.
func (f *failure) curedText(s *scenario) string {
	var gone []string
	for _, v := range s.cures {
		if t := f.variant(v.name); t != nil && strings.HasPrefix(t.effect(f.variant("base")), "gone") && t.met() == len(t.Runs) {
			gone = append(gone, v.title)
		}
	}
	if gone == nil {
		return "-"
	}
	return strings.Join(gone, "; ")
}
