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

// right is in how many runs of the failure the first verdict was right, and of how many.
func (f *failure) right(t *tried) (n, of int) {
	if t == nil {
		return 0, 0
	}
	for _, r := range t.Runs {
		if slices.Contains(f.Expect, r.Verdicts[0]) {
			n++
		}
	}
	return n, len(t.Runs)
}

// named reports whether most runs of the failure were named right.
func (f *failure) named() bool {
	n, of := f.right(f.variant("base"))
	return 2*n > of || of == 0
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
			if r.Met {
				text += ", holds"
			}
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
		for _, t := range r.Runs {
			for _, one := range t.Runs {
				f.Failures[i].add(variant{name: t.Name}, one)
			}
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

// commit is that of the tree, with -dirty if it differs.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
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
