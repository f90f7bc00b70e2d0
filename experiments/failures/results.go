package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

const resultsFormat = "spillway-failures"

// results are the committed file.
type results struct {
	Format   string     `json:"format"`
	Failures []*failure `json:"failures"`
}

// A failure is what a scenario gave.
type failure struct {
	Name   string   `json:"name"`
	Commit string   `json:"commit"` // of the tree that was measured
	Busy   bool     `json:"-"`
	Expect []string `json:"expected"`
	Runs   []*tried `json:"variants"`
	Beside []*tried `json:"beside_two_busy_loops,omitempty"`
}

// A tried is one variant with its runs.
type tried struct {
	Name string `json:"name"`
	Runs []*run `json:"runs"`
}

// A run is one run of a variant: its failing level.
type run struct {
	Predicted   *prediction        `json:"predicted,omitempty"`
	OfferedHz   float64            `json:"offered_hz,omitempty"`
	GoodHz      float64            `json:"good_hz"`
	Errors      float64            `json:"error_share"`
	Met         bool               `json:"slo_met"`
	Class       string             `json:"class,omitempty"`  // of most errors
	Status      int                `json:"status,omitempty"` // of most failing answers
	First       string             `json:"first_error,omitempty"`
	FirstSecond *int               `json:"first_second,omitempty"`
	Logged      string             `json:"logged,omitempty"`
	P50         float64            `json:"p50_seconds,omitempty"`
	P99         float64            `json:"p99_seconds,omitempty"`
	Verdicts    []string           `json:"verdicts"`
	Sentence    string             `json:"sentence"`
	Validity    string             `json:"validity"`
	Doubt       string             `json:"doubt,omitempty"`
	Figures     map[string]float64 `json:"figures"`
	Failed      []int64            `json:"failed_per_second,omitempty"`
	Ports       []float64          `json:"ports_per_second,omitempty"`
}

// A prediction is what is known before the load.
type prediction struct {
	Text    string   `json:"text"`
	Seconds *float64 `json:"seconds,omitempty"` // of the failing level, until it fails
	RateHz  *float64 `json:"rate_hz,omitempty"` // up to which it holds
}

func (f *failure) add(v variant, one *run) {
	for _, t := range f.Runs {
		if t.Name == v.name {
			t.Runs = append(t.Runs, one)
			return
		}
	}
	f.Runs = append(f.Runs, &tried{v.name, []*run{one}})
}

// variant returns the runs of a variant, nil without any.
func (f *failure) variant(name string) *tried {
	for _, t := range f.Runs {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// right is in how many runs the failure failed and the first verdict was right, and of how many.
func (f *failure) right(t *tried) (n, of int) {
	if t == nil {
		return 0, 0
	}
	for _, r := range t.Runs {
		if !r.Met && slices.Contains(f.Expect, r.Verdicts[0]) {
			n++
		}
	}
	return n, len(t.Runs)
}

// made reports whether the failure itself was run, and named whether most of these runs failed and were named right.
func (f *failure) made() (made, named bool) {
	n, of := f.right(f.variant("base"))
	return of > 0, 2*n > of
}

// met is how many runs met the SLO.
func (t *tried) met() (n int) {
	for _, r := range t.Runs {
		if r.Met {
			n++
		}
	}
	return n
}

// uncured are the variants that were run, and that cure by the table, without most of their runs meeting the SLO.
func (f *failure) uncured(s *scenario) (names []string) {
	for _, v := range s.cures {
		if t := f.variant(v.name); v.cures && t != nil && 2*t.met() <= len(t.Runs) {
			names = append(names, f.Name+"/"+v.name)
		}
	}
	return names
}

// rateNear is how far from a predicted rate, as a part of it, one is that was predicted right.
const rateNear = 0.2

// asPredicted reports whether a run went as predicted. known is false without a prediction that a run can refute.
func (r *run) asPredicted() (right, known bool) {
	p := r.Predicted
	switch {
	case p == nil:
		return false, false
	case p.Seconds != nil && *p.Seconds >= float64(len(r.Failed)):
		return r.Met, true // its end comes first
	case p.Seconds != nil:
		return r.FirstSecond != nil && math.Abs(float64(*r.FirstSecond)-*p.Seconds) <= 1, true
	case strings.HasPrefix(p.Text, "ok: "), p.RateHz != nil && r.OfferedHz > 0 && r.OfferedHz <= *p.RateHz:
		return r.Met, true
	case p.RateHz != nil:
		return math.Abs(r.GoodHz / *p.RateHz - 1) <= rateNear, true
	}
	known = strings.HasPrefix(p.Text, "warn: ") || strings.HasPrefix(p.Text, "fail: ")
	return known && !r.Met, known
}

// outcome says whether a run met its SLO, and whether that was predicted.
func (r *run) outcome() string {
	text := ", misses its SLO"
	if r.Met {
		text = ", meets its SLO"
	}
	if right, known := r.asPredicted(); known {
		text += map[bool]string{true: ", as predicted", false: ", not as predicted"}[right]
	}
	return text
}

// print writes a line for each variant.
func (f *failure) print(w io.Writer) {
	n, of := f.right(f.variant("base"))
	fmt.Fprintf(w, "%s: named %d of %d (%s)\n", f.Name, n, of, strings.Join(f.Expect, "/"))
	for _, t := range f.Runs {
		for _, r := range t.Runs {
			text := fmt.Sprintf("  %-12s %6.4g/s good, errors %.3g %%", t.Name, r.GoodHz, 100*r.Errors)
			if r.FirstSecond != nil {
				text += fmt.Sprintf(" from second %d (%s", *r.FirstSecond, r.Class)
				if r.Status > 0 {
					text += " " + strconv.Itoa(r.Status)
				}
				text += ")"
			}
			text += r.outcome()
			fmt.Fprintf(w, "%s, p50 %.3g ms, p99 %.3g ms, %s; %s\n", text, 1000*r.P50, 1000*r.P99, r.Validity, strings.Join(r.Verdicts, ", "))
			if r.Predicted != nil {
				fmt.Fprintf(w, "      predicted: %s\n", r.Predicted.Text)
			}
			if t.Name == "base" {
				fmt.Fprintf(w, "      %s\n", r.Sentence)
			}
			for _, more := range []string{r.Doubt, r.First, r.Logged} {
				if more != "" {
					fmt.Fprintf(w, "      %s\n", more)
				}
			}
			figures, _ := json.Marshal(r.Figures) // a map of numbers
			fmt.Fprintf(w, "      %s\n", figures)
		}
	}
}

// put puts a failure in place of an earlier one of its name. A run beside busy loops goes to the quiet one.
func (f *results) put(r *failure, busy, add bool) error {
	i := slices.IndexFunc(f.Failures, func(old *failure) bool { return old.Name == r.Name })
	switch {
	case busy && i < 0:
		return fmt.Errorf("%s has no quiet runs yet", r.Name)
	case add && i >= 0 && !busy:
		before := f.Failures[i]
		for _, t := range r.Runs {
			for _, one := range t.Runs {
				before.add(variant{name: t.Name}, one)
			}
		}
		if !strings.Contains(before.Commit, r.Commit) {
			before.Commit += ", " + r.Commit
		}
	case busy:
		f.Failures[i].Beside = r.Runs
	case i >= 0:
		r.Beside = f.Failures[i].Beside
		f.Failures[i] = r
	default:
		f.Failures = append(f.Failures, r)
	}
	return nil
}

// readResults reads the committed file.
func readResults(path string) (*results, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f results
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if f.Format != resultsFormat {
		return nil, errors.New(path + " has no results of failures")
	}
	return &f, nil
}

// commit is that of the tree, with -dirty if more than the results and the page differs.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	const made, page = ":(top,exclude)experiments/failures/results", ":(top,exclude)docs"
	if exec.Command("git", "diff", "--quiet", "HEAD", "--", ":/", made, page).Run() != nil {
		name += "-dirty"
	}
	return name
}

// round keeps four digits.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 3, 64), 64)
	if err != nil {
		return v
	}
	return rounded
}
