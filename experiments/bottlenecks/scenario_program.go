//go:build linux

package main

import (
	"fmt"
	"strconv"
	"time"

	"spillway/experiments/process"
	"spillway/internal/lab/diagnose"
)

// programFaults are faults of the program that answers.
func programFaults() []scenario {
	return []scenario{
		{
			"user-cpu",
			[]string{diagnose.UserCPU},
			"1 ms of CPU time per request",
			"one core: 1,000/s; the generator has the other core and needs 2 % of it", startUserCPU,
		},
		{
			"connection-churn",
			[]string{diagnose.SystemCPU},
			"nginx opens a connection to its backend for each request, and the client one to nginx",
			"one core for both nginx; the kernel has most of it; the generator opens half as many connections", startChurn,
		},
		{
			"global-lock",
			[]string{diagnose.Lock},
			"a lock held for 2 ms of waiting",
			"1 / 2 ms = 500/s at most; the CPU is idle", startLock,
		},
		{
			"worker-pool",
			[]string{diagnose.WorkerPool},
			"8 workers that wait for 20 ms",
			"8 / 20 ms = 400/s; the CPU is idle", startWorkers,
		},
		{
			"accept-backlog",
			[]string{diagnose.AcceptQueue},
			"a backlog of 4, and no accept for 20 ms of every 200 ms",
			"5 arrivals in 20 ms = 250/s; later ones repeat their SYN after a second", startBacklog,
		},
		{
			"descriptor-limit",
			[]string{diagnose.Descriptors},
			"ulimit -n 64 and requests that wait for 50 ms",
			"about 56 connections / 50 ms = 1,100/s", startDescriptors,
		},
		{
			"memory-pressure",
			[]string{diagnose.Memory},
			"64 MiB of memory (control group) for a working set of 256 MiB",
			"three of four pages come from the disk, 20 per request; the CPU waits", startPages,
		},
		{
			"rate-limit",
			[]string{diagnose.RateLimit},
			"429 above 300 requests per second",
			"300/s; the CPU is idle", startRateLimit,
		},
	}
}

func startUserCPU(s *stage) (*setup, error) {
	app, url, err := s.serve(plant{kind: plantBurn, work: time.Millisecond}, process.Command{})
	if err != nil {
		return nil, err
	}
	return &setup{url: url, slo: "p95<50ms errors<1%", rates: []int{500, 800, 1200}, flags: append(watch(app), "--pin")}, nil
}

func startChurn(s *stage) (*setup, error) {
	front, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	back, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	nginx, err := s.nginx(1, fmt.Sprintf(`
server { listen %s backlog=4096; location / { proxy_pass http://%s; } }
server { listen %s backlog=4096; keepalive_timeout 0; location / { return 200 "ok\n"; } }`, front, back, back), front)
	if err != nil {
		return nil, err
	}
	return &setup{
		url: "http://" + front + "/", slo: "p95<50ms errors<1%", rates: []int{3000, 5000, 12000},
		flags: append(watch(nginx), "--pin", "--per-connection", "1"),
	}, nil
}

func startLock(s *stage) (*setup, error) {
	app, url, err := s.serve(plant{kind: plantLock, work: 2 * time.Millisecond}, process.Command{})
	if err != nil {
		return nil, err
	}
	return &setup{url: url, slo: "p95<100ms errors<1%", rates: []int{200, 300, 600}, flags: watch(app)}, nil
}

func startWorkers(s *stage) (*setup, error) {
	app, url, err := s.serve(plant{kind: plantSleep, k: 8, work: 20 * time.Millisecond}, process.Command{})
	if err != nil {
		return nil, err
	}
	return &setup{url: url, slo: "p95<100ms errors<1%", rates: []int{200, 300, 600}, flags: watch(app)}, nil
}

func startBacklog(s *stage) (*setup, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	p := plant{kind: plantStall, listen: address, k: 4, work: 20 * time.Millisecond}
	_, err = s.start(process.Command{Name: "app", Args: append([]string{s.self}, p.args()...), Ready: process.Answers(address)})
	if err != nil {
		return nil, err
	}
	return &setup{
		url: "http://" + address + "/", slo: "p95<200ms errors<1%", rates: []int{100, 180, 600},
		flags: []string{"--watch", "app=:" + portOf(address), "--per-connection", "1"},
	}, nil
}

func startDescriptors(s *stage) (*setup, error) {
	app, url, err := s.serve(plant{kind: plantSleep, work: 50 * time.Millisecond}, process.Command{Files: 64})
	if err != nil {
		return nil, err
	}
	return &setup{
		url: url, slo: "p95<200ms errors<1%", rates: []int{400, 800, 1600},
		flags: append(watch(app), "--connections", "500", "--timeout", "2s"),
	}, nil
}

func startPages(s *stage) (*setup, error) {
	group, err := s.controlGroup("memory", [2]string{"memory.limit_in_bytes", strconv.Itoa(64 << 20)})
	if err != nil {
		return nil, err
	}
	app, url, err := s.serve(plant{kind: plantPages, size: 256 << 20, k: 20}, process.Command{Group: group})
	if err != nil {
		return nil, err
	}
	return &setup{url: url, slo: "p95<100ms errors<1%", rates: []int{100, 200, 2000}, flags: watch(app)}, nil
}

func startRateLimit(s *stage) (*setup, error) {
	app, url, err := s.serve(plant{kind: plantLimit, rate: 300, work: 10 * time.Millisecond}, process.Command{})
	if err != nil {
		return nil, err
	}
	return &setup{url: url, slo: "p95<50ms errors<1%", rates: []int{150, 250, 400}, flags: watch(app)}, nil
}
