//go:build linux

package main

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"spillway/experiments/process"
)

// programs are real programs as they come, each with the one setting that its name says. What limits them is for a human to
// judge, by the evidence that is printed.
func programs() []scenario {
	list := []struct {
		name, plants string
		start        func(*stage) (*setup, error)
	}{
		{"nginx-static", "nginx with one worker and a file of 1 kB, on kept connections", startNginxStatic},
		{"php-fpm", "nginx and php-fpm with pm.max_children=4; the script waits for 10 ms", startPHP},
		{"pgbouncer", "a program with 50 connections to pgbouncer, which has a pool of 2; the statement waits for 4 ms", startPgbouncer},
		{"haproxy", "HAProxy with maxconn 10 to a server that answers after 10 ms", startHAProxy},
		{"gunicorn", "gunicorn with one sync worker; the application waits for 4 ms", startGunicorn},
		{"node", "Node's HTTP server, which sorts 2,000 numbers per request", startNode},
		{"redis", "Redis, GET of one of 1,000 keys", startRedisProgram},
		{"postgresql", "PostgreSQL, a lookup by primary key", startPostgresProgram},
	}
	var all []scenario
	for _, p := range list {
		all = append(all, scenario{name: p.name, plants: p.plants, start: p.start})
	}
	return all
}

func startNginxStatic(s *stage) (*setup, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	files, err := s.folder("files", nil)
	if err != nil {
		return nil, err
	}
	if _, err := s.write("files/page.txt", strings.Repeat("0123456789abcde\n", 64)); err != nil {
		return nil, err
	}
	nginx, err := s.nginx(1, fmt.Sprintf("server { listen %s backlog=4096; root %s; }", address, files), address)
	if err != nil {
		return nil, err
	}
	return &setup{
		url: "http://" + address + "/page.txt", slo: "p95<20ms errors<1%", rates: []int{4000, 8000, 150000},
		flags: append(watch(nginx), "--pin"),
	}, nil
}

func startPHP(s *stage) (*setup, error) {
	binary, err := find("php-fpm", "php-fpm", "/usr/sbin/php-fpm*")
	if err != nil {
		return nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	backend, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	script, err := s.write("wait.php", "<?php usleep(10000); echo \"ok\\n\";\n")
	if err != nil {
		return nil, err
	}
	config, err := s.write("php-fpm.conf", fmt.Sprintf("[global]\nerror_log = /dev/stderr\n[www]\nlisten = %s\npm = "+
		"static\npm.max_children = 4\n", backend))
	if err != nil {
		return nil, err
	}
	php, err := s.start(process.Command{
		Name: "php", Args: []string{binary, "--nodaemonize", "--allow-to-run-as-root", "--fpm-config", config}, Ready: process.Answers(backend),
	})
	if err != nil {
		return nil, err
	}
	nginx, err := s.nginx(1, fmt.Sprintf(`server { listen %s; location / {
fastcgi_pass %s;
fastcgi_param REQUEST_METHOD GET;
fastcgi_param SCRIPT_FILENAME %s;
} }`, address, backend, script), address)
	if err != nil {
		return nil, err
	}
	return &setup{url: "http://" + address + "/", slo: "p95<200ms errors<1%", rates: []int{150, 300, 600}, flags: watch(nginx, php)}, nil
}

func startPgbouncer(s *stage) (*setup, error) {
	binary, err := find("pgbouncer", "pgbouncer", "/usr/sbin/pgbouncer")
	if err != nil {
		return nil, err
	}
	db, err := s.postgres(nil, nil)
	if err != nil {
		return nil, err
	}
	user, err := runAs("postgres")
	if err != nil {
		return nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	users, err := s.write("users", "\"postgres\" \"\"\n")
	if err != nil {
		return nil, err
	}
	config, err := s.write("pgbouncer.ini", fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 2
max_client_conn = 1000
`, portOf(strings.Split(strings.TrimPrefix(db.url, "postgres://postgres@"), "/")[0]), portOf(address), users))
	if err != nil {
		return nil, err
	}
	bouncer, err := s.start(process.Command{
		Name: "pgbouncer", Args: []string{binary, config}, User: user, Stop: syscall.SIGINT,
		Ready: process.Answers(address),
	})
	if err != nil {
		return nil, err
	}
	// The program sends statements as text, because this version of pgbouncer knows no prepared statements in transaction mode.
	behind := "postgres://postgres@" + address + "/postgres?sslmode=disable&default_query_exec_mode=simple_protocol"
	app, url, err := s.serve(plant{kind: plantSQL, k: 50, sql: "SELECT pg_sleep(0.004)", database: behind}, process.Command{})
	if err != nil {
		return nil, err
	}
	return &setup{
		url: url, slo: "p95<100ms errors<1%", rates: []int{150, 300, 700},
		flags: append(watch(app, bouncer, db.Process), "--watch-db", "db-stats="+db.url),
	}, nil
}

func startHAProxy(s *stage) (*setup, error) {
	binary, err := find("haproxy", "haproxy", "/usr/sbin/haproxy")
	if err != nil {
		return nil, err
	}
	app, url, err := s.serve(plant{kind: plantSleep, work: 10 * time.Millisecond}, process.Command{})
	if err != nil {
		return nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	config, err := s.write("haproxy.cfg", fmt.Sprintf(`defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend front
  bind %s
  default_backend back
backend back
  server one %s maxconn 10
`, address, strings.Trim(strings.TrimPrefix(url, "http://"), "/")))
	if err != nil {
		return nil, err
	}
	haproxy, err := s.start(process.Command{Name: "haproxy", Args: []string{binary, "-db", "-f", config}, Ready: process.Answers(address)})
	if err != nil {
		return nil, err
	}
	return &setup{url: "http://" + address + "/", slo: "p95<100ms errors<1%", rates: []int{300, 600, 1400}, flags: watch(haproxy, app)}, nil
}

func startGunicorn(s *stage) (*setup, error) {
	binary, err := find("gunicorn", "gunicorn", "/usr/bin/gunicorn")
	if err != nil {
		return nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	if _, err := s.write("app.py", `import time

def application(environ, start_response):
    time.sleep(0.004)
    start_response("200 OK", [("Content-Length", "3")])
    return [b"ok\n"]
`); err != nil {
		return nil, err
	}
	gunicorn, err := s.start(process.Command{
		Name: "gunicorn", Args: []string{binary, "--workers", "1", "--bind", address, "app:application"},
		Ready: process.Answers(address),
	})
	if err != nil {
		return nil, err
	}
	return &setup{
		url: "http://" + address + "/", slo: "p95<200ms errors<1%", rates: []int{50, 120, 300},
		flags: append(watch(gunicorn), "--per-connection", "1"),
	}, nil
}

func startNode(s *stage) (*setup, error) {
	binary, err := find("node", "nodejs", "/usr/bin/node")
	if err != nil {
		return nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	script, err := s.write("app.js", fmt.Sprintf(`const http = require('http');
http.createServer((request, response) => {
  const numbers = Array.from({length: 2000}, () => Math.random()).sort((a, b) => a - b);
  response.end(numbers[0] + '\n');
}).listen(%s, '127.0.0.1');
`, portOf(address)))
	if err != nil {
		return nil, err
	}
	node, err := s.start(process.Command{Name: "node", Args: []string{binary, script}, Ready: process.Answers(address)})
	if err != nil {
		return nil, err
	}
	return &setup{
		url: "http://" + address + "/", slo: "p95<50ms errors<1%", rates: []int{200, 500, 4000},
		flags: append(watch(node), "--pin"),
	}, nil
}

func startRedisProgram(s *stage) (*setup, error) {
	r, err := s.redis()
	if err != nil {
		return nil, err
	}
	return &setup{
		url: r.url + "/", slo: "p95<20ms errors<1%", rates: []int{10000, 30000, 400000},
		flags: append(watch(r.Process), "--watch-db", "redis-stats="+r.url, "--command", "GET key:{random(1,1000)}", "--pin", "--connections",
			"50"),
	}, nil
}

func startPostgresProgram(s *stage) (*setup, error) {
	db, err := s.postgres(nil, nil, "CREATE TABLE users (id int PRIMARY KEY, name text NOT NULL)",
		"INSERT INTO users SELECT i, 'user ' || i FROM generate_series(1, 100000) AS i", "VACUUM ANALYZE users")
	if err != nil {
		return nil, err
	}
	return &setup{
		url: db.url, slo: "p95<20ms errors<1%", rates: []int{2000, 5000, 60000},
		flags: append(watch(db.Process), "--watch-db", "db-stats="+db.url, "--sql", "SELECT name FROM users WHERE id = :id",
			"--param", "id=random(1,100000)", "--pin", "--connections", "20"),
	}, nil
}
