//go:build linux

package main

import (
	"time"

	"spillway/experiments/process"
	"spillway/internal/lab/diagnose"
)

// healthy are servers without a fault, which only run out of CPU.
func healthy() []scenario {
	cpu := []string{diagnose.UserCPU, diagnose.SystemCPU}
	return []scenario{
		{"healthy-user", cpu, "nothing: 0.4 ms of CPU time per request", "one core", startHealthyUser},
		{"healthy-system", cpu, "nothing: reads 2 MB of the page cache per request, on keep-alive", "one core", startHealthySystem},
		{
			"healthy-database", cpu, "nothing: 0.4 ms of CPU time beside a database that answers by its index", "one core for both",
			startHealthyDatabase,
		},
	}
}

func startHealthyUser(s *stage) (*setup, error) {
	app, url, err := s.serve(plant{kind: plantBurn, work: 400 * time.Microsecond}, process.Command{})
	if err != nil {
		return nil, err
	}
	return &setup{url: url, slo: "p95<50ms errors<1%", rates: []int{800, 1500, 3000}, flags: append(watch(app), "--pin")}, nil
}

func startHealthySystem(s *stage) (*setup, error) {
	app, url, err := s.serve(plant{kind: plantRead, size: 2 << 20}, process.Command{})
	if err != nil {
		return nil, err
	}
	return &setup{url: url, slo: "p95<50ms errors<1%", rates: []int{500, 1000, 6000}, flags: append(watch(app), "--pin")}, nil
}

func startHealthyDatabase(s *stage) (*setup, error) {
	db, err := s.postgres(nil, nil, "CREATE TABLE users (id int PRIMARY KEY, name text NOT NULL)",
		"INSERT INTO users SELECT i, 'user ' || i FROM generate_series(1, 10000) AS i", "VACUUM ANALYZE users")
	if err != nil {
		return nil, err
	}
	set, err := s.beside(db, plant{
		kind: plantSQL, k: 10, work: 400 * time.Microsecond, sql: "SELECT name FROM users WHERE id = (SELECT (random() * 9999 + 1)::int)",
	}, "p95<50ms errors<1%", []int{500, 900, 3000})
	if err != nil {
		return nil, err
	}
	set.flags = append(set.flags, "--pin")
	return set, nil
}
