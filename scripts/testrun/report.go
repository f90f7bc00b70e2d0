package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is a line of go test -json (see go doc test2json).
type event struct {
	Time       time.Time
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// name identifies a test, or with an empty test a package.
type name struct{ pkg, test string }

// report collects events and prints what matters of them. Its methods may be called
// concurrently.
type report struct {
	out      io.Writer
	logs     string // directory of servers' logs
	begin    time.Time
	terminal bool

	mu      sync.Mutex
	status  bool               // a status line is on the terminal
	output  map[name][]string  // of running and failed tests
	running map[name]time.Time // and when they began
	skipped map[string][]name  // by reason
	seconds map[string]float64 // of finished packages
	failed  []string           // packages
	counts  struct{ passed, failed int }
}

func newReport(out io.Writer, logs string, begin time.Time) *report {
	return &report{
		out: out, logs: logs, begin: begin,
		output: map[name][]string{}, running: map[name]time.Time{}, skipped: map[string][]name{}, seconds: map[string]float64{},
	}
}

// add takes the next event.
func (r *report) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := name{e.Package, e.Test}
	switch e.Action {
	case "run":
		r.running[n] = e.Time
	case "pause": // waits for its turn beside others
		delete(r.running, n)
	case "cont":
		r.running[n] = e.Time
	case "output":
		r.output[n] = append(r.output[n], e.Output)
	case "build-output":
		r.printLocked(e.Output)
	case "pass", "fail", "skip":
		delete(r.running, n)
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(n, e.Action)
		}
	}
}

func (r *report) endTest(n name, action string) {
	switch {
	case action == "pass":
		delete(r.output, n)
		r.counts.passed++
	case action == "skip":
		reason := "unknown reason"
		if lines := messages(r.output[n]); len(lines) > 0 {
			_, reason, _ = strings.Cut(lines[0], ": ")
		}
		r.skipped[reason] = append(r.skipped[reason], n)
		delete(r.output, n)
	default:
		r.counts.failed++
		first := "no message"
		if lines := messages(r.output[n]); len(lines) > 0 {
			first = lines[0]
		}
		where := ""
		if _, err := os.Stat(r.logs); err == nil {
			where = " (servers' logs: " + r.logs + ")"
		}
		r.printLocked(fmt.Sprintf("FAIL %s %s: %s%s\n%s", short(n.pkg), n.test, first, where, strings.Join(r.output[n], "")))
	}
}

// endPackage prints go test's line about the package, and all other output if it failed.
func (r *report) endPackage(e event) {
	n := name{e.Package, ""}
	lines := r.output[n]
	delete(r.output, n)
	if e.Action != "fail" {
		lines = lines[max(0, len(lines)-1):]
	} else {
		r.failed = append(r.failed, short(e.Package))
		for _, unfinished := range slices.SortedFunc(maps.Keys(r.running), byName) {
			if unfinished.pkg == e.Package { // the process ended meanwhile
				r.counts.failed++
				r.printLocked(fmt.Sprintf("FAIL %s %s: did not end\n%s", short(e.Package), unfinished.test, strings.Join(r.output[unfinished], "")))
				delete(r.running, unfinished)
			}
		}
	}
	if e.Action == "skip" { // there are no tests
		return
	}
	r.seconds[short(e.Package)] = e.Elapsed
	r.printLocked(strings.Join(lines, ""))
}

func byName(a, b name) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test)) }

// messages returns what the test itself printed.
func messages(output []string) []string {
	var lines []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			lines = append(lines, line)
		}
	}
	return lines
}

func short(pkg string) string { return strings.TrimPrefix(pkg, "spillway/") }

// progress says which tests run for more than ten seconds, and what else.
func (r *report) progress(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	tests := slices.SortedFunc(maps.Keys(r.running), func(a, b name) int { return r.running[a].Compare(r.running[b]) })
	var parts []string
	for _, n := range tests {
		if age := now.Sub(r.running[n]); len(parts) < 3 && !strings.Contains(n.test, "/") && age >= 10*time.Second {
			parts = append(parts, fmt.Sprintf("%s %s (%.0f s)", short(n.pkg), n.test, age.Seconds()))
		}
	}
	if len(parts) == 0 && !r.terminal {
		return
	}
	text := fmt.Sprintf("%.0f s: %d tests passed, %d failed", now.Sub(r.begin).Seconds(), r.counts.passed, r.counts.failed)
	if len(parts) > 0 {
		text += "; running: " + strings.Join(parts, ", ")
	}
	if !r.terminal {
		r.printLocked(text + "\n")
		return
	}
	const width = 150
	r.printLocked(text[:min(len(text), width)])
	r.status = true
}

// print prints text in place of the status line.
func (r *report) print(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.printLocked(text)
}

func (r *report) printLocked(text string) {
	if r.status {
		text, r.status = "\r\033[K"+text, false
	}
	fmt.Fprint(r.out, text)
}

// finish prints what was not run and the last line.
func (r *report) finish(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	skipped := 0
	for _, reason := range slices.Sorted(maps.Keys(r.skipped)) {
		names := r.skipped[reason]
		skipped += len(names)
		r.printLocked(notRun(reason, names))
	}
	slowest := slices.SortedFunc(maps.Keys(r.seconds), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.seconds[b], r.seconds[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, pkg := range slowest[:min(3, len(slowest))] {
		parts = append(parts, fmt.Sprintf("%s %.0f s", pkg, r.seconds[pkg]))
	}
	if len(r.failed) > 0 {
		r.printLocked(fmt.Sprintf("failed: %s\n", strings.Join(r.failed, ", ")))
	}
	r.printLocked(fmt.Sprintf("%d passed, %d failed, %d skipped\n", r.counts.passed, r.counts.failed, skipped))
	r.printLocked(fmt.Sprintf("%d packages, %d tests in %.0f s; slowest: %s\n",
		len(r.seconds), r.counts.passed+r.counts.failed, now.Sub(r.begin).Seconds(), strings.Join(parts, ", ")))
}

// notRun names the tests that were skipped for a reason, and the command that runs them.
func notRun(reason string, names []name) string {
	switch reason {
	case "needs root":
		var list []string
		for _, n := range names {
			list = append(list, short(n.pkg)+" "+n.test)
		}
		slices.Sort(list)
		return fmt.Sprintf("Not run, because they need root (control groups, network namespaces, other users); run them with: sudo make "+
			"test\n  %s\n", strings.Join(list, "\n  "))
	case "long":
		return fmt.Sprintf("%d long tests were left to: make race, make long\n", len(names))
	}
	return fmt.Sprintf("Not run (%s): %v\n", reason, names)
}
