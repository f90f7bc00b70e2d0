//go:build linux

package main

import (
	"net"
	"slices"
	"time"

	"spillway/experiments/process"
	"spillway/internal/lab/diagnose"
)

// systemFaults are faults around the program: of the network, the host and the generator.
func systemFaults() []scenario {
	return []scenario{
		{
			"port-range",
			[]string{diagnose.Ports},
			"1,000 local ports for a program that opens a connection to its backend per request",
			"a port can be used again after a second on loopback: 1,000/s", startPorts,
		},
		{
			"network-delay",
			[]string{diagnose.NetworkDelay},
			"40 ms of round trip to the server, and 20 connections, which are opened again after 50 requests",
			"20 / 41 ms = 490/s; the CPU is idle", startDelay,
		},
		{
			"bandwidth",
			[]string{diagnose.Bandwidth},
			"20 Mbit/s (tbf) for responses of 10 kB",
			"2.5 MB/s over 10.3 kB = 240/s; the CPU is idle", startBandwidth,
		},
		{
			"noisy-neighbour",
			[]string{diagnose.Neighbour},
			"2 busy threads of another program on the server's core",
			"a third of a core for requests of 1 ms; the generator has the other core", startNeighbour,
		},
		{
			"slow-generator",
			[]string{diagnose.Generator},
			"a generator with 5 % of a core, for a program that answers at once",
			"the generator stops 95 % of the time", startSlowGenerator,
		},
	}
}

func startPorts(s *stage) (*setup, error) {
	network, err := s.namespace("host")
	if err != nil {
		return nil, err
	}
	if err := s.sysctl(network, "net.ipv4.ip_local_port_range", "40000 40999"); err != nil {
		return nil, err
	}
	at := process.Command{Network: network.PID}
	at.Name = "backend"
	backend, backendURL, err := s.serve(plant{kind: plantBody, listen: "127.0.0.1:8081", size: 100}, at)
	if err != nil {
		return nil, err
	}
	at.Name = "app"
	app, url, err := s.serve(plant{kind: plantProxy, listen: "127.0.0.1:8080", backend: backendURL}, at)
	if err != nil {
		return nil, err
	}
	return &setup{
		url: url, slo: "p95<200ms errors<1%", rates: []int{300, 600, 1600}, at: process.Command{Network: network.PID},
		flags: append(watch(app, backend), "--connections", "50"),
	}, nil
}

func startDelay(s *stage) (*setup, error) {
	client, server, err := s.twoNamespaces()
	if err != nil {
		return nil, err
	}
	if err := s.farLink(client, server, 20*time.Millisecond); err != nil {
		return nil, err
	}
	app, url, err := s.serve(plant{kind: plantBody, listen: net.JoinHostPort(serverAddress, "8080"), size: 100},
		process.Command{Network: server.PID})
	if err != nil {
		return nil, err
	}
	return &setup{
		url: url, slo: "p95<150ms errors<1%", rates: []int{200, 350, 700}, at: process.Command{Network: client.PID},
		flags: append(watch(app), "--connections", "20", "--per-connection", "50"),
	}, nil
}

func startBandwidth(s *stage) (*setup, error) {
	client, server, err := s.twoNamespaces()
	if err != nil {
		return nil, err
	}
	if err := s.cable(client, server); err != nil {
		return nil, err
	}
	if err := s.inside(server, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "20mbit", "burst", "16kb", "latency",
		"100ms"); err != nil {
		return nil, err
	}
	app, url, err := s.serve(plant{kind: plantBody, listen: net.JoinHostPort(serverAddress, "8080"), size: 10_000},
		process.Command{Network: server.PID})
	if err != nil {
		return nil, err
	}
	return &setup{
		url: url, slo: "p95<150ms errors<1%", rates: []int{100, 180, 400}, at: process.Command{Network: client.PID},
		flags: watch(app),
	}, nil
}

func startNeighbour(s *stage) (*setup, error) {
	cores := []int{1}
	app, url, err := s.serve(plant{kind: plantBurn, work: time.Millisecond}, process.Command{Cores: cores})
	if err != nil {
		return nil, err
	}
	spinner := plant{kind: plantSpin, listen: "none", k: 2}
	if _, err := s.start(process.Command{Name: "neighbour", Args: slices.Concat([]string{s.self}, spinner.args()), Cores: cores}); err != nil {
		return nil, err
	}
	return &setup{
		url: url, slo: "p95<100ms errors<1%", rates: []int{100, 200, 600}, flags: watch(app),
		at: process.Command{Cores: []int{0}},
	}, nil
}

func startSlowGenerator(s *stage) (*setup, error) {
	app, url, err := s.serve(plant{kind: plantBody, size: 100}, process.Command{})
	if err != nil {
		return nil, err
	}
	group, err := s.slice(0.05, defaultPeriod)
	if err != nil {
		return nil, err
	}
	return &setup{
		url: url, slo: "p95<20ms errors<1%", rates: []int{100, 1000, 4000}, flags: watch(app),
		at: process.Command{Group: group},
	}, nil
}
