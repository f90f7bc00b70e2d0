package result

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// watchedRun is sampleRun with its own host and one more watched.
func watchedRun(t testing.TB, host string, start time.Time) *Run {
	run := sampleRun(t, host, start)
	run.Watches = []Watch{
		{Machine: run.Header.Machine, Subjects: []Subject{{Sampler: SamplerProcess, Name: "app", Detail: "process 7"}, {Sampler: SamplerTCP}}},
		{Host: "far", Machine: Machine{Host: "far"}, Subjects: []Subject{{Sampler: SamplerHost}}, ClockOffset: -0.25, ClockError: 0.001},
	}
	for i := range 7 {
		at := float64(i)
		run.Samples = append(
			run.Samples,
			Sample{At: at, Sampler: SamplerProcess, Subject: "app", Values: map[string]float64{"cpu_user_seconds_total": at, "fds": 12}},
			Sample{At: at, Host: "far", Sampler: SamplerHost, Values: map[string]float64{"load1": at}},
		)
	}
	run.Samples = append(run.Samples, Sample{At: 7, Sampler: SamplerTCP, Error: "not permitted"})
	return run
}

func TestWatchRoundTrip(t *testing.T) {
	want := watchedRun(t, "a", sampleStart)
	got, err := Read(bytes.NewReader(encoded(t, want)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Header{}, "Format", "Version")); diff != "" {
		t.Error(diff)
	}
	if u := got.Usage(1); u.Find(SamplerProcess, "", "app").Value(CPUUser) != 3 || u.Find(SamplerHost, "far", "").Value(LoadMean) != 4.5 || u.Requests != 27 {
		t.Errorf("usage %+v", u)
	}
	if errors := SeriesOf(got.Samples)[2].Errors; len(errors) != 1 || errors[0] != (SampleError{At: 7, Text: "not permitted"}) {
		t.Errorf("errors %+v", errors)
	}
}

// TestWatchAlone reads a file without steps.
func TestWatchAlone(t *testing.T) {
	want := watchedRun(t, "a", sampleStart)
	want.Steps = nil
	got, err := Read(bytes.NewReader(encoded(t, want)))
	if err != nil || got.CutOff != "" || len(got.Samples) != 15 {
		t.Fatalf("%v: %+v", err, got)
	}
}

func TestSamplesAmongSlices(t *testing.T) {
	file := string(encoded(t, sampleRun(t, "a", sampleStart)))
	lines := strings.SplitAfter(file, "\n")
	sample := `{"record":"sample","sample":{"at_seconds":0.5,"sampler":"tcp","values":{"time_wait":3}}}` + "\n"
	records := lines[1 : len(lines)-1] // what follows the last newline is empty
	run, err := Read(strings.NewReader(lines[0] + strings.Join(records, sample)))
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Samples) != len(records)-1 || len(run.Steps) != 2 {
		t.Fatalf("%d samples, %d steps", len(run.Samples), len(run.Steps))
	}
}

func TestWatchRecordsRefused(t *testing.T) {
	header := `{"record":"header","header":{"format":"spillway-result","version":"1.2"}}` + "\n"
	many := make([]string, MaxValues+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"v%d":1`, i)
	}
	for want, line := range map[string]string{
		"without a sampler": `{"record":"sample","sample":{"at_seconds":1}}`,
		"outside":           `{"record":"sample","sample":{"at_seconds":1e9,"sampler":"tcp"}}`,
		"1001 figures":      `{"record":"sample","sample":{"at_seconds":1,"sampler":"tcp","values":{` + strings.Join(many, ",") + `}}}`,
		"to within -1":      `{"record":"watch","watch":{"host":"a","clock_uncertainty_seconds":-1}}`,
	} {
		_, err := Read(strings.NewReader(header + line + "\n"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "line 2: ") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestSampleWithoutNumbersIsWritten(t *testing.T) {
	var file bytes.Buffer
	s := Sample{Sampler: SamplerTCP, Values: map[string]float64{"a": math.NaN(), "b": 2, "c": math.Inf(1)}}
	if err := (&writer{out: &file}).write(record{Sample: &s}); err != nil || !strings.Contains(file.String(), `"values":{"b":2}`) || len(s.Values) != 3 {
		t.Errorf("%v: %s", err, file.String())
	}
}

func TestMergeKeepsWatches(t *testing.T) {
	a, b, c := watchedRun(t, "a", sampleStart), watchedRun(t, "b", sampleStart.Add(time.Second)), sampleRun(t, "c", sampleStart.Add(1500*time.Millisecond))
	run, err := Merge(partsOf(a, b, c))
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for i := range run.Watches {
		hosts = append(hosts, run.Watches[i].Host)
	}
	if diff := cmp.Diff([]string{"a", "far", "b", "far (2)"}, hosts); diff != "" {
		t.Error(diff)
	}
	if len(run.Samples) != len(a.Samples)+len(b.Samples) || !slices.IsSortedFunc(run.Samples, func(a, b Sample) int { return int(a.At - b.At) }) {
		t.Errorf("%d samples", len(run.Samples))
	}
	u := run.Usage(0)
	if processes := u.Of(SamplerProcess); len(processes) != 2 || processes[1].Host != "b" || len(u.Of(SamplerHost)) != 2 {
		t.Errorf("usage %+v", u)
	}
	if first := run.Samples[4]; first.Host != "b" || first.At != 1 {
		t.Errorf("the first sample of b, which began a second later, is %+v", first)
	}
	a.Header.Part = nil
	if diff := cmp.Diff(a, watchedRun(t, "a", sampleStart)); diff != "" {
		t.Errorf("the merge changed its argument: %s", diff)
	}
}

// TestDownsample: growth and extremes of every step do not change, and samples are removed.
func TestDownsample(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var samples []Sample
		total := 0.0
		for i := range rapid.IntRange(30, 200).Draw(t, "samples") {
			total += rapid.Float64Range(0, 5).Draw(t, "growth")
			samples = append(samples, Sample{At: float64(i), Sampler: SamplerTCP, Values: map[string]float64{
				"opens_total": total, "time_wait": rapid.Float64Range(0, 100).Draw(t, "gauge"),
			}})
		}
		starts := []float64{0, 10.5, 20.5}
		thin := Downsample(samples, starts)
		if len(thin) >= len(samples) || len(thin) < len(samples)/2 {
			t.Fatalf("%d of %d are left", len(thin), len(samples))
		}
		all, less := SeriesOf(samples)[0], SeriesOf(thin)[0]
		for _, span := range [][2]float64{{0, 10}, {11, 20}, {21, float64(len(samples) - 1)}} {
			for name, of := range map[string]func(*Series) float64{
				"growth":  func(tr *Series) float64 { return tr.Growth("opens_total", span[0], span[1]) },
				"highest": func(tr *Series) float64 { return tr.Max("time_wait", span[0], span[1]) },
				"lowest":  func(tr *Series) float64 { return tr.Min("time_wait", span[0], span[1]) },
			} {
				if a, b := of(all), of(less); a != b {
					t.Fatalf("%s in %v: %g, of all %g", name, span, b, a)
				}
			}
		}
	})
}
