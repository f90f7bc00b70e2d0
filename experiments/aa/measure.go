//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"spillway/experiments/process"
	"spillway/internal/stats"
)

// calibrations is how often each of two amounts of work is measured before the comparisons.
const calibrations = 15

// A measurer measures what a request costs the server.
type measurer struct {
	self, spillway string
	log            string // file with standard error of the processes
	plan           plan
}

func newMeasurer(spillway, log string, p plan) (*measurer, error) {
	if p.Blocks < 1 || p.Same < 0 || p.Planted < 0 || p.Same+p.Planted == 0 || p.Work < 1 || p.Rate < 1 || p.Length <= 0 {
		return nil, errors.New("nothing to run: see -help")
	}
	if _, err := os.Stat(spillway); err != nil {
		return nil, fmt.Errorf("find spillway: %w; make build makes it", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return &measurer{self: self, spillway: spillway, log: log, plan: p}, nil
}

// calibrate finds the amount of work at which a request costs the planted effect more, and what it costs without. It measures
// twice the work as well, because noise hides the price of a little more.
func (m *measurer) calibrate(ctx context.Context) (slower int, base float64, err error) {
	costs := make(map[int][]float64)
	for range calibrations {
		for _, work := range []int{m.plan.Work, 2 * m.plan.Work} {
			cost, err := m.cost(ctx, work)
			if errors.Is(err, errNotValid) {
				continue
			}
			if err != nil {
				return 0, 0, err
			}
			costs[work] = append(costs[work], cost)
		}
	}
	once, twice := costs[m.plan.Work], costs[2*m.plan.Work]
	if len(once) <= calibrations/2 || len(twice) <= calibrations/2 {
		return 0, 0, fmt.Errorf("most of %d runs were not VALID: the host is too noisy", 2*calibrations)
	}
	base = median(once)
	slower, err = nextWork(m.plan.Work, 2*m.plan.Work, median(twice)/base-1, m.plan.Effect)
	return slower, base, err
}

// nextWork is the amount of work that costs the wanted share more than base does, if slower costs the share measured.
func nextWork(base, slower int, measured, wanted float64) (int, error) {
	if measured <= 0 {
		return 0, fmt.Errorf("%d rounds of work cost no more than %d: the host is too noisy", slower, base)
	}
	return base + max(1, int(float64(slower-base)*wanted/measured+0.5)), nil
}

func median(values []float64) float64 { return stats.Summarize(values, stats.Level).Median }

// compare measures the server against one with that work, block by block. A block in which a run was not VALID does not
// count and is repeated: the compared figure has no part in that verdict.
func (m *measurer) compare(ctx context.Context, random *rand.Rand, work int) (outcome, error) {
	var baseline, variant []float64
	repeated := 0
	for len(baseline) < m.plan.Blocks {
		costs, err := m.block(ctx, random, work)
		switch {
		case errors.Is(err, errNotValid) && repeated < m.plan.Blocks:
			repeated++
			continue
		case err != nil:
			return outcome{}, err
		}
		baseline, variant = append(baseline, costs[0]), append(variant, costs[1])
	}
	c := stats.Judge([]stats.Ratio{stats.PairedRatio(baseline, variant, stats.Level)})[0]
	if c.N < 2 {
		return outcome{}, fmt.Errorf("%d pairs of blocks: an interval needs two", c.N)
	}
	return outcome{
		Ratio: c.Ratio.Ratio, Low: c.Low, High: c.High, P: c.P, MinimumEffect: c.MinimumEffect, Verdict: c.Verdict,
		Repeated: repeated,
	}, nil
}

// block measures the baseline and the server with that work, in random order.
func (m *measurer) block(ctx context.Context, random *rand.Rand, work int) (costs [2]float64, err error) {
	for _, side := range random.Perm(2) {
		rounds := [2]int{m.plan.Work, work}[side]
		if costs[side], err = m.cost(ctx, rounds); err != nil {
			return costs, err
		}
	}
	return costs, nil
}

// cost is the CPU time of a fresh server for one request, in seconds.
func (m *measurer) cost(ctx context.Context, rounds int) (cost float64, err error) {
	server, address, err := m.start(ctx, rounds)
	if err != nil {
		return 0, err
	}
	defer server.End()
	before, err := readCPU(ctx, address)
	if err != nil {
		return 0, err
	}
	requests, err := m.load(ctx, address)
	if err != nil {
		return 0, err
	}
	after, err := readCPU(ctx, address)
	if err != nil {
		return 0, err
	}
	return (after - before).Seconds() / requests, nil
}

// start runs this program as a server at a free address.
func (m *measurer) start(ctx context.Context, rounds int) (*process.Process, string, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, "", err
	}
	server, err := process.Launch(ctx, process.Command{
		Name: "server", Args: []string{m.self, "-serve", strconv.Itoa(rounds), "-listen", address}, Ready: process.Answers(address),
	}, m.log)
	return server, address, err
}

func readCPU(ctx context.Context, address string) (time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/cpu", nil)
	if err != nil {
		return 0, fmt.Errorf("ask for CPU time: %w", err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("ask for CPU time: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64))
	if err != nil {
		return 0, fmt.Errorf("ask for CPU time: %w", err)
	}
	micros, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("ask for CPU time: %w", err)
	}
	return time.Duration(micros) * time.Microsecond, nil
}

// errNotValid is the error of a run that proves nothing.
var errNotValid = errors.New("the run was not VALID")

// load puts the load on, from a core of its own, and tells how many requests were answered.
func (m *measurer) load(ctx context.Context, address string) (float64, error) {
	load, err := process.Launch(ctx, process.Command{Name: "load", Args: []string{
		m.spillway, "load", "http://" + address + "/", "--pin",
		"--rate", strconv.Itoa(m.plan.Rate), "--connections", "8", "--duration", m.plan.Length.String(), "--json",
	}}, m.log)
	if err != nil {
		return 0, err
	}
	out, code, err := load.Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("load: %w", err)
	}
	if code != 0 {
		return 0, fmt.Errorf("load: exit code %d: %s", code, load.LogTail())
	}
	var document struct {
		Steps []struct {
			Done     int64    `json:"done"`
			Validity string   `json:"validity"`
			Reasons  []string `json:"reasons"`
		} `json:"steps"`
	}
	switch err := json.Unmarshal(out, &document); {
	case err != nil:
		return 0, fmt.Errorf("read load's result: %w", err)
	case len(document.Steps) != 1 || document.Steps[0].Done == 0:
		return 0, errors.New("load: no request was answered")
	case document.Steps[0].Validity != "VALID":
		return 0, fmt.Errorf("load: %w: %s: %s", errNotValid, document.Steps[0].Validity, strings.Join(document.Steps[0].Reasons, "; "))
	}
	return float64(document.Steps[0].Done), nil
}
