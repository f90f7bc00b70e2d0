//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"spillway/experiments/process"
	"spillway/internal/stats"
)

// contest is a workload and those that compete in it.
type contest struct {
	database, workload string
	path, body         string
	ours, others       []variant // spillway, again, and base if there is one; the best of the others counts
	watch              []int     // pids of the databases
	beside             string    // a path that one more client asks for meanwhile; "": none
}

// variant is a server in a contest.
type variant struct {
	name, address, admin string
	table                *store // where a POST stores its record; nil: nowhere
}

// run is one load on one variant.
type run struct {
	Variant  string   `json:"variant"`
	Round    int      `json:"round"`
	Rate     float64  `json:"rate_hz"` // of good answers
	P50      float64  `json:"response_p50_seconds"`
	P99      float64  `json:"response_p99_seconds"`
	Errors   float64  `json:"errors"`
	AppCPU   float64  `json:"app_cpu_seconds_per_request"`
	DBCPU    float64  `json:"database_cpu_seconds_per_request"`
	Validity string   `json:"validity"`
	Reasons  []string `json:"reasons,omitempty"`
}

// cell is a contest at a number of connections.
type cell struct {
	Database    string             `json:"database"`
	Workload    string             `json:"workload"`
	Connections int                `json:"connections"`
	Other       string             `json:"other"` // the best of the others in the pilot
	Pilot       []run              `json:"pilot"`
	Runs        []run              `json:"runs"`   // of the rounds that count
	Tried       int                `json:"tried"`  // rounds
	Valid       bool               `json:"valid"`  // all of Runs are
	Ratios      map[string][]ratio `json:"ratios"` // of spillway's rate, p50 and p99 to each other's
}

// ratio is the geometric mean of paired ratios with its 95 % interval, or with its range if there is one pair.
type ratio struct {
	N     int     `json:"n"`
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// figures are the columns of a run, in the units of the tables.
var figures = []func(run) float64{
	func(r run) float64 { return r.Rate },
	func(r run) float64 { return r.P50 * 1e6 },
	func(r run) float64 { return r.P99 * 1e6 }, // 0: too few requests
	func(r run) float64 { return r.AppCPU * 1e6 },
	func(r run) float64 { return r.DBCPU * 1e6 },
	func(r run) float64 { return r.Errors },
}

// measure measures a contest at a number of connections. A round with a run that is not VALID is repeated, and counts only if no round is
// valid.
func (s *stage) measure(c contest, connections int, random *rand.Rand) (*cell, error) {
	m := &cell{Database: c.database, Workload: c.workload, Connections: connections, Ratios: map[string][]ratio{}}
	best := c.others[0]
	for round := range 2 * min(1, len(c.others)-1) {
		if err := s.round(c, c.others, connections, round, random, &m.Pilot); err != nil {
			return nil, err
		}
	}
	for _, v := range c.others {
		if summarize(m.Pilot, v.name, 0).Median > summarize(m.Pilot, best.name, 0).Median {
			best = v
		}
	}
	m.Other = best.name
	var valid, other []run
	rounds := 0 // that are valid
	for ; rounds < s.options.Rounds && m.Tried < 2*s.options.Rounds; m.Tried++ {
		var runs []run
		if err := s.round(c, append(slices.Clone(c.ours), best), connections, m.Tried, random, &runs); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(runs, func(r run) bool { return r.Validity != "VALID" }) {
			other = append(other, runs...)
			continue
		}
		valid, rounds = append(valid, runs...), rounds+1
	}
	if m.Runs, m.Valid = valid, rounds > 0; !m.Valid {
		m.Runs = other
	}
	for _, v := range append(slices.Clone(c.ours[1:]), best) {
		for figure := range 3 {
			theirs, ours := values(m.Runs, v.name, figure), values(m.Runs, c.ours[0].name, figure)
			if slices.Contains(theirs, 0) || slices.Contains(ours, 0) { // p99 of too few requests
				m.Ratios[v.name] = append(m.Ratios[v.name], ratio{})
				continue
			}
			r := stats.PairedRatio(theirs, ours, stats.Level)
			if r.N < 2 {
				r.Low, r.High = r.Min, r.Max
			}
			m.Ratios[v.name] = append(m.Ratios[v.name], ratio{r.N, r.Ratio, r.Low, r.High})
		}
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
func (s *stage) load(c contest, v variant, connections int) (r run, err error) {
	writes := c.workload == "w"
	if writes {
		if _, err := v.table.db.ExecContext(s.ctx, "DELETE FROM records"); err != nil {
			return r, fmt.Errorf("empty a table: %w", err)
		}
	}
	if err := s.settle(c); err != nil {
		return r, err
	}
	args := []string{
		s.options.Spillway, "load", "http://" + v.address + c.path, "--pin", "--awake", "--json", "--connections", strconv.Itoa(connections),
		"--duration", s.options.Duration.String(), "--warmup", s.options.Warmup.String(), "--watch", "app=" + v.address,
	}
	for i, pid := range c.watch {
		args = append(args, "--watch", fmt.Sprintf("database-%d=%d", i, pid))
	}
	if c.body != "" {
		args = append(args, "--body", c.body, "--header", "Content-Type: application/json")
	}
	if c.workload == "post" {
		args = append(args, "--check", "status="+map[bool]string{true: "204", false: "404"}[v.name == "nginx"])
	}
	defer s.askBeside(v, c.beside)()
	p, err := process.Launch(s.ctx, process.Command{Name: "load", Args: args}, s.log)
	if err != nil {
		return r, err
	}
	out, code, err := p.Wait(s.ctx)
	if err != nil || code != 0 && code != 4 { // 4: nothing valid was measured
		return r, fmt.Errorf("load: exit code %d: %w: %s", code, err, p.LogTail())
	}
	r, done, err := readRun(out)
	r.Variant = v.name
	if err != nil || !writes {
		return r, err
	}
	var stored int64
	if err := v.table.db.QueryRowContext(s.ctx, "SELECT count(*) FROM records").Scan(&stored); err != nil {
		return r, fmt.Errorf("count the records: %w", err)
	}
	if stored < done {
		return r, fmt.Errorf("%d records were answered and %d are stored", done, stored)
	}
	return r, nil
}

// settle waits until the database has the events of earlier popups, which would cost whoever runs next.
func (s *stage) settle(c contest) error {
	for _, v := range c.ours {
		for strings.HasPrefix(c.workload, "popup") {
			text, err := read(s.ctx, "http://"+v.admin+"/metrics", http.StatusOK)
			if err != nil {
				return fmt.Errorf("wait for the events of popups: %w", err)
			}
			if strings.Contains(text, "\nspillway_popup_events_waiting 0\n") {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

// askBeside has one client ask for a path again and again until stop is called.
func (s *stage) askBeside(v variant, path string) (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	var client sync.WaitGroup
	client.Go(func() {
		for path != "" && ctx.Err() == nil {
			_, _ = read(ctx, "http://"+v.address+path, http.StatusOK) // a refusal is no matter here
		}
	})
	return func() {
		cancel()
		client.Wait()
	}
}

// readRun reads what load has printed, and how many requests had a good answer.
func readRun(out []byte) (r run, done int64, err error) {
	var document struct {
		Steps []struct {
			Done     int64    `json:"completed"`
			Rate     float64  `json:"rate_hz"`
			Errors   float64  `json:"error_total"`
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
		if cpu := subject.Figures["cpu_seconds_per_request"]; subject.Name == "app" {
			r.AppCPU = cpu
		} else {
			r.DBCPU += cpu
		}
	}
	return r, step.Done - int64(step.Errors), nil
}

func values(runs []run, variant string, figure int) (all []float64) {
	for _, r := range runs {
		if r.Variant == variant {
			all = append(all, figures[figure](r))
		}
	}
	return all
}

func summarize(runs []run, variant string, figure int) stats.Sample {
	return stats.Summarize(values(runs, variant, figure), stats.Level)
}
