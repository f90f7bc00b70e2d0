package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// WriteAgainst compares a run with a base, step by step, and writes the comparison. limits bound the changes, as in
// "p99>+10%,rate<-5%", which "errors>+1%pt" is added to; "" only compares. An exceeded limit is an error with the code
// exit.Failed. If a run ended early, a compared step is not a valid measurement or a figure with a limit cannot be compared, it
// is one with the code exit.NothingValid.
func WriteAgainst(w io.Writer, format Format, base, now *result.Run, limits string) error {
	bounds, err := parseLimits(limits)
	if err != nil {
		return exit.UsageError(err)
	}
	runs, err := decode([]*result.Run{base, now})
	if err != nil {
		return err
	}
	c, err := compare(runs[0], runs[1], withErrors(bounds))
	if err != nil {
		return err
	}
	if len(c.changes) == 0 {
		return exit.UsageError(fmt.Errorf("%s and %s have no step in common: steps are matched by name", runs[1].label, runs[0].label))
	}
	switch format {
	case Text:
		err = c.sheet().WriteText(w)
	case Markdown, Summary:
		err = c.sheet().WriteMarkdown(w)
	case JUnit:
		err = c.writeJUnit(w)
	default:
		return exit.UsageError(fmt.Errorf("a comparison has the formats text, markdown, summary and junit, not %s", format))
	}
	if err != nil {
		return err
	}
	return c.failure()
}

// failure is the error that sets the exit code, nil if nothing failed.
func (c *comparison) failure() error {
	message := errors.New(strings.TrimSuffix(c.headline(), "."))
	switch {
	case !c.judged:
		return nil
	case len(c.invalid) > 0:
		return exit.NothingValidError(message)
	case len(c.with(aboveLimit)) > 0:
		return exit.FailedError(message)
	case len(c.with(notComparable)) > 0:
		return exit.NothingValidError(message)
	}
	return nil
}

// headline is the verdict in a sentence.
func (c *comparison) headline() string {
	failed, unknown := c.with(aboveLimit), c.with(notComparable)
	var parts []string
	switch {
	case !c.judged:
		return fmt.Sprintf("%s against %s.", c.now.label, c.base.label)
	case len(c.invalid) > 0:
		return "Not judged, because only valid measurements can be compared: " + strings.Join(c.invalid, "; ") + "."
	case len(failed) > 0:
		for _, one := range failed {
			parts = append(parts, fmt.Sprintf("%s at %s changed by %s (%s)", one.name(), one.step, one.sizeText(), one.text))
		}
	case len(unknown) > 0:
		for _, one := range unknown {
			parts = append(parts, fmt.Sprintf("%s at %s (%s)", one.name(), one.step, one.why()))
		}
		return "Not judged: " + strings.Join(parts, "; ") + "."
	default:
		return fmt.Sprintf("No change exceeds its limit: %s against %s.", c.now.label, c.base.label)
	}
	return strings.Join(parts, "; ") + "."
}

// againstNote explains the table of a comparison.
const againstNote = "In brackets: 95 % interval. A change fails if it exceeds its limit and the intervals do not overlap. " +
	"One run of each shows large changes only; spillway experiment repeats both and compares them."

// sheet is the comparison for people.
func (c *comparison) sheet() *sheet.Sheet {
	t := &sheet.Table{Heads: []string{"step", "figure", c.base.label, c.now.label, "change", "limit", "verdict"}, Left: []int{0}}
	for _, one := range c.changes {
		verdict := string(one.verdict)
		if one.verdict == notComparable && one.text != "" {
			verdict += ": " + one.why()
		}
		if c.judged && len(c.invalid) > 0 && one.text != "" {
			verdict = "not judged"
		}
		t.Add("", one.step, one.name(), one.base.show(one.figure), one.now.show(one.figure), one.sizeText(), cmp.Or(one.text, "-"), verdict)
	}
	section := sheet.Section{Table: t, Lines: slices.Concat(c.invalid, c.alone), Note: againstNote}
	return &sheet.Sheet{Verdict: c.headline(), Sections: []sheet.Section{section}}
}

// name is the figure with its named request: "p99{login}".
func (l *limit) name() string {
	if l.label != "" {
		return l.figure + "{" + l.label + "}"
	}
	return l.figure
}

// sizeText writes the change: "+12 %", "+1.2 %pt", or "-" if it is unknown.
func (c *change) sizeText() string {
	size := c.size() * 100
	if c.base.missing != "" || c.now.missing != "" || c.base.atLeast || math.IsNaN(size) {
		return "-"
	}
	unit := " %"
	if c.figure == "errors" {
		unit = " %pt"
	}
	text := sheet.Number(size) + unit
	if size >= 0 {
		text = "+" + text
	}
	if c.now.atLeast {
		text = ">= " + text
	}
	return text
}

// why says why a figure cannot be compared.
func (c *change) why() string {
	switch {
	case c.base.missing != "":
		return "base: " + c.base.missing
	case c.now.missing != "":
		return c.now.missing
	case c.base.atLeast && c.now.atLeast:
		return "it falls among requests without an answer in both"
	}
	return "it is 0 in the base"
}

// show writes a figure with its interval: "4.2 ms (4.1 ms to 4.3 ms)".
func (r *reading) show(figure string) string {
	if r.missing != "" {
		return "-"
	}
	unit := sheet.UnitSeconds
	switch figure {
	case "rate":
		unit = sheet.UnitRate
	case "errors":
		unit = sheet.UnitShare
	}
	value, low := sheet.Text(r.value, unit), sheet.Text(max(r.low, 0), unit)
	if r.atLeast {
		value = sheet.AtLeast(r.value, unit)
	}
	if math.IsInf(r.high, 1) {
		return value + " (from " + low + ")"
	}
	return value + " (" + low + " to " + sheet.Text(r.high, unit) + ")"
}
