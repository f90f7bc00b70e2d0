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

	"spillway/internal/lab/sheet"
)

// Places of the results and of what is made from them.
const (
	resultsPath = "experiments/failures/results/failures.json"
	pagePath    = "docs/failures.md"
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
		fmt.Fprintf(&out, "| [%s](#%s) | %s | %s | %s | %s |\n", s.title, s.name, shortPrediction(base), shortSeen(base),
			f.namedText(), f.curedText(&s))
		picture := f.section(&parts, &s)
		if picture != nil {
			files[fmt.Sprintf(imagePath, s.name)] = picture
		}
	}
	out.Write(parts.Bytes())
	files[pagePath] = bytes.ReplaceAll(out.Bytes(), []byte("~"), []byte("`")) // raw strings of the scenarios have no other marks
	return files, nil
}

// intro is the head of the page. A tilde stands for the mark of code.
const intro = `# Failures

<!-- made by bin/failures -write from experiments/failures/results/failures.json -->

Four teams' systems failed, and each found out why. Here each failure is made again, on the real programs, with what tells of it:
[~spillway doctor~](doctor.md) before the load, a [load](load.md) that runs into it, and [~spillway diagnose~](diagnose.md) behind it.
Then each cure is turned alone.

~make failures~ makes all of them, as root, in network namespaces that end with it; ~make failures ARGS=ports-nginx~ does one.
Limits are scaled, which each part says. The load has one core, and what it loads the other. *Gone* means that the level met its limit of
errors and times. A figure with * is of runs that were not all [VALID](load.md#validity): the host was disturbed, or the load itself was
what failed.

| failure | predicted | seen | named right | cured by |
|---|---|---|---|---|
`

// section writes the part of a failure and returns its picture, nil without one.
func (f *failure) section(out *bytes.Buffer, s *scenario) []byte {
	base := f.variant("base")
	first := base.Runs[0]
	fmt.Fprintf(out, "\n## %s\n\n%s.\n\n%s\n\n", s.name, s.title, flow(strings.Join(s.story[:], " ")))
	fmt.Fprintf(out, "- **Scale.** %s\n", flow(s.scale))
	if first.Predicted != nil {
		fmt.Fprintf(out, "- **Predicted.** %s.\n", strings.TrimSuffix(flow(first.Predicted.Text), "."))
	}
	fmt.Fprintf(out, "- **Seen.** %s", longSeen(base))
	if first.First != "" {
		fmt.Fprintf(out, " The first error: `%s`.", strings.Trim(short(first.First), "`"))
	}
	if first.Logged != "" && first.Logged != first.First {
		fmt.Fprintf(out, " The log of the other side: `%s`.", short(first.Logged))
	}
	fmt.Fprintf(out, "\n- **Named.** %s. The first verdict: `%s`, \"%s\"\n\n", f.namedText(), first.Verdicts[0], short(first.Sentence))
	out.WriteString("| variant | good answers | errors | p99 | used | effect |\n|---|---|---|---|---|---|\n")
	for _, v := range append([]variant{{name: "base", title: "the failure"}}, s.cures...) {
		if t := f.variant(v.name); t != nil {
			fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s |\n", v.title, t.text(sheet.UnitRate, goodRate),
				t.text(sheet.UnitShare, errorShare), t.text(sheet.UnitSeconds, slowest), t.used(s), t.effect(base))
		}
	}
	var picture []byte
	if s.chart != "" {
		picture = f.picture(s)
		fmt.Fprintf(out, "\n![%s](images/failures-%s.svg)\n", s.title, s.name)
	}
	if s.doubt != "" {
		fmt.Fprintf(out, "\n**What to doubt.** %s\n", flow(s.doubt))
	}
	fmt.Fprintf(out, "\n**Today.** %s\n\nMeasured at commit %s, %s.\n", flow(s.today), f.Commit, sheet.Plural(len(base.Runs), "run"))
	return picture
}

// flow writes a text of several lines as one.
func flow(text string) string { return strings.Join(strings.Fields(text), " ") }

// tags are those of a page that is the first error.
var tags = regexp.MustCompile(`<[^>]*>`)

// short cuts a text that is only a sample.
func short(text string) string {
	const most = 260
	text = html.UnescapeString(flow(strings.ReplaceAll(tags.ReplaceAllString(text, ""), "|", "/")))
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

func shortPrediction(t *tried) string {
	switch p := t.Runs[0].Predicted; {
	case p == nil:
		return "-"
	case p.Seconds != nil:
		return "after " + sheet.Duration(*p.Seconds)
	case p.RateHz != nil:
		return "above " + sheet.Rate(*p.RateHz)
	}
	if strings.HasPrefix(t.Runs[0].Predicted.Text, "warn") {
		return "warned"
	}
	return "too many"
}

// shortSeen is when the failure began, or what it was.
func shortSeen(t *tried) string {
	r := t.Runs[0]
	kind := r.Class
	if r.Status > 0 {
		kind = fmt.Sprint(r.Status)
	}
	if seconds := t.seconds(); len(seconds) == len(t.Runs) && kind != "unsent" {
		return fmt.Sprintf("%s from second %s", kind, span(seconds))
	}
	return t.text(sheet.UnitRate, goodRate) + ", p99 " + t.text(sheet.UnitSeconds, slowest)
}

func longSeen(t *tried) string {
	r := t.Runs[0]
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
func slowest(r *run) float64    { return r.P99 }

// seconds are those in which the runs failed first, from 1 on.
func (t *tried) seconds() []int {
	var all []int
	for _, r := range t.Runs {
		if r.FirstSecond != nil {
			all = append(all, *r.FirstSecond+1)
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

// text is the median of a figure with its spread, and * if a run was not VALID.
func (t *tried) text(unit string, of func(*run) float64) string {
	var all []float64
	doubt := ""
	for _, r := range t.Runs {
		all = append(all, of(r))
		if r.Validity != "VALID" && r.Validity != "TOO_FEW_SAMPLES" {
			doubt = "*"
		}
	}
	slices.Sort(all)
	text := sheet.Text(all[len(all)/2], unit)
	if low, high := sheet.Text(all[0], unit), sheet.Text(all[len(all)-1], unit); low != high {
		text += " (" + low + "–" + high + ")"
	}
	return text + doubt
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

// effect is what a variant made of the failure.
func (t *tried) effect(base *tried) string {
	if t == base {
		return "fails"
	}
	met := 0
	for _, r := range t.Runs {
		if r.Met {
			met++
		}
	}
	a, b := t.Runs[len(t.Runs)/2], base.Runs[len(base.Runs)/2]
	ratio := a.GoodHz / max(b.GoodHz, 1e-9)
	switch {
	case a.OfferedHz == 0 && (ratio > 1.05 || ratio < 0.95):
		return fmt.Sprintf("%.2g times as many", ratio)
	case met == len(t.Runs):
		return "gone"
	case met > 0:
		return fmt.Sprintf("gone in %d of %d runs", met, len(t.Runs))
	case len(t.seconds()) > 0 && len(base.seconds()) > 0 && slices.Min(t.seconds()) > slices.Max(base.seconds())+1:
		return "later"
	case ratio > 1.2:
		return fmt.Sprintf("not gone; %.2g times as many", ratio)
	case a.Errors < b.Errors/2 && b.Errors > 0.01:
		return "not gone; fewer errors"
	}
	return "not"
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
		if t := f.variant(v.name); t != nil && t.effect(f.variant("base")) == "gone" {
			gone = append(gone, v.title)
		}
	}
	if gone == nil {
		return "-"
	}
	return strings.Join(gone, "; ")
}
