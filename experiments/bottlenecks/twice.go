//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"spillway/experiments/process"
)

// planWithin is how far the rate of two processes may be from the plan's, as a share.
const planWithin = 0.15

// A twin is a service that is run in one process with half of a core, and then in two.
type twin struct {
	name string
	path string
	slo  string
	// checks are flags of load that check the answers.
	checks []string
	// start starts process i with half of a core.
	start func(s *stage, i int) (p *process.Process, address string, err error)
}

func twins() []twin {
	return []twin{
		{"1 ms of CPU time", "/", "p95<100ms errors<1%", nil, startHalfBurner},
		{
			"spillway, a query that counts 20,000 rows", fmt.Sprintf("/count?id={random(20000,%d)}", freightOrders), "p95<100ms errors<1%",
			[]string{"--check", "body~=20000"},
			startHalfSpillway,
		},
	}
}

// halfCore is process i with half of core 0.
func (s *stage) halfCore(i int) (process.Command, error) {
	group, err := s.slice(0.5, shortPeriod)
	return process.Command{Name: fmt.Sprintf("app%d", i), Cores: []int{0}, Group: group}, err
}

func startHalfBurner(s *stage, i int) (*process.Process, string, error) {
	c, err := s.halfCore(i)
	if err != nil {
		return nil, "", err
	}
	p, url, err := s.serve(plant{kind: plantBurn, work: time.Millisecond}, c)
	return p, strings.Trim(strings.TrimPrefix(url, "http://"), "/"), err
}

func startHalfSpillway(s *stage, i int) (*process.Process, string, error) {
	c, err := s.halfCore(i)
	if err != nil {
		return nil, "", err
	}
	database := "sqlite:" + filepath.Join(s.dir, c.Name+".db")
	if err := s.seedFreight(database); err != nil {
		return nil, "", err
	}
	return s.spillwayServer(c, fmt.Sprintf(`database: %s
log: {level: error}
queries:
  - path: /count
    sql: SELECT count(*) AS orders, max(goods_name) AS last FROM orders WHERE id > :id - 20000 AND id <= :id
    params: {id: integer}
`, database))
}

// checkPlan measures each twin with one process, asks plan for the rate of two, measures two, and reports whether all are close.
// The processes share core 0; the load generator, and nginx in front of the processes, have core 1.
func (o *options) checkPlan(ctx context.Context, out io.Writer) (bool, error) {
	fmt.Fprintf(out, "%-42s %12s %22s %22s %7s\n", "service", "one process", "two, planned", "two, measured", "ratio")
	ok := true
	for _, t := range twins() {
		if _, err := awaitQuiet(ctx, o.quiet); err != nil {
			return false, err
		}
		line, close, err := o.compareTwin(ctx, t)
		if ctx.Err() != nil {
			return false, errors.New("interrupted")
		}
		if err != nil {
			line = err.Error()
		}
		fmt.Fprintf(out, "%-42s %s\n", t.name, line)
		ok = ok && close
	}
	return ok, nil
}

func (o *options) compareTwin(ctx context.Context, t twin) (line string, close bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*o.maxTime+3*time.Minute)
	defer cancel()
	st, err := newStage(ctx, o.spillway)
	if err != nil {
		return "", false, err
	}
	defer st.close()
	var addresses []string
	var processes []*process.Process
	var measured [2]report
	var planned estimate
	for i := range measured {
		p, address, err := t.start(st, i+1)
		if err != nil {
			return "", false, err
		}
		processes, addresses = append(processes, p), append(addresses, address)
		file := filepath.Join(st.dir, fmt.Sprintf("%d.ndjson", i+1))
		if measured[i], err = o.searchBehind(st, t, processes, addresses, file); err != nil {
			return "", false, fmt.Errorf("%d processes: %w", i+1, err)
		}
		if err := o.keepFile(file, strings.Fields(t.name)[0], i); err != nil {
			return "", false, err
		}
		if i > 0 {
			break
		}
		if planned, err = st.planTwo(file, t.slo); err != nil {
			return "", false, err
		}
	}
	one, two := measured[0], measured[1]
	if one.feasible == 0 || two.feasible == 0 || two.missed == 0 {
		return fmt.Sprintf("a bound was not found: one process %s; two %s", one.rates(), two.rates()), false, nil
	}
	ratio := planned.Value / math.Sqrt(two.feasible*two.missed)
	return fmt.Sprintf("%10.4g/s %9.4g/s (%.4g–%.4g) %10.4g/s to %.4g/s %7.3f", one.feasible, planned.Value, planned.Low, planned.High,
		two.feasible, two.missed, ratio), math.Abs(ratio-1) <= planWithin, nil
}

// searchBehind runs peak on nginx in front of the processes.
func (o *options) searchBehind(st *stage, t twin, processes []*process.Process, addresses []string, file string) (report, error) {
	front, err := process.FreeAddress()
	if err != nil {
		return report{}, err
	}
	servers := ""
	for _, address := range addresses {
		servers += "server " + address + "; "
	}
	command := process.Command{Name: fmt.Sprintf("nginx%d", len(addresses)), Cores: []int{1}}
	nginx, err := st.nginxAs(command, 1, fmt.Sprintf(`upstream apps { %s keepalive 64; }
server {
	listen %s backlog=4096;
	location / { proxy_pass http://apps; proxy_http_version 1.1; proxy_set_header Connection ""; }
}`, servers, front), front)
	if err != nil {
		return report{}, err
	}
	defer nginx.End()
	set := &setup{
		url: "http://" + front + t.path, slo: t.slo, at: process.Command{Cores: []int{1}},
		flags: slices.Concat(watch(processes...), t.checks, o.flags()),
	}
	return o.search(st.ctx, st, set, file)
}

// An estimate is one of a plan.
type estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// planTwo asks plan for the rate of two hosts like the one that was measured.
func (s *stage) planTwo(file, slo string) (estimate, error) {
	p, err := s.start(process.Command{Name: "plan", Args: []string{
		s.spillway, "plan", "--from", file, "--hosts", "2", "--slo", slo,
		"--json",
	}})
	if err != nil {
		return estimate{}, err
	}
	out, code, err := p.Wait(s.ctx)
	if err != nil {
		return estimate{}, fmt.Errorf("plan: %w", err)
	}
	var d struct {
		Capacity *struct {
			Rate estimate `json:"rate_hz"`
		} `json:"capacity"`
	}
	if err := json.Unmarshal(out, &d); err != nil || d.Capacity == nil || !(d.Capacity.Rate.Value > 0) {
		return estimate{}, fmt.Errorf("plan: exit code %d: no rate: %s", code, p.LogTail())
	}
	return d.Capacity.Rate, nil
}
