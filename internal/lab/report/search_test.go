package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
)

// search is a run of a search for the peak of the target, whose process uses all of one core of another host at its capacity. The steps
// in doubt, by their index, are not VALID.
func (m synthetic) search(t testing.TB, settings peak.Settings, most int, doubts ...int) *result.Run {
	t.Helper()
	run := &result.Run{Header: m.header("slo"), End: result.End{Reason: result.Finished}}
	run.Header.Command = []string{"spillway", "peak", run.Header.Target, "--slo", run.Header.SLO}
	const host = "app-1"
	run.Watches = []result.Watch{{Host: host, Machine: run.Header.Machine, Subjects: []result.Subject{{Sampler: "process", Name: "app", Detail: "process 4711 (shop), listens on :8080"}}}}
	slo, err := result.ParseSLO(run.Header.SLO)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(m.seed, 9))
	s := peak.NewSearch(settings)
	clock, used := 0.0, 0.0
	for len(run.Steps) < most {
		p, more := s.Next(time.Duration(clock * float64(time.Second)))
		if !more {
			break
		}
		warmup := 1.0
		at := result.Step{
			Index: len(run.Steps), Name: fmt.Sprintf("%s %g/s", p.Purpose, p.Rate), Loop: result.LoopOpen, Arrival: "poisson", OfferedHz: p.Rate,
			Connections: 100, Duration: float64(m.seconds), Start: clock + warmup, Warmup: warmup,
		}
		hz := p.Rate
		if p.Rate == 0 {
			at.Name, at.Loop, at.Arrival, at.Connections = fmt.Sprintf("%s %d connections", p.Purpose, p.Connections), result.LoopClosed, "", p.Connections
			hz = math.Min(float64(p.Connections)/m.base.Seconds(), m.capacity*float64(p.Connections)/(float64(p.Connections)+2))
		}
		step := m.step(t, rnd, at, hz)
		if slices.Contains(doubts, at.Index) {
			step.Total.Validity, step.Total.Reasons = result.HostContended, []result.Reason{{Code: result.CPUWait, Text: "other programs used 40 % of the CPUs"}}
		}
		cores := min(1, hz/m.capacity)
		for second := range m.seconds + 1 {
			now, border := at.Start+float64(second), second == 0 || second == m.seconds
			run.Samples = append(run.Samples, result.Sample{
				At: now, Host: host, Sampler: "host", Border: border,
				Values: map[string]float64{"cores": 1, "cpu_user_seconds_total": used, "cpu_system_seconds_total": used / 20, "cpu_idle_seconds_total": now - used},
			}, result.Sample{
				At: now, Host: host, Sampler: "process", Subject: "app", Border: border,
				Values: map[string]float64{
					"cpu_user_seconds_total": used, "cpu_system_seconds_total": used / 20, "run_queue_wait_seconds_total": used * cores * cores / 4,
					"busiest_thread_cores": cores, "cpu_limit": 1, "cpu_allowed": 1, "processes": 1, "threads": 4, "rss_bytes": 50 << 20, "fds": 100, "fds_limit": 1024,
				},
			})
			if second < m.seconds {
				used += cores / 1.05
			}
		}
		run.Steps = append(run.Steps, step)
		clock = at.Start + float64(m.seconds)
		o, err := peak.ObservationOf(slo, &step.Total, time.Duration(m.seconds+1)*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		s.Observe(p, o)
	}
	a := s.Answer()
	run.End.Elapsed = clock
	run.End.Search = &result.Search{Stopped: a.Stopped, Probes: a.Probes, Seconds: a.Took.Seconds()}
	if a.Stopped == peak.StoppedInterrupted {
		run.End.Reason = result.Interrupted
	}
	return run
}

// searchRun is a search that ends with an answer, in which two probes are not VALID.
func searchRun(t testing.TB) *result.Run {
	return madeOnce("search", func() *result.Run {
		settings := peak.Settings{Errors: 0.005, Quantile: 0.99}
		return synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 4, slo: true, seed: 8}.search(t, settings, peak.ProbesMax, 7, 9)
	})
}

// shortSearchRun is a search that is interrupted before any probe missed the SLO.
func shortSearchRun(t testing.TB) *result.Run {
	return madeOnce("short search", func() *result.Run {
		return synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 8, slo: true, seed: 8}.search(t, peak.Settings{Start: 100, Errors: 0.005, Quantile: 0.99}, 2)
	})
}

// TestSearchGolden shows searches in every form.
func TestSearchGolden(t *testing.T) {
	t.Parallel()
	run := searchRun(t)
	golden(t, "search.txt", written(t, Text, run))
	golden(t, "search.md", written(t, Markdown, run))
	golden(t, "search.summary.md", written(t, Summary, run))
	golden(t, "search-short.page.txt", outline(t, written(t, HTML, shortSearchRun(t))))
	golden(t, "search.page.txt", outline(t, written(t, HTML, run)))
}

// TestSearchPageIsTheAnswer compares the charts of a page with the search: only VALID probes are solid or move a bound.
func TestSearchPageIsTheAnswer(t *testing.T) {
	t.Parallel()
	run := searchRun(t)
	search, err := peak.OutcomeOf(run)
	if err != nil || search == nil || search.Answer.Feasible == 0 || search.Answer.Infeasible == 0 {
		t.Fatalf("%+v, %v", search, err)
	}
	panels := panelsOf(t, written(t, HTML, run))
	path := panels[0].Charts[0].Tables[0]
	lines := make(map[string]line)
	for _, l := range path.Series {
		lines[l.Name] = l
	}
	last := len(path.X) - 1
	if got := lines["highest met"].Y[last]; math.Abs(got/search.Answer.Feasible-1) > 1e-6 {
		t.Errorf("the path ends at %g, want %g", got, search.Answer.Feasible)
	}
	if got := lines["lowest missed"].Y[last]; math.Abs(got/search.Answer.Infeasible-1) > 1e-6 {
		t.Errorf("the path ends at %g, want %g", got, search.Answer.Infeasible)
	}
	for k := range run.Steps {
		s := &run.Steps[k]
		if s.Total.Validity == result.Valid || s.Loop == result.LoopClosed {
			continue
		}
		if !lines["not VALID"].Hollow[k] || lines["not VALID"].Y[k] != s.OfferedHz || !math.IsNaN(lines["met"].Y[k]) || !math.IsNaN(lines["missed"].Y[k]) {
			t.Errorf("probe %d is not VALID and not drawn so", k+1)
		}
		for _, name := range []string{"highest met", "lowest missed"} {
			if was, is := lines[name].Y[k-1], lines[name].Y[k]; was != is && !(math.IsNaN(was) && math.IsNaN(is)) {
				t.Errorf("probe %d is not VALID and moves %s from %g to %g", k+1, name, was, is)
			}
		}
	}
	spans := panels[1].Charts[0].Spans
	if len(spans) != 1 || math.Abs(spans[0].From-search.Answer.Low) > 1e-9 || math.Abs(spans[0].To-search.Answer.High) > 1e-9 {
		t.Errorf("the interval is %+v, want %g to %g", spans, search.Answer.Low, search.Answer.High)
	}
	timeline := panels[len(panels)-1].Charts[0].Spans
	if len(timeline) != 2 || timeline[1].From != run.Steps[search.Failing].Start {
		t.Errorf("marked in the timeline: %+v", timeline)
	}
}

// TestSearchLosesItsEnd shows searches whose file is incomplete or under way, and steps whose names only look like those of a search.
func TestSearchLosesItsEnd(t *testing.T) {
	t.Parallel()
	run := searchRun(t)
	full := written(t, Text, run)
	answer, _, _ := strings.Cut(strings.SplitN(full, "\n", 3)[1], "\n")
	run.End, run.CutOff = result.End{}, "there is no end record"
	if text := written(t, Text, run); !strings.Contains(text, answer) || !strings.Contains(text, "the file is incomplete") {
		t.Errorf("no %q in\n%s", answer, text)
	}
	run.CutOff, run.End.Reason = "", result.UnderWay
	run.Steps[len(run.Steps)-1].Total.Validity = result.Unjudged
	if text := written(t, Text, run); !strings.Contains(text, "the search is under way") || !strings.Contains(text, "not counted") {
		t.Errorf("under way:\n%s", text)
	}
	for _, format := range Formats() {
		written(t, format, run)
		if !testing.Short() && !slices.Contains(OneRunFormats(), format) {
			written(t, format, run, stagedRun(t))
		}
	}
	named := stagedRun(t)
	named.Steps[0].Name = "refine 100/s"
	if text := written(t, Text, named); strings.Contains(text, "Peak") {
		t.Errorf("one step has the name of a probe:\n%s", text)
	}
}

// TestSearchWithoutProof shows a search in which no probe was VALID: nothing is claimed.
func TestSearchWithoutProof(t *testing.T) {
	t.Parallel()
	run := synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 4, slo: true, seed: 8}.search(t, peak.Settings{Start: 100, Errors: 0.005, Quantile: 0.99}, 3, 0, 1, 2)
	page := written(t, HTML, run)
	if !strings.Contains(page, "Peak: unknown. Nothing valid was measured.") || strings.Contains(page, "What stops the service") {
		t.Error("the page claims something")
	}
	for _, l := range panelsOf(t, page)[0].Charts[0].Tables[0].Series {
		if l.Name != "not VALID" || slices.Contains(l.Hollow[:len(run.Steps)], false) {
			t.Errorf("the path has the line %+v", l)
		}
	}
}

// TestSearchIsEscaped puts markup into what a search shows.
func TestSearchIsEscaped(t *testing.T) {
	t.Parallel()
	const evil = `"><script>alert(1)</script>` + "\x1b[31m\n| a | b |"
	run := searchRun(t)
	run.Header.Target = evil
	for i := range run.Steps {
		run.Steps[i].Name += evil
		run.Steps[i].Total.Reasons = []result.Reason{{Text: evil}}
	}
	for i := range run.Samples {
		run.Samples[i].Subject = evil
	}
	run.End.Search.Stopped = evil
	for _, format := range OneRunFormats() {
		if text := written(t, format, run); format != Text && strings.Contains(text, "<script>alert") || format != HTML && strings.Contains(text, "\x1b") || format == Markdown && strings.Contains(text, "\n| a | b |") {
			t.Errorf("%s: markup", format)
		}
	}
	page := written(t, HTML, searchRun(t))
	if found := regexp.MustCompile(`(?i)\s(src|href|srcset|action|poster)=|url\(|@import|<link|<iframe|<object`).FindString(page); found != "" || strings.Count(page, "<script") != 2 {
		t.Errorf("the page holds %q", found)
	}
}
