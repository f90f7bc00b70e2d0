//go:build linux

package main

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"spillway/experiments/process"
	"spillway/internal/apptest"
	"spillway/internal/stats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerTellsItsCPU(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	address, err := process.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serveWork(ctx, 1000, address) }()
	answers := process.Answers(address)
	apptest.Await(t, "the server to answer", func() bool { return answers(ctx) == nil })
	before, err := readCPU(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	if work(50_000_000, 1) == 0 {
		t.Log("the result is of no matter")
	}
	after, err := readCPU(ctx, address)
	if err != nil || after <= before {
		t.Errorf("CPU time went from %v to %v: %v", before, after, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

func TestNextWork(t *testing.T) {
	for _, c := range []struct {
		slower           int
		measured, wanted float64
		want             int
	}{{2000, 1, 0.1, 1100}, {1100, 0.125, 0.1, 1080}, {1100, 0.1, 0.1, 1100}, {1100, 100, 0.1, 1001}} {
		if got, err := nextWork(1000, c.slower, c.measured, c.wanted); err != nil || got != c.want {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
	if _, err := nextWork(1000, 1100, -0.01, 0.1); err == nil {
		t.Error("more work that costs less is accepted")
	}
}

func TestProofCounts(t *testing.T) {
	r := proof{Plan: plan{Same: 8, Planted: 10}}
	for range 10 {
		r.add(outcome{Planted: true, Verdict: stats.Higher})
	}
	r.add(outcome{Verdict: stats.Lower})
	if err := r.judge(); err != nil || r.False != 1 || r.Found != 10 {
		t.Errorf("%d false, %d found: %v", r.False, r.Found, err)
	}
	r.add(outcome{Verdict: stats.Higher})
	if r.judge() == nil {
		t.Error("2 false differences of 8 pass")
	}
	r = proof{Plan: plan{Same: 8, Planted: 10}}
	for range 8 {
		r.add(outcome{Planted: true, Verdict: stats.Higher})
	}
	r.add(outcome{Planted: true, Verdict: stats.Lower}) // the wrong direction does not count
	if r.judge() == nil {
		t.Error("8 of 10 found pass")
	}
}
