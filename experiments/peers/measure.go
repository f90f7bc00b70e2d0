//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"spillway/experiments/process"
	"spillway/internal/stats"
)

// contest is a workload and those that compete in it.
type contest struct {
	database, workload string
	path, body         string
	ours               []variant // spillway, again, and base if there is one
	others             []variant // the best of them counts
	watch              int       // pid of the database; 0: none
}

// variant is a server in a contest.
type variant struct {
	name, address string
	admin         string   // address of spillway's admin listener
	table         *records // where a POST stores its record; nil: nowhere
}

// run is one load on one variant.
type run struct {
	Variant  string   `json:"variant"`
	Round    int      `json:"round"`
	Rate     float64  `json:"rate_hz"` // of good answers
	P50      float64  `json:"response_p50_seconds"`
	P99      float64  `json:"response_p99_seconds"`
	Errors   uint64   `json:"errors"`
	AppCPU   float64  `json:"app_cpu_seconds_per_request"`
	DBCPU    float64  `json:"database_cpu_seconds_per_request"`
	Validity string   `json:"validity"`
	Reasons  []string `json:"reasons,omitempty"`
}

// cell is a contest at a number of connections.
type cell struct {
	Database    string           `json:"database"`
	Workload    string           `json:"workload"`
	Connections int              `json:"connections"`
	Other       string           `json:"other"` // the best of the others
	Pilot       []run            `json:"pilot"`
	Runs        []run            `json:"runs"`
	Ratios      map[string]ratio `json:"ratios"` // of the rate to the other's; of spillway's to again's and base's
}

// ratio is the geometric mean of paired ratios with its 95 % interval.
type ratio struct {
	N     int     `json:"n"`
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

const pilots = 2 // rounds of the pilot

// measure measures a contest at a number of connections.
func (s *stage) measure(c contest, connections int, random *rand.Rand) (*cell, error) {
	m := &cell{Database: c.database, Workload: c.workload, Connections: connections}
	best := c.others[0]
	if len(c.others) > 1 {
		for round := range pilots {
			if err := s.round(c, c.others, connections, round, random, &m.Pilot); err != nil {
				return nil, err
			}
		}
		for _, v := range c.others {
			if summarize(m.Pilot, v.name, rateOf).Median > summarize(m.Pilot, best.name, rateOf).Median {
				best = v
			}
		}
	}
	m.Other = best.name
	for round := range s.options.Rounds {
		if err := s.round(c, append(slices.Clone(c.ours), best), connections, round, random, &m.Runs); err != nil {
			return nil, err
		}
	}
	m.Ratios = map[string]ratio{}
	ours := c.ours[0].name
	m.Ratios[best.name] = m.ratio(best.name, ours)
	for _, v := range c.ours[1:] {
		m.Ratios[v.name] = m.ratio(v.name, ours)
	}
	return m, nil
}

// round runs each variant once, in random order.
func (s *stage) round(c contest, variants []variant, connections, round int, random *rand.Rand, into *[]run) error {
	for _, i := range random.Perm(len(variants)) {
		r, err := s.load(c, variants[i], connections)
		if err != nil {
			return fmt.Errorf("%s %s at %d connections: %w", c.workload, variants[i].name, connections, err)
		}
		r.Round = round
		*into = append(*into, r)
	}
	return nil
}

// load puts the load on a variant, and checks that each record that was answered is stored.
func (s *stage) load(c contest, v variant, connections int) (run, error) {
	if err := v.table.clear(s.ctx); err != nil {
		return run{}, err
	}
	args := []string{
		s.options.Spillway, "load", "http://" + v.address + c.path, "--pin", "--awake", "--json", "--connections", strconv.Itoa(connections),
		"--duration", s.options.Duration.String(), "--warmup", s.options.Warmup.String(), "--watch", "app=" + v.address,
	}
	if c.watch > 0 {
		args = append(args, "--watch", "database="+strconv.Itoa(c.watch))
	}
	if c.body != "" {
		args = append(args, "--body", c.body, "--header", "Content-Type: application/json")
	}
	if c.workload == "post" {
		args = append(args, "--check", "status="+map[bool]string{true: "204", false: "404"}[v.name == "nginx"])
	}
	p, err := process.Launch(s.ctx, process.Command{Name: "load", Args: args}, s.log)
	if err != nil {
		return run{}, err
	}
	out, code, err := p.Wait(s.ctx)
	if err != nil || code != 0 && code != 4 { // 4: nothing valid was measured
		return run{}, fmt.Errorf("load: exit code %d: %w: %s", code, err, p.LogTail())
	}
	r, done, err := readRun(out)
	r.Variant = v.name
	if err == nil {
		err = v.table.check(s.ctx, c.workload, done)
	}
	return r, err
}

// readRun reads what load has printed.
func readRun(out []byte) (r run, done int64, err error) {
	var document struct {
		Steps []struct {
			Done     int64    `json:"completed"`
			Rate     float64  `json:"rate_hz"`
			Errors   uint64   `json:"error_total"`
			Validity string   `json:"validity"`
			Reasons  []string `json:"reasons"`
			Response struct {
				P50 float64 `json:"p50_seconds"`
				P99 float64 `json:"p99_seconds"`
			} `json:"response"`
			Watch struct {
				Subjects []struct {
					Name    string             `json:"name"`
					Figures map[string]float64 `json:"figures"`
				} `json:"subjects"`
			} `json:"watch"`
		} `json:"steps"`
	}
	if err := json.Unmarshal(out, &document); err != nil || len(document.Steps) != 1 {
		return r, 0, fmt.Errorf("read the result of the load: %d steps: %w", len(document.Steps), err)
	}
	step := document.Steps[0]
	r = run{
		Rate: step.Rate, P50: step.Response.P50, P99: step.Response.P99, Errors: step.Errors, Validity: step.Validity, Reasons: step.Reasons,
	}
	for _, subject := range step.Watch.Subjects {
		switch cpu := subject.Figures["cpu_seconds_per_request"]; subject.Name {
		case "app":
			r.AppCPU = cpu
		case "database":
			r.DBCPU = cpu
		}
	}
	return r, step.Done - int64(step.Errors), nil
}

// The figures of a run.
func rateOf(r run) float64   { return r.Rate }
func p50Of(r run) float64    { return r.P50 * 1e6 }
func p99Of(r run) float64    { return r.P99 * 1e6 } // 0: too few requests
func appOf(r run) float64    { return r.AppCPU * 1e6 }
func dbOf(r run) float64     { return r.DBCPU * 1e6 }
func errorsOf(r run) float64 { return float64(r.Errors) }

func figures(runs []run, variant string, figure func(run) float64) (all []float64) {
	for _, r := range runs {
		if r.Variant == variant {
			all = append(all, figure(r))
		}
	}
	return all
}

func summarize(runs []run, variant string, figure func(run) float64) stats.Sample {
	return stats.Summarize(figures(runs, variant, figure), stats.Level)
}

// ratio compares the rates of two variants, round by round.
func (m *cell) ratio(baseline, variant string) ratio {
	r := stats.PairedRatio(figures(m.Runs, baseline, rateOf), figures(m.Runs, variant, rateOf), stats.Level)
	if r.N < 2 {
		return ratio{r.N, r.Ratio, r.Min, r.Max}
	}
	return ratio{r.N, r.Ratio, r.Low, r.High}
}

func (r ratio) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Ratio, r.Low, r.High) }

// spread prints the median of a figure and its range.
func (m *cell) spread(variant string, figure func(run) float64) string {
	s := summarize(m.Runs, variant, figure)
	return fmt.Sprintf("%.0f (%.0f–%.0f)", s.Median, s.Min, s.Max)
}

// valid counts the runs that are VALID.
func (m *cell) valid() (valid int) {
	for _, r := range m.Runs {
		if r.Validity == "VALID" {
			valid++
		}
	}
	return valid
}

func (m *cell) row() []string {
	pair := func(figure func(run) float64) string {
		return fmt.Sprintf("%.0f, %.0f", summarize(m.Runs, "spillway", figure).Median, summarize(m.Runs, m.Other, figure).Median)
	}
	base := "-"
	if r, ok := m.Ratios["base"]; ok {
		base = r.String()
	}
	return []string{
		m.Workload, strconv.Itoa(m.Connections), m.spread("spillway", rateOf), m.Other, m.spread(m.Other, rateOf), m.Ratios[m.Other].String(),
		m.Ratios["again"].String(), base, pair(p50Of), pair(p99Of), pair(appOf), pair(dbOf), pair(errorsOf),
		fmt.Sprintf("%d of %d", m.valid(), len(m.Runs)),
	}
}

var columns = []string{
	"workload", "connections", "spillway/s", "other", "other/s", "ratio", "ratio to again (A/A)", "ratio to base", "p50 µs", "p99 µs",
	"app CPU µs", "database CPU µs", "errors", "VALID",
}

func (m *cell) String() string {
	var parts []string
	for i, text := range m.row() {
		parts = append(parts, columns[i]+" "+text)
	}
	return m.Database + ": " + strings.Join(parts, "; ")
}

// tablesOf makes a table for each database.
func tablesOf(cells []*cell) map[string]table {
	tables := map[string]table{}
	for _, m := range cells {
		t := tables[m.Database]
		t.Columns = columns
		t.Rows = append(t.Rows, m.row())
		tables[m.Database] = t
	}
	return tables
}
