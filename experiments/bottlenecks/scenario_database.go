//go:build linux

package main

import (
	"spillway/experiments/process"
	"spillway/internal/lab/diagnose"
)

// databaseFaults are faults of a real PostgreSQL or Redis behind a program that has nothing else to do.
func databaseFaults() []scenario {
	return []scenario{
		{
			"database-pool",
			[]string{diagnose.DatabasePool},
			"a pool of 2 connections for statements that wait for 4 ms in PostgreSQL",
			"2 / 4 ms = 500/s at most; both CPUs are idle", startDatabasePool,
		},
		{
			"missing-index",
			[]string{diagnose.DatabaseCPU},
			"a lookup without an index among 75,000 rows of PostgreSQL",
			"one core for database and program; a scan takes some ms of it", startMissingIndex,
		},
		{
			"row-lock",
			[]string{diagnose.DatabaseLock},
			"every transaction updates the same row and then waits for 2 ms",
			"1 / 2 ms = 500/s at most, and 20 connections to wait for it", startRowLock,
		},
		{
			"slow-commit",
			[]string{diagnose.Commit},
			"a COMMIT per request on a disk whose fsync takes 20 ms (LD_PRELOAD)",
			"16 connections, one group at a time: under 16 / 20 ms = 800/s", startSlowCommit,
		},
		{
			"slow-redis",
			[]string{diagnose.RedisThread},
			"a Lua script of some ms per request in Redis",
			"the main thread has one core; the program and the generator share the other", startSlowRedis,
		},
	}
}

// beside starts the program in front of a database and returns its setup, which watches both.
func (s *stage) beside(db *database, p plant, slo string, rates []int) (*setup, error) {
	p.database = db.url
	app, url, err := s.serve(p, process.Command{})
	if err != nil {
		return nil, err
	}
	return &setup{url: url, slo: slo, rates: rates, flags: append(watch(app, db.Process), "--watch-db", db.Name+"-stats="+db.url)}, nil
}

func startDatabasePool(s *stage) (*setup, error) {
	db, err := s.postgres(nil, nil)
	if err != nil {
		return nil, err
	}
	return s.beside(db, plant{kind: plantSQL, k: 2, sql: "SELECT pg_sleep(0.004)"}, "p95<100ms errors<1%", []int{200, 300, 700})
}

func startMissingIndex(s *stage) (*setup, error) {
	db, err := s.postgres(nil, nil,
		"CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, note text NOT NULL)",
		"INSERT INTO orders SELECT i, i * 7919 % 75000, repeat('x', 60) FROM generate_series(1, 75000) AS i", "VACUUM ANALYZE orders")
	if err != nil {
		return nil, err
	}
	const lookup = "SELECT id, note FROM orders WHERE customer = (SELECT (random() * 75000)::int)"
	set, err := s.beside(db, plant{kind: plantSQL, k: 8, sql: lookup}, "p95<100ms errors<1%", []int{100, 200, 900})
	if err != nil {
		return nil, err
	}
	set.flags = append(set.flags, "--pin")
	return set, nil
}

func startRowLock(s *stage) (*setup, error) {
	db, err := s.postgres(nil, []string{"synchronous_commit=off"}, "CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL)",
		"INSERT INTO stock VALUES (1, 0)")
	if err != nil {
		return nil, err
	}
	const sale = "UPDATE stock SET n = n + 1 WHERE id = 1; SELECT pg_sleep(0.002)"
	return s.beside(db, plant{kind: plantSQL, k: 20, sql: sale}, "p95<100ms errors<1%", []int{100, 200, 900})
}

func startSlowCommit(s *stage) (*setup, error) {
	slow, err := s.slowDisk(20)
	if err != nil {
		return nil, err
	}
	db, err := s.postgres(slow, nil, "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT now())")
	if err != nil {
		return nil, err
	}
	return s.beside(db, plant{kind: plantSQL, k: 16, sql: "INSERT INTO events DEFAULT VALUES"}, "p95<150ms errors<1%", []int{150, 250, 1000})
}

func startSlowRedis(s *stage) (*setup, error) {
	r, err := s.redis()
	if err != nil {
		return nil, err
	}
	const slow = "local x = 0 for i = 1, 400000 do x = x + i end return x"
	return s.beside(r, plant{kind: plantRedis, sql: slow}, "p95<100ms errors<1%", []int{100, 200, 1000})
}
