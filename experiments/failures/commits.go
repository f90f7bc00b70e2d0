//go:build linux

package main

import (
	"fmt"

	"spillway/experiments/process"
	"spillway/internal/lab/diagnose"
)

// positions is the table that clients insert into.
const positions = `CREATE TABLE positions (id BIGINT AUTO_INCREMENT PRIMARY KEY, device_id BIGINT NOT NULL, recorded_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
latitude DOUBLE, longitude DOUBLE, speed DOUBLE) ENGINE=InnoDB;
`

func commitScenarios() []scenario {
	return []scenario{commits(), cores()}
}

func commits() scenario {
	return scenario{
		name: "commits", title: "A service that commits each record, for 1,000 clients with one record a second", chart: chartRate,
		story: [3]string{
			"1,000 clients send one record a second each; the service that is there managed 50 of them.",
			"The team names three culprits: the proxy, the code and the database.",
			"Each record is a commit, and a commit waits for a disk of 55 ms.",
		},
		scale: "The rate is the story's: 1,000/s. The service has two connections, each opened for its record.",
		doubt: `Kept connections are no cure: with those of nginx the service stores {proxy good}, with those of the code {kept good},
		in place of {base good}. What helps is not to wait for the disk one after the other: {pool good} with 200 connections,
		which share its turns, and {flush good} without the wait.`,
		today: `One commit for many records: a queue or a stream that groups them. More connections share the disk's turns too,
		up to a point; flush = 2 is fast and loses up to a second of records when the operating system crashes.`,
		expect: []string{diagnose.Commit, diagnose.DatabasePool}, load: []string{
			"--rate", "10,1000", "-d", "5s", "--warmup", "1s", "-c", "1000", "--method", "POST", "--timeout", "5s",
			"--body", `{"device_id":7,"latitude":30.5,"longitude":114.3,"speed":60}`, "--header", "Content-Type: application/json",
			"--slo", "p95<1s errors<1%",
		},
		base: settings{"proxy": "short", "idle": "0", "pool": "2", "flush": "1", "server": "own"},
		cures: []variant{
			{name: "proxy", title: "nginx keeps connections", set: "proxy=kept"},
			{name: "kept", title: "the code keeps its two connections", set: "idle=2"},
			{name: "pool", title: "the code opens up to 200 at once", set: "pool=200"},
			{name: "flush", title: "`innodb_flush_log_at_trx_commit=2`", set: "flush=2", cures: true},
			{
				name: "spillway", title: "Spillway in its place: group commit, acknowledged by the database", set: "server=spillway",
				cures: true, spillway: true,
			},
		},
		start: startInserts, predict: predictInserts, predictor: byArithmetic,
	}
}

// predictInserts is how many commits the connections carry, each as slow as a write of the popup service.
func predictInserts(_ *stage, set settings, _ target) prediction {
	pool := 0.0
	if _, err := fmt.Sscan(set["pool"], &pool); err != nil || set["flush"] != "1" || set["server"] != "own" {
		return prediction{}
	}
	return arithmetic(pool/writeSeconds, fmt.Sprintf("a commit takes 2 ms, and up to two turns of a disk that takes 55 ms: "+
		"%.0f connections / 112 ms = %.0f/s", pool, pool/writeSeconds))
}

func cores() scenario {
	return scenario{
		name: "cores", title: "Too many connections for the cores: commits that do not wait for the disk", chart: chartRate,
		story: [3]string{
			"With flush = 2 a commit does not wait for the disk, and the database is stopped by its CPU.",
			"4 connections store 11,108 records a second, 1,000 connections 855.",
			"More connections than cores only wait for each other, and cost switches and memory.",
		},
		scale: "MariaDB on half a core; the load has another core. The figures of the failure are those of 1,000 connections.",
		doubt: `The story's 855/s with 1,000 connections are MySQL on a spinning disk under sysbench. MySQL 5.7.22 stores {mysql57 good}
		with 1,000 connections here and {mysql57-c4 good} with 4, MariaDB {base good} and {c4 good}.`,
		today:  "A pool of about twice the cores, measured. More clients than that wait in the program, not in the database.",
		expect: []string{diagnose.DatabaseCPU, diagnose.UserCPU, diagnose.SystemCPU}, load: []string{
			"-c", "1,{connections}", "-d", "5s", "--warmup", "2s", "--sql", `INSERT INTO positions (device_id, latitude, longitude,
		speed) VALUES (7, 30.5, 114.3, 60)`, "--slo", "p95<50ms errors<1%",
		},
		base: settings{"connections": "1000", "flush": "2", "engine": "mariadb"},
		cures: []variant{
			{name: "c4", title: "4 connections", set: "connections=4", cures: true},
			{name: "c50", title: "50 connections", set: "connections=50", cures: true},
			{name: "c200", title: "200 connections", set: "connections=200"},
			{name: "mysql57", title: "1,000 connections of MySQL 5.7.22", set: "engine=mysql57"},
			{name: "mysql57-c4", title: "4 connections of MySQL 5.7.22", set: "engine=mysql57 connections=4", cures: true},
		},
		start: func(s *stage, set settings) target {
			db := s.mysql(set["engine"], "0", s.slice(0.5), positions, "--max-connections=2000", "--innodb-flush-log-at-trx-commit="+set["flush"])
			return target{url: db.url, flags: db.flags()}
		},
		predictor: byArithmetic, predict: func(*stage, settings, target) prediction {
			return arithmetic(0, "(cores x 2) + disks = 2 connections for half a core and one disk; more do not store more")
		},
	}
}

// startInserts: nginx in front of the service that inserts, and MariaDB on a slow disk.
func startInserts(s *stage, set settings) target {
	db := s.mysql("mariadb", "55", "", positions, "--max-connections=500", "--innodb-flush-log-at-trx-commit="+set["flush"])
	front, back := hostAddress+":8080", "127.0.0.1:8082" // spillway asks for keys on other addresses
	var app *process.Process
	path := "/positions"
	if set["server"] == "spillway" {
		app = s.serve(back, "database: "+db.url+`
pool: {max: 4}
streams:
  - path: /positions
    table: positions
    columns: {device_id: {type: integer, required: true}, latitude: real, longitude: real, speed: real}
    ack: database
`)
	} else {
		app = s.service("inserts", back, 0, "--database", db.url, "--pool", set["pool"], "--idle", set["idle"])
	}
	keep := ""
	if set["proxy"] == "kept" {
		keep = "keepalive 512;"
	}
	nginx := s.nginx(front,
		fmt.Sprintf(`upstream app { server %s; %s } server { listen %s backlog=4096; location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; } }`, back, keep, front))
	return target{url: "http://" + front + path, flags: append(watch(nginx, app), db.flags()...), logs: []string{s.log("nginx")}}
}
