package result

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRecorderDownsamples checks that memory is bounded, that the file has every
// sample, and that the summary mentions it.
func TestRecorderDownsamples(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run.ndjson")
	r, err := NewRecorder(out, Header{StartedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}, nil, func(text string) { t.Error(text) })
	if err != nil {
		t.Fatal(err)
	}
	r.limit = 200
	for i := range 1000 {
		s := Sample{At: float64(i), Sampler: SamplerTCP, Values: map[string]float64{"active_opens_total": float64(3 * i), "time_wait": float64(i % 500)}}
		if err := r.Sample(&s); err != nil {
			t.Fatal(err)
		}
	}
	run, err := r.Close(End{})
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Samples) > 200 || fmt.Sprint(run.Header.Notes) != "["+downsampledNote+"]" {
		t.Errorf("%d samples are kept, notes %q", len(run.Samples), run.Header.Notes)
	}
	kept, err := ReadFile(out)
	if err != nil || len(kept.Samples) != 1000 {
		t.Fatalf("file: %v, %d samples", err, len(kept.Samples))
	}
	u := UsageOf(run.Series(), 0, 999, 999).Subjects[0]
	if opened, waiting := u.Value(ActiveOpensPerRequest), u.Value(TimeWaitMax); opened != 3 || waiting != 499 {
		t.Errorf("opened per request %g, TIME_WAIT %g, want 3 and 499", opened, waiting)
	}
}

// TestRecorderHidesSecrets: answers, which reasons quote, may repeat what was sent.
func TestRecorderHidesSecrets(t *testing.T) {
	t.Setenv(RedactVariable, `["s3cret","toke\"n"]`)
	out, reported := filepath.Join(t.TempDir(), "run.ndjson"), ""
	r, err := NewRecorder(out, Header{Target: "http://a/s3cret", Command: []string{"load", "toke\"n"}}, nil, func(text string) { reported += text })
	if err != nil {
		t.Fatal(err)
	}
	total := Total{Reasons: []Reason{{Code: FirstError, Class: "status", Text: `status 403: no user for toke"n`}, {Text: "s3cret"}}}
	if err := errors.Join(r.Step(&Step{}), r.Total(&total), r.Sample(&Sample{Error: "refused s3cret"})); err != nil {
		t.Fatal(err)
	}
	run, err := r.Close(End{Reason: Finished})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{string(text), reported, fmt.Sprintf("%+v", run), fmt.Sprint(total.Reasons)} {
		if strings.Contains(place, "s3cret") || strings.Contains(place, `toke`) || !strings.Contains(place, "xxxxx") {
			t.Error(place)
		}
	}
}

// TestRecorderReportsOnce checks that an error of a sampler is reported once.
func TestRecorderReportsOnce(t *testing.T) {
	var reported []string
	r, err := NewRecorder("", Header{}, nil, func(text string) { reported = append(reported, text) })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for _, s := range []Sample{{Sampler: "postgres", Subject: "db", Error: "not permitted"}, {Sampler: "tcp"}} {
			if err := r.Sample(&s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := strings.Join(reported, "\n"); got != "watch: postgres db: not permitted" {
		t.Errorf("reported %q", got)
	}
}
