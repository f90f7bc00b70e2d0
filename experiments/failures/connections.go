//go:build linux

package main

import (
	"fmt"
	"syscall"
	"time"

	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/result"
)

func connectionScenarios() []scenario {
	return []scenario{connecting(), databaseConnections(), serverFiles(), clientFiles(), acceptQueue()}
}

func connecting() scenario {
	return scenario{
		name: "connecting", title: "PHP connects to PostgreSQL for each request, and the database's CPU goes into connecting", chart: chartCPU,
		story: [3]string{
			"A list of orders runs on Apache, PHP and PostgreSQL, and PHP opens a connection for each request.",
			"At 300 requests a second the database uses 219 % of a core, 115 of them system time, for a query that takes well under a millisecond.",
			"More requests a second fail, though the query is cheap.",
		},
		scale:  "The database has one whole core without a quota, the rest shares the other. Its CPU is that of the failing level: 250/s.",
		today:  "Keep connections: a pool in the program, persistent ones in PHP, or a pooler. The database then spends its time on queries.",
		expect: []string{diagnose.DatabaseCPU, diagnose.SystemCPU},
		load: []string{
			"--rate", "25,250", "-d", "5s", "--warmup", "1s", "-c", "100", "--slo", "p95<100ms errors<1%",
		},
		base: settings{"connect": "each", "pool": "none", "server": "php", "wait": "0", "nodes": "1"},
		cures: []variant{
			{name: "pgbouncer", title: "PgBouncer in between", set: "pool=pgbouncer", cures: true},
			{name: "persistent", title: "persistent connections in PHP", set: "connect=persistent", cures: true},
			{name: "go", title: "a program in Go with a pool of 8", set: "server=go", cures: true},
			{name: "spillway", title: "Spillway in place of PHP", set: "server=spillway", cures: true, spillway: true},
		},
		start: startPHP, predict: predictConnecting, predictor: byLoad,
	}
}

func databaseConnections() scenario {
	return scenario{
		name: "db-connections", title: "Pools that are larger than max_connections", chart: chartRate,
		story: [3]string{
			"A popup service reads campaigns and writes what it showed, on MySQL with at most 800 connections, behind nginx.",
			"Its pool may grow beyond that, and each write waits for a slow disk, so that the pool does grow.",
			"At 6,000 requests a second a third of them fail: the database refuses connections.",
		},
		scale: "40 connections in place of 800, a pool of 100, and a disk of 55 ms per fsync; 600/s in place of 6,000.",
		doubt: `The story says 502. That is what nginx answers if the service closes the connection; this service answers 503 with the database's message, and nginx passes it on. Fewer statements do not
		cure it as long as the pool may grow beyond the limit: with writes through a queue {queue errors} still fail, as reads wait
		for the disk too now and then. Nor does a smaller pool alone: {pool good} are good with 30 connections, as the others wait.`,
		today: `All pools together stay below ~max_connections~. What is read for everyone is cached,
		and writes that may wait go through a queue.`,
		expect: []string{diagnose.ConnectionLimit},
		load: []string{
			"--rate", "50,600", "-d", "5s", "--warmup", "1s", "-c", "200", "--slo", "p95<300ms errors<1%",
		},
		base: settings{"mode": "database", "pool": "100"},
		cures: []variant{
			{name: "queue", title: "writes through a list in Redis", set: "mode=list"},
			{name: "cached", title: "and all campaigns cached", set: "mode=cached"},
			{name: "pool", title: "a pool of 30", set: "pool=30"},
			{name: "both", title: "writes through a list in Redis, and a pool of 30", set: "mode=list pool=30", cures: true},
		},
		start: startPopups, predict: predictPopups, predictor: byArithmetic,
	}
}

func serverFiles() scenario {
	return scenario{
		name: "descriptors", title: "ulimit -n is too small for the connections, as a server", chart: chartRate,
		story: [3]string{
			"A service is to hold thousands of connections, and its shell allows it 1,024 open files or fewer.",
			"From that number on, accept fails, and further connections wait in the backlog without an answer.",
			"Clients see timeouts, while the host is idle.",
		},
		scale: "A limit of 256 files for 400 connections, in place of 1,024 for 5,000.",
		today: `~LimitNOFILE=~ in the unit or ~ulimit -n~ before the start, far above the connections that are expected. Fewer connections
		need fewer files, and carry less: 100 of them carry 250 requests of 400 ms a second.`,
		expect: []string{diagnose.Descriptors},
		load: []string{
			"--rate", "100,1000", "-d", "5s", "--warmup", "0s", "-c", "{connections}", "--timeout", "2s", "--slo", "p95<1s errors<1%",
		},
		base: settings{"files": "256", "connections": "400", "load-files": "16384"},
		cures: []variant{
			{name: "files", title: "16,384 open files", set: "files=16384", cures: true},
		},
		start: startManyConnections, predict: predictHost("open files", "rate=1000 keep-alive service=400ms"), predictor: byDoctor,
	}
}

func clientFiles() scenario {
	return scenario{
		name: "descriptors-client", title: "ulimit -n is too small for the connections, as a client", chart: chartRate,
		story: [3]string{
			"sysbench with 5,000 threads ends at once with \"Can't create UNIX socket (24)\".",
			"24 is EMFILE: the client itself has no open file left.",
			"`ulimit -n 20480` helps.",
		},
		scale:  "The load of spillway with 400 connections and a limit of 256 files, in place of sysbench with 5,000 and 1,024.",
		today:  "Raise the limit of the client too. It is the one that fails first if both have the same.",
		expect: []string{diagnose.Descriptors},
		load: []string{
			"--rate", "100,1000", "-d", "5s", "--warmup", "0s", "-c", "{connections}", "--timeout", "2s", "--slo", "p95<1s errors<1%",
		},
		base: settings{"files": "16384", "connections": "400", "load-files": "256"},
		cures: []variant{
			{name: "files", title: "16,384 open files for the client", set: "load-files=16384", cures: true},
		},
		start: startManyConnections, predict: predictHost("open files", "rate=1000 keep-alive service=400ms"), predictor: byDoctor,
	}
}

func acceptQueue() scenario {
	return scenario{
		name: "accept-queue", title: "An accept queue of 128 in front of a server that pauses", chart: chartTime,
		story: [3]string{
			"A server is asked on a new connection for each request, and pauses now and then, as for a garbage collection.",
			"Connections wait in its accept queue meanwhile, which has 128 places.",
			"Those that find it full try again after a second: a few requests take seconds, at any load.",
		},
		scale: "nginx, which is stopped for 300 ms of every 2 s, at 800 connections a second. Its backlog is 128, in place of its own 511.",
		doubt: `Advice often names one of the two. ~somaxconn~ alone gives a p99 of {somaxconn p99}, the backlog alone {backlog p99}, both {both p99}. That is for a program that asks for 128 itself. With the 511 that nginx asks for
		if nothing is set, ~somaxconn~ alone was enough: 800/s without an overflow, p99 286 ms, measured once.`,
		today:  `Raise both ~net.core.somaxconn~ and the backlog that the program asks for: the smaller one counts. Keep connections where that is possible.`,
		expect: []string{diagnose.AcceptQueue},
		load: []string{
			"--rate", "100,800", "-d", "5s", "--warmup", "1s", "-c", "1000", "--per-connection", "1", "--slo", "p95<500ms errors<1%",
		},
		base: settings{"net.core.somaxconn": "128", "backlog": "128"},
		cures: []variant{
			{name: "somaxconn", title: "`somaxconn=4096`", set: "net.core.somaxconn=4096"},
			{name: "backlog", title: "a backlog of 4,096 in nginx", set: "backlog=4096"},
			{name: "both", title: "both", set: "net.core.somaxconn=4096 backlog=4096", cures: true},
		},
		start: startPauses, predict: predictHost("accept backlog", "rate=800 short-connections stall=300ms closes=server"), predictor: byDoctor,
	}
}

// arithmetic is a prediction by a sum; 0: it has no rate.
func arithmetic(rateHz float64, text string) prediction {
	p := prediction{Text: text}
	if rateHz > 0 {
		rateHz = round(rateHz)
		p.RateHz = &rateHz
	}
	return p
}

// predictConnecting measures what a connection with one statement costs PostgreSQL when it is alone.
func predictConnecting(s *stage, set settings, t target) prediction {
	if set["pool"] != "none" || set["connect"] != "each" || set["server"] != "php" {
		return prediction{}
	}
	file := s.write("connect.ndjson", "")
	url := "postgres://postgres@" + hostAddress + ":5432/postgres?sslmode=disable"
	s.load(append([]string{
		s.abs(s.o.spillway), "load", url, "-c", "1", "--per-connection", "1", "-d", "2s", "--sql",
		"SELECT 1", "-o", file,
	}, t.flags...), nil)
	if s.err != nil {
		return prediction{}
	}
	all, err := result.ReadFile(file)
	if !s.check(err) {
		return prediction{}
	}
	each := all.Usage(0).Find(result.SamplerProcess, "", "db").Value(result.CPUPerRequest)
	return arithmetic(1/each,
		fmt.Sprintf(`a connection with one statement costs the database %.2g ms of CPU when it is alone: one core / %.2g ms = %.0f/s`, 1000*each, 1000*each, 1/each))
}

// popupTables are users, campaigns and shows of the popup service.
const popupTables = `CREATE TABLE campaigns (id BIGINT PRIMARY KEY, payload TEXT NOT NULL, city VARCHAR(32), channel VARCHAR(32), age_from INT, age_before INT, vip BOOL);
CREATE TABLE shows (id BIGINT AUTO_INCREMENT PRIMARY KEY, user_id BIGINT NOT NULL, campaign_id BIGINT NOT NULL, shown_at DATETIME NOT NULL, KEY (user_id, shown_at));
INSERT INTO campaigns SELECT seq, '{"text":"hello"}', 'x', 'app', 18, 90, 0 FROM seq_1_to_50;
UPDATE campaigns SET city = 'beijing' WHERE id = 25;
`

// writeSeconds is how long a write holds its connection: 2 ms, and up to two turns of a disk that takes 55 ms, one commit at a time.
const writeSeconds = 0.112

// predictPopups is how many writes the connections carry, of which the database accepts 40.
func predictPopups(_ *stage, set settings, _ target) prediction {
	pool := 0.0
	if _, err := fmt.Sscan(set["pool"], &pool); err != nil || set["mode"] != "database" {
		return prediction{}
	}
	pool = min(pool, 40)
	return arithmetic(pool/writeSeconds, fmt.Sprintf("a write holds a connection until its commit: 2 ms, and up to two turns of a disk that "+
		"takes 55 ms; %.0f connections / 112 ms = %.0f/s", pool, pool/writeSeconds))
}

// startPopups: nginx in front of the popup service, MariaDB on a slow disk, and Redis.
func startPopups(s *stage, set settings) target {
	db := s.mysql("mariadb", "55", "", popupTables, "--max-connections=40", "--innodb-flush-log-at-trx-commit=1")
	redis := s.redis(nil, hostAddress+":6379")
	front, back := hostAddress+":8080", hostAddress+":8082"
	app := s.service("popup", back, 0, "--database", db.url, "--redis", hostAddress+":6379", "--mode", set["mode"], "--pool", set["pool"])
	nginx := s.nginx(front,
		fmt.Sprintf(`upstream app { server %s; keepalive 512; } server { listen %s backlog=4096; location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; } }`, back, front))
	const query = "city=beijing&channel=app&age=30&vip=false"
	return target{
		url: "http://" + front + "/popup?user={random(1,1000000000)}&" + query, flags: append(watch(nginx, app, redis),
			db.flags()...), logs: []string{s.log("app")},
	}
}

// startManyConnections is a service that answers after 400 ms, so that the load needs that many connections.
func startManyConnections(s *stage, set settings) target {
	address := "127.0.0.1:8080"
	files := 0
	_, err := fmt.Sscan(set["files"], &files)
	s.check(err)
	app := s.service("empty", address, files, "--server", "nethttp", "--delay", "400ms")
	return target{url: "http://" + address + "/probe/empty", flags: watch(app), logs: []string{s.log("app")}}
}

// startPauses is nginx, which is stopped for 300 ms of every 2 s.
func startPauses(s *stage, set settings) target {
	address := "127.0.0.1:8080"
	nginx := s.nginx(address,
		fmt.Sprintf("server { listen %s backlog=%s; keepalive_timeout 0; location / { return 200 \"ok\\n\"; } }", address, set["backlog"]))
	return target{url: "http://" + address + "/", flags: watch(nginx), side: func(s *stage, _ settings) {
		pause := time.NewTicker(2 * time.Second)
		defer pause.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-pause.C:
			}
			_ = syscall.Kill(-nginx.PID, syscall.SIGSTOP) // it may have ended
			time.Sleep(300 * time.Millisecond)
			_ = syscall.Kill(-nginx.PID, syscall.SIGCONT)
		}
	}}
}
