//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"spillway/internal/lab/diagnose"
)

// Settings of the kernel that run out of ports, and the cures that are kernel settings.
const (
	portsFew  = "30000-31999" // 2,000: at 400/s they last as long as the kernel's 28,232 at 5,646/s
	portsMany = "30000-45999"
)

// kernelCures are each one setting of the kernel.
func kernelCures() []variant {
	return []variant{
		{name: "reuse", title: "`tcp_tw_reuse=1`", set: "net.ipv4.tcp_tw_reuse=1", cures: true},
		{name: "range", title: "16,000 ports in place of 2,000", set: "net.ipv4.ip_local_port_range=" + portsMany, cures: true},
		{name: "buckets", title: "`tcp_max_tw_buckets=1000`, below the range", set: "net.ipv4.tcp_max_tw_buckets=1000", cures: true},
	}
}

// portSettings are the kernel's settings of a host that runs out of ports, with more.
func portSettings(more settings) settings {
	all := settings{"net.ipv4.ip_local_port_range": portsFew, "net.ipv4.tcp_tw_reuse": "0", "net.ipv4.tcp_max_tw_buckets": "65536"}
	for key, value := range more {
		all[key] = value
	}
	return all
}

func portScenarios() []scenario {
	return []scenario{nginxPorts(), phpPorts(), nodePorts()}
}

func nginxPorts() scenario {
	return scenario{
		name: "ports-nginx", title: "nginx opens a connection to Apache for each request, and runs out of ports", chart: chartPorts,
		story: [3]string{
			"A site puts nginx in front of Apache and keeps no connections between the two.",
			"nginx closes first, so that each request leaves a socket in TIME_WAIT on its side, which holds a local port for a minute.",
			"When no port is left, nginx answers 502 at once: the host is idle, and curl fails or hangs.",
		},
		scale: "2,000 local ports at 400/s last as long as the kernel's 28,232 at 5,646/s.",
		doubt: `The story has TIME_WAIT at exactly 6,000 in nearly every row. That is ~tcp_max_tw_buckets~,
		a cap: 6,000 of a range of 28,000 or 64,000 ports cannot have used it up. With that cap below the range, ports do not run
		out here either: {buckets time-wait} sockets wait, {buckets ports} ports are in use, and {buckets errors} of the requests fail.
		Nor does TIME_WAIT slow a server: with {range time-wait} such sockets the median answer takes {range p50},
		with {kept time-wait} it takes {kept p50}.`,
		today: `Keep connections to the service behind the proxy (~keepalive~ in the upstream, ~proxy_http_version 1.1~,
		an empty ~Connection~ header). The kernel settings only buy time; ~tcp_tw_recycle~ is gone since Linux 4.12.`,
		expect: []string{diagnose.Ports},
		load: []string{
			"--rate", "10,400", "-d", "7s", "--warmup", "0s", "-c", "50", "--slo", "p95<200ms errors<1%",
		},
		base: portSettings(settings{"upstream": "short", "addresses": "1"}),
		cures: append([]variant{
			{name: "kept", title: "nginx keeps 64 connections to Apache", set: "upstream=kept", cures: true},
			{name: "addresses", title: "Apache on two addresses", set: "addresses=2", cures: true},
		}, kernelCures()...),
		start: startNginxApache, predict: predictPorts(400), predictor: byDoctor,
	}
}

func phpPorts() scenario {
	return scenario{
		name: "ports-php", title: "PHP opens a connection to PgBouncer for each request, and runs out of ports", chart: chartPorts,
		story: [3]string{
			"The database's CPU went into connecting, so a team puts PgBouncer between PHP and PostgreSQL.",
			"PHP still opens a connection for each request, now to PgBouncer, and closes it first.",
			"At 400 requests a second the application's host has no ports left, while the database idles.",
		},
		scale: `2,000 local ports at 400/s last as long as the kernel's 28,232 at 5,646/s. In the story 330 to 355 requests a second were served on each host.`,
		doubt: `By its figures the story's host answered about 335 requests a second whatever the database did. A range of 28,232 ports lasts for 471 connections a second, 64,000 for 1,066: exhausted ports explain a limit near 335 only if about 20,000 were left to use. The database is no cause either:
		it uses {base db-user} cores of user time here while the ports run out.`,
		today: `Keep the connections (~pg_pconnect~, a pool in the program). A pooler spares the database,
		not the ports of the host that connects to it.`,
		expect: []string{diagnose.Ports},
		load: []string{
			"--rate", "10,400", "-d", "7s", "--warmup", "0s", "-c", "50", "--slo", "p95<200ms errors<1%",
		},
		base: portSettings(settings{"connect": "each", "pool": "pgbouncer", "server": "php", "wait": "20000", "nodes": "1"}),
		cures: append([]variant{
			{name: "persistent", title: "persistent connections in PHP (`pg_pconnect`)", set: "connect=persistent", cures: true},
			{name: "nodes", title: "two nodes, with the same rate in all", set: "nodes=2", cures: true},
			{name: "spillway", title: "Spillway in place of PHP and PgBouncer", set: "server=spillway", cures: true, spillway: true},
		}, kernelCures()...),
		start: startPHP, predict: predictPorts(400), predictor: byDoctor,
	}
}

func nodePorts() scenario {
	s := phpPorts()
	s.name, s.title = "ports-nodes", "Two nodes at twice the rate run out of ports as one does"
	s.story = [3]string{
		"The team adds a second application host and divides the requests.",
		"At 500 requests a second all is well; at 600 the first 502s are there again.",
		"Each host has its own ports, so that two last for twice the rate, and no longer.",
	}
	s.scale = "Two hosts with 1,000 local ports each, behind one nginx. One such host lasts for 5 s at 200/s; this is 400/s."
	s.doubt = ""
	s.today = "A second host doubles what ports allow. Keeping connections removes the limit."
	s.load = slices.Clone(s.load)
	s.base = maps.Clone(s.base)
	s.base["nodes"], s.base["net.ipv4.ip_local_port_range"] = "2", "30000-30999"
	s.cures = []variant{{name: "persistent", title: "persistent connections in PHP", set: "connect=persistent", cures: true}}
	return s
}

// startNginxApache: nginx speaks HTTP/1.1 to Apache and closes first, because it has no pool of connections.
func startNginxApache(s *stage, set settings) target {
	front, back := hostAddress+":8080", ":8081"
	apache := s.apache("0.0.0.0"+back, "<?php usleep(20000); echo 'hello world!!';", workCores)
	upstream := "server " + hostAddress + back + "; "
	if set["addresses"] == "2" {
		upstream += "server " + otherAddress + back + "; "
	}
	if set["upstream"] == "kept" {
		upstream += "keepalive 64; "
	}
	nginx := s.nginx(front, fmt.Sprintf(`upstream apache { %s }
server { listen %s backlog=4096; location / { proxy_pass http://apache; proxy_http_version 1.1; proxy_set_header Connection ""; } }`, upstream, front))
	return target{url: "http://" + front + "/index.php", flags: watch(nginx, apache), logs: []string{s.log("nginx")}}
}

// goods is a small table of orders, and a page of ten of them.
const goods = `CREATE TABLE users (id int PRIMARY KEY, nickname text NOT NULL, mobileno text NOT NULL);
INSERT INTO users SELECT i, 'user ' || i, (13000000000 + i)::text FROM generate_series(1, 1000) AS i;
CREATE TABLE orders (id int PRIMARY KEY, createtime timestamp NOT NULL, goods_name text NOT NULL, users_id int NOT NULL);
INSERT INTO orders SELECT i, timestamp '2016-01-01' + i * interval '1 second', md5(i::text), 1 + i % 1000 FROM generate_series(1, 100000) AS i;
VACUUM ANALYZE users, orders;
`

// page is ten orders with their users.
const page = "SELECT orders.id, orders.createtime::text, orders.goods_name, users.nickname, users.mobileno " +
	"FROM orders JOIN users ON users.id = orders.users_id ORDER BY orders.id DESC LIMIT 10 OFFSET 100"

// phpPage reads ten orders over a connection that is opened for the request, or kept by the process.
const phpPage = `<?php
usleep(WAIT);
$c = @CONNECT('host=HOST port=PORT dbname=postgres user=postgres connect_timeout=3'FLAG);
$r = $c ? @pg_query($c, 'PAGE') : false;
if ($r === false) { http_response_code(500); exit($c ? pg_last_error($c) : (error_get_last()['message'] ?? 'no connection')); }
echo json_encode(pg_fetch_all($r));
`

// startPHP: Apache with PHP in front of PostgreSQL, with or without PgBouncer. The database has a core of its own.
func startPHP(s *stage, set settings) target {
	db := s.postgres(goods, "max_connections=400")
	address := hostAddress + ":8080"
	if set["server"] == "spillway" {
		app := s.serve(address, "database: "+db.url+`
queries:
  - path: /orders
    sql: `+page+"\n")
		return target{url: "http://" + address + "/orders", flags: append(watch(app), db.flags()...)}
	}
	if set["server"] == "go" {
		app := s.service("freight", address, 0, "--database", db.url, "--pool", "8")
		return target{url: "http://" + address + "/?offset=100", flags: append(watch(app), db.flags()...)}
	}
	if set["nodes"] == "1" {
		at, flags, log := s.phpNode(address, hostAddress, set)
		return target{url: "http://" + at + "/index.php", flags: append(flags, db.flags()...), logs: []string{log}}
	}
	const back = ":8081"
	_, flags, log := s.phpNode("0.0.0.0"+back, hostAddress, set)
	node := s.node("node2", set.sysctls()...)
	node.phpNode("0.0.0.0"+back, nearAddress, set)
	s.check(node.err)
	nginx := s.nginx(address,
		fmt.Sprintf("upstream nodes { server %s; server %s; keepalive 128; }\nserver { listen %s backlog=4096; location / { "+
			"proxy_pass http://nodes; proxy_http_version 1.1; proxy_set_header Connection \"\"; } }", hostAddress+back, farAddress+back, address))
	return target{url: "http://" + address + "/index.php", flags: slices.Concat(flags, watch(nginx), db.flags()), logs: []string{log}}
}

// phpNode is Apache with PHP, and PgBouncer unless the setting says otherwise, on one host; the database is at that address. It returns
// where it listens, the flags that watch it, and its log.
func (s *stage) phpNode(listen, database string, set settings) (address string, flags []string, log string) {
	to := database + ":5432"
	if set["pool"] == "pgbouncer" {
		bouncer, at := s.pgbouncer(database)
		to, flags = at, watch(bouncer)
	}
	connect, flag := "pg_connect", ", PGSQL_CONNECT_FORCE_NEW"
	if set["connect"] == "persistent" {
		connect, flag = "pg_pconnect", ""
	}
	cores := loadCores // beside a database whose CPU is the subject
	if set["wait"] != "0" {
		cores = workCores // not that of PgBouncer, which would otherwise be woken by the last message and close before PHP does
	}
	host, port, _ := strings.Cut(to, ":")
	apache := s.apache(listen, strings.NewReplacer("CONNECT(", connect+"(", "HOST", host, "PORT", port, "FLAG", flag, "PAGE", page,
		"WAIT", set["wait"]).Replace(phpPage), cores)
	return listen, append(flags, watch(apache)...), s.log("apache")
}

// predictPorts asks doctor when the ports of a host run out at a rate of connections, of which each of two nodes gets half.
func predictPorts(rate int) func(*stage, settings, target) prediction {
	return func(s *stage, set settings, _ target) prediction {
		each := rate
		if set["nodes"] == "2" {
			each /= 2
		}
		work := fmt.Sprintf("rate=%d service=20ms duration=7s closes=client", each)
		if set["addresses"] == "2" {
			work += " targets=2"
		}
		if set["upstream"] == "kept" || set["connect"] == "persistent" || set["server"] == "spillway" {
			work += " keep-alive"
		}
		return s.doctor("local ports", "--for", work)
	}
}

// predictHost asks doctor what a load does to the host and the service that listens there.
func predictHost(finding, work string) func(*stage, settings, target) prediction {
	return func(s *stage, set settings, t target) prediction {
		p := s.doctor(finding, "--for", work, "--target", t.url)
		p.Seconds, p.RateHz = nil, nil // those of the ports
		return p
	}
}

// doctor runs doctor in the namespace, with the limit of open files of the load, and returns a finding of its prediction.
func (s *stage) doctor(finding string, args ...string) prediction {
	var d struct {
		Prediction struct {
			Seconds *float64 `json:"local_ports_run_out_after_seconds"`
			RateHz  *float64 `json:"max_rate_hz"`
		}
		Findings []struct{ Group, Name, Status, Observed, Arithmetic, Why string }
	}
	out := s.inside(s.network, append([]string{s.abs(s.o.spillway), "doctor", "--json"}, args...)...)
	if s.err == nil {
		s.check(json.Unmarshal(out, &d))
	}
	p := prediction{Seconds: d.Prediction.Seconds, RateHz: d.Prediction.RateHz}
	for _, f := range d.Findings {
		if f.Group == "prediction" && f.Name == finding {
			p.Text = fmt.Sprintf("%s: %s (%s)", f.Status, f.Observed, f.Arithmetic)
			if finding != "local ports" {
				why, _, _ := strings.Cut(f.Why, "; ")
				p.Text += "; " + why
			}
		}
	}
	return p
}
