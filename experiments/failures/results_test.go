//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runs are those of a variant: "+" meets its SLO; "p" and "u" miss it, with the verdicts ports and unknown.
func runs(name, outcomes string) *tried {
	t := &tried{Name: name}
	for _, c := range outcomes {
		verdict := map[rune]string{'p': "ports", 'u': "unknown", '+': "ports"}[c]
		t.Runs = append(t.Runs, &run{Met: c == '+', Verdicts: []string{verdict}, Validity: "VALID", GoodHz: 100})
	}
	return t
}

// TestNamed: a failure is named only if it failed, and one that was not tried is not counted.
func TestNamed(t *testing.T) {
	for name, c := range map[string]struct {
		runs        []*tried
		made, named bool
	}{
		"named":            {[]*tried{runs("base", "ppu")}, true, true},
		"named otherwise":  {[]*tried{runs("base", "puu")}, true, false},
		"no longer failed": {[]*tried{runs("base", "++p")}, true, false},
		"only a cure":      {[]*tried{runs("kept", "+")}, false, false},
	} {
		f := &failure{Name: "f", Expect: []string{"ports"}, Runs: c.runs}
		if made, named := f.made(); made != c.made || named != c.named {
			t.Errorf("%s: made %v, named %v", name, made, named)
		}
	}
}

// TestUncured: cures by the table that miss the SLO.
func TestUncured(t *testing.T) {
	s := &scenario{cures: []variant{{name: "kept", cures: true}, {name: "wide", cures: true}, {name: "advice"}, {name: "new", cures: true}}}
	f := &failure{Name: "f", Runs: []*tried{runs("base", "p"), runs("kept", "+p"), runs("wide", "++p"), runs("advice", "p")}}
	if got := f.uncured(s); !slices.Equal(got, []string{"f/kept"}) {
		t.Errorf("%q", got)
	}
}

// TestAsPredicted: a run tells whether its prediction was right.
func TestAsPredicted(t *testing.T) {
	second, five, forty, rate := 4, 5.0, 40.0, 100.0
	for name, c := range map[string]struct {
		run          run
		right, known bool
	}{
		"no prediction":        {run{}, false, false},
		"no figure":            {run{Predicted: &prediction{Text: "more do not store more"}}, false, false},
		"a second early":       {run{Predicted: &prediction{Seconds: &five}, FirstSecond: &second, Failed: make([]int64, 7)}, true, true},
		"never failed":         {run{Predicted: &prediction{Seconds: &five}, Failed: make([]int64, 7), Met: true}, false, true},
		"after its end":        {run{Predicted: &prediction{Seconds: &forty}, Failed: make([]int64, 7), Met: true}, true, true},
		"near the rate":        {run{Predicted: &prediction{RateHz: &rate}, OfferedHz: 300, GoodHz: 85}, true, true},
		"far from the rate":    {run{Predicted: &prediction{RateHz: &rate}, OfferedHz: 300, GoodHz: 40}, false, true},
		"less is offered":      {run{Predicted: &prediction{RateHz: &rate}, OfferedHz: 50, GoodHz: 50, Met: true}, true, true},
		"warned, and it fails": {run{Predicted: &prediction{Text: "warn: 240 wait"}}, true, true},
		"ok, and it fails":     {run{Predicted: &prediction{Text: "ok: 240 wait", RateHz: &rate}, OfferedHz: 50}, false, true},
	} {
		if right, known := c.run.asPredicted(); right != c.right || known != c.known {
			t.Errorf("%s: right %v, known %v", name, right, known)
		}
	}
}

// TestEffect: what a variant changed, beside what the failure's own runs differ by.
func TestEffect(t *testing.T) {
	base := runs("base", "uuu")
	base.Runs[0].GoodHz, base.Runs[2].GoodHz = 80, 160
	for name, c := range map[string]struct {
		outcome       string
		offered, good float64
		want          string
	}{
		"open, met":            {"+", 200, 200, "gone"},
		"closed, met":          {"+", 0, 700, "gone; 7 times as many"},
		"closed, met, as many": {"+", 0, 120, "gone"},
		"within the spread":    {"u", 0, 165, "not"},
		"more":                 {"u", 0, 200, "not gone; 2 times as many"},
	} {
		one := runs("kept", c.outcome)
		one.Runs[0].OfferedHz, one.Runs[0].GoodHz = c.offered, c.good
		if got := one.effect(base); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestSentences: a figure in a sentence keeps its star, and requests that were never sent have no second.
func TestSentences(t *testing.T) {
	one := runs("pool", "u")
	one.Runs[0].Validity = "NOT_STATIONARY"
	f := &failure{Runs: []*tried{one}}
	if text, err := f.withFigures("{pool good} with 200"); err != nil || text != "100/s* with 200" {
		t.Errorf("%q, %v", text, err)
	}
	second := 4
	one.Runs[0].FirstSecond, one.Runs[0].Class = &second, "unsent"
	if got := one.seconds(); got != nil {
		t.Errorf("unsent from second %d", got)
	}
	one.Runs[0].Class = "timeout"
	if got := longSeen(one); !strings.Contains(got, "from second 4 on") {
		t.Errorf("%q", got)
	}
}

// TestLimitGroup: the quota of a control group of version 1 and 2.
func TestLimitGroup(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"version 2": {"cpu.max": "10000 20000", "cpu.weight": "10000"},
		"version 1": {"cpu.cfs_period_us": "20000", "cpu.shares": "65536", "cpu.cfs_quota_us": "10000"},
	} {
		dir := t.TempDir()
		for file := range want {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := limitGroup(dir, 0.5); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for file, text := range want {
			if got, err := os.ReadFile(filepath.Join(dir, file)); string(got) != text || err != nil {
				t.Errorf("%s: %s is %q, want %q (%v)", name, file, got, text, err)
			}
		}
	}
	if err := limitGroup(t.TempDir(), 0.5); err == nil {
		t.Error("no error without control groups")
	}
}
