package report

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// benchGroups is how many lines a step gets. benchstat needs 6 for an interval and 10 for a comparison.
const benchGroups = 10

// writeBench writes one benchmark per step with up to benchGroups lines, each over an equal share of the step's seconds.
// The lines of one run are not independent, so benchstat's interval only shows how steady the run was. To compare two
// builds, give benchstat several runs of each and -col label.
func writeBench(w io.Writer, runs []*run) error {
	var out bytes.Buffer
	out.WriteString("Unit req/s better=higher\nUnit p50-sec better=lower\nUnit p99-sec better=lower\n" +
		"Unit max-sec better=lower\nUnit cpu-sec/op better=lower\nUnit errors/op better=lower\n" +
		"Unit p50-at-least-sec better=lower\nUnit p99-at-least-sec better=lower\nUnit max-at-least-sec better=lower\n")
	for _, r := range runs {
		m := &r.Header.Machine
		out.WriteString("\n")
		if len(runs) > 1 {
			fmt.Fprintf(&out, "label: %s\n", oneLine(r.label))
		}
		fmt.Fprintf(&out, "target: %s\nspillway: %s\nhost: %s\ncpu: %s\nkernel: %s\n",
			oneLine(r.Header.Target), oneLine(r.Header.Tool), oneLine(m.Host), oneLine(m.CPU), oneLine(m.Kernel))
		for _, s := range r.steps {
			if err := benchStep(&out, s); err != nil {
				return fmt.Errorf("%s: %w", r.label, err)
			}
		}
	}
	return sheet.Emit(w, &out)
}

func benchStep(out *bytes.Buffer, s *step) error {
	name := benchName(s)
	n := len(s.Slices)
	// A short last slice is left out, because its rate means little.
	if n > 1 && s.Slices[n-1].Length < 0.9 {
		n--
	}
	if n == 0 {
		whole := bin{
			Counters: s.Total.Counters, response: s.response, length: s.Total.Elapsed,
			cpu: s.Total.Cost.CPUUser + s.Total.Cost.CPUSystem,
		}
		benchLine(out, name, &whole)
		return nil
	}
	groups := benchGroupsOf(n, s.Total.Rate())
	group, i, g := bin{response: exact(histogram.NewSlice())}, 0, 1
	for sec, err := range s.seconds() {
		if err != nil {
			return err
		}
		if i == n {
			break
		}
		group.add(sec)
		if i++; i == g*n/groups {
			benchLine(out, name, &group)
			group, g = bin{response: exact(histogram.NewSlice())}, g+1
		}
	}
	return nil
}

func benchName(s *step) string {
	name := fmt.Sprintf("BenchmarkLoad/loop=%s/connections=%d", tag(s.Loop), s.Step.Connections)
	if s.Loop == result.LoopOpen {
		name = fmt.Sprintf("BenchmarkLoad/loop=%s/rate=%s/connections=%d", s.Loop, decimal(s.OfferedHz), s.Step.Connections)
	}
	if s.PerConnection > 0 {
		name += fmt.Sprintf("/per_connection=%d", s.PerConnection)
	}
	if !s.valid() {
		name += "/validity=" + tag(s.validity())
	}
	return name
}

// benchGroupsOf returns the number of lines for a step. It is below benchGroups if fewer lines give each one enough
// samples for a p99 and still suffice for benchstat.
func benchGroupsOf(seconds int, hz float64) int {
	const enough = 6 // lines that a 95 % interval of the median needs
	if hz > 0 {
		wanted := int(math.Ceil(histogram.TailSamples / 0.01 / hz)) // seconds with enough samples for a p99
		if n := seconds / wanted; n >= enough {
			return min(benchGroups, n)
		}
	}
	return min(benchGroups, seconds)
}

// benchLine writes the line that sums up a bin.
func benchLine(out *bytes.Buffer, name string, b *bin) {
	if b.Requests() == 0 || b.length == 0 {
		return // a benchmark line needs at least one iteration
	}
	fmt.Fprintf(out, "%s %d %s req/s", name, b.Requests(), decimal(b.perSecond(b.Completed)))
	f := figuresOf(b.response)
	for _, figure := range []string{figureP50, figureP99, figureMax} {
		unit := figure + "-sec"
		if f.bounded(figure) {
			unit = figure + "-at-least-sec" // never compared with known times
		}
		if v := f.value(figure); v != nil {
			fmt.Fprintf(out, " %s %s", decimal(*v), unit)
		}
	}
	fmt.Fprintf(out, " %s errors/op", decimal(b.ErrorShare()))
	if b.cpu > 0 && b.Completed > 0 {
		fmt.Fprintf(out, " %s cpu-sec/op", decimal(b.cpu/float64(b.Completed)))
	}
	out.WriteString("\n")
}

func oneLine(text string) string { return strings.TrimSpace(sheet.Printable(text)) }

// tag replaces what a benchmark name cannot contain.
func tag(label string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("-_.", r) || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, label)
}
