package experiment

import (
	"fmt"
	"strings"
	"testing"

	"spillway/internal/lab/result"
)

// TestFailureMetrics: what fails, when it began and what was used up are metrics of a study.
func TestFailureMetrics(t *testing.T) {
	run := &result.Run{Steps: []result.StepRun{{Step: result.Step{Start: 0}, Total: result.Total{Elapsed: 10, Validity: result.Valid}}}}
	s := &run.Steps[0]
	s.Total.Done, s.Total.Completed, s.Total.Statuses = 900, 500, map[int]int64{200: 500, 500: 300, 502: 100}
	s.Total.Errors = result.Errors{result.Reset: 100, result.StatusError: 400}
	s.Slices = []result.Slice{{Second: 0}, {Second: 7, Counters: result.Counters{Errors: result.Errors{result.Reset: 1}}}}
	for i, values := range []map[string]float64{{"active_opens_total": 0, "listen_overflows_total": 3}, {"active_opens_total": 1000, "listen_overflows_total": 45}} {
		at := float64(10 * i)
		run.Samples = append(
			run.Samples,
			result.Sample{At: at, Sampler: result.SamplerTCP, Values: values, Border: true},
			result.Sample{At: at, Sampler: result.SamplerProcess, Subject: "app", Values: map[string]float64{"fds": 60 + at}, Border: true},
			result.Sample{At: at, Sampler: result.SamplerPostgres, Subject: "db", Values: map[string]float64{"connections": 90 + at}, Border: true},
		)
	}
	l, err := observe(run, 0)
	if err != nil {
		t.Fatal(err)
	}
	for metric, want := range map[string]float64{
		"error_reset_share": 0.1, "error_status_share": 0.4, "status_500_share": 0.3, "status_502_share": 0.1, MetricFirstFailure: 7, MetricOpens: 2,
		MetricOverflows: 42, MetricFiles: 70, MetricSessions: 100,
	} {
		if got := l.figures[metric]; got != want {
			t.Errorf("%s is %g, want %g", metric, got, want)
		}
		if !KnownMetric(metric, nil) {
			t.Errorf("%s cannot be charted", metric)
		}
	}
	if _, has := l.figures["error_refused_share"]; has {
		t.Error("a class that did not occur has a figure")
	}
}

// TestScaledPorts: a host may have a number of ports, and says by how much it is scaled.
func TestScaledPorts(t *testing.T) {
	for text, want := range map[string]string{
		"2000": "32768-34767 14.116", "28232": "32768-60999 1", "40000-40999": "40000-40999 28.232", "32768-60999": "32768-60999 1",
		"28233": "", "0": "", "60999-32768": "",
	} {
		low, high, ok := parseSpan(text)
		got := ""
		if ok {
			got = fmt.Sprintf("%d-%d %g", low, high, (&HostFacts{Ports: fmt.Sprintf("%d-%d", low, high)}).PortScale())
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	f, err := Read("small.yaml", []byte(strings.Replace(engineSmall, "services:\n", "hosts:\n  this: {ports: 2000}\nservices:\n", 1)))
	if err != nil || f.Hosts[0].Ports != "2000" {
		t.Errorf("%+v, %v", f, err)
	}
}
