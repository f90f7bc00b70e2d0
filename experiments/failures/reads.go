//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"spillway/experiments/process"
	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/result"
)

// The statement of the game's ranking, and its table with one value in app_id, token and prize_grade.
const (
	gameStatement = `SELECT * FROM game_record WHERE app_id = 'app-1' AND token = 'token-1' AND score != -1 ORDER BY prize_grade, score LIMIT 50`
)

// gameStatements are that statement with one piece of advice each.
var gameStatements = map[string]string{
	"star":     gameStatement,
	"columns":  strings.Replace(gameStatement, "*", "user_id, nickname, prize_grade, score", 1),
	"notin":    strings.Replace(gameStatement, "score != -1", "score NOT IN (-1)", 1),
	"isnull":   strings.Replace(gameStatement, "score != -1", "score != -1 AND start_time IS NULL", 1),
	"subquery": `SELECT * FROM game_record WHERE id IN (SELECT id FROM game_record WHERE app_id = 'app-1' AND token = 'token-1' AND score != -1) ORDER BY prize_grade, score LIMIT 50`,
}

func gameTable(indexes string) string {
	return `CREATE TABLE game_record (id BIGINT PRIMARY KEY, app_id VARCHAR(64), token VARCHAR(64), game_match_id INT, user_id BIGINT, nickname VARCHAR(64), device_id VARCHAR(64),
prize_grade INT, start_time DATETIME, score INT);
INSERT INTO game_record SELECT seq, 'app-1', 'token-1', seq % 100, seq, concat('player ', seq), md5(seq), 1, NULL, CASE WHEN seq % 1000 = 0 THEN -1 ELSE seq * 7919 % 100000 END FROM seq_1_to_200000;
` + indexes + "\nANALYZE TABLE game_record;\n"
}

func readScenarios() []scenario {
	return []scenario{missingIndex(), redisPool(), gatewayHop()}
}

func missingIndex() scenario {
	return scenario{
		name: "index", title: "A missing index, and four pieces of advice", chart: chartTime,
		story: [3]string{
			"A ranking reads 50 rows of 500,000, sorted by two columns without an index.",
			"It takes 0.551 s; with an index on these two columns 0.194 s.",
			"The advice that is given with it: named columns, joins in place of subqueries, no NOT IN, no IS NULL.",
		},
		scale: "200,000 rows of MariaDB on one core, 20 requests a second.",
		doubt: `The advice about the statement was given without a measurement. With named columns the same table answers {columns good}
		of the 20/s, with ~NOT IN~ {notin good}, with ~IS NULL~ {isnull good} and with a subquery {subquery good}, where the failure is
		{base good}: only an index cures it. That of the story answers in {seed p50}, the one with all columns in {doctor p50}.`,
		today:  "Look at the plan (`spillway doctor --query`): an index in the order of ORDER BY ends the sort and stops after 50 rows.",
		expect: []string{diagnose.DatabaseCPU},
		load: []string{
			"--rate", "1,20", "-d", "6s", "--warmup", "1s", "-c", "20", "--slo", "p90<300ms errors<1%",
		},
		base: settings{"index": "none", "statement": "star"},
		cures: []variant{
			{name: "seed", title: "the story's index (prize_grade, score)", set: "index=prize_grade,score", cures: true},
			{name: "doctor", title: "the index with all columns", set: "index=doctor", cures: true},
			{name: "columns", title: "named columns in place of `*`", set: "statement=columns"},
			{name: "notin", title: "`NOT IN (-1)` in place of `!= -1`", set: "statement=notin"},
			{name: "isnull", title: "with `IS NULL`", set: "statement=isnull"},
			{name: "subquery", title: "with a subquery", set: "statement=subquery"},
		},
		start: startGames, predict: predictGames, predictor: byDoctor,
	}
}

func redisPool() scenario {
	return scenario{
		name: "redis-pool", title: "A pool of 8 connections to a Redis that is 1 ms away", chart: chartRate,
		story: [3]string{
			"A service reads one key of Redis per request, through a pool of 8 connections; Redis is on another host.",
			"It manages 2,000 requests a second; with a pool of 800 it is 2,500.",
			"Each connection carries one command at a time, so that 8 of them carry 8 per round trip.",
		},
		scale: "A pool of 2 in place of 8, under 200 clients in place of 300: the load needs a quarter of the rate. " +
			"The link takes 0.5 ms each way, and a command over it 2.3 ms, as measured.",
		doubt:  `800 connections are not what cures it: 20 give {p20 good}, and one that all requests share {shared good}.`,
		today:  "A pool of rate x round trip, with room; or a client that sends many commands over one connection.",
		expect: []string{diagnose.WorkerPool, diagnose.NetworkDelay, diagnose.Lock},
		load: []string{
			"--rate", "200,2500", "-d", "5s", "--warmup", "1s", "-c", "200", "--slo", "p95<50ms errors<1%",
		},
		base: settings{"pool": "2", "client": "pool"},
		cures: []variant{
			{name: "p800", title: "a pool of 800", set: "pool=800", cures: true},
			{name: "p20", title: "a pool of 20", set: "pool=20", cures: true},
			{name: "shared", title: "a client that shares one connection (rueidis)", set: "client=rueidis", cures: true},
		},
		start: startFarRedis, predict: predictFarRedis, predictor: byLoad,
	}
}

func gatewayHop() scenario {
	return scenario{
		name: "gateway", title: "A gateway in front of an empty endpoint: what a hop costs", chart: chartRate,
		story: [3]string{
			"An empty service behind a gateway, a registry and gRPC answers 1,448 requests a second; frameworks without a gateway 5,500 to 12,000.",
			"The gateway opens a connection to the service for each call; with a pool of 10 it is 1,700 a second.",
			"Every hop costs CPU on both sides.",
		},
		scale: "The stories' own small gateway, registry and service, all on one core; the load has another. 100 clients at once.",
		doubt: `The story's step from a connection per call to a pool of 10 was from 1,449 to 1,700/s. Here it is from {base good}
		to {pool10 good}, and with a pool of 1 {pool1 good}:
		calls that find all lent still open their own.`,
		today: `Keep connections between services,
		or share one (gRPC carries many calls at once). A hop that does nothing is cheapest left out.`,
		expect: []string{diagnose.UserCPU, diagnose.SystemCPU},
		load: []string{
			"-c", "4,100", "-d", "5s", "--warmup", "1s", "--header", "Cookie: sid=abc", "--slo", "p95<30ms errors<1%",
		},
		base: settings{"client": "each", "pool": "10", "net.ipv4.ip_local_port_range": "10000-64999", "net.ipv4.tcp_tw_reuse": "1"},
		cures: []variant{
			{name: "pool1", title: "a pool of 1", set: "client=pool pool=1"},
			{name: "pool10", title: "a pool of 10", set: "client=pool"},
			{name: "shared", title: "one connection for all calls", set: "client=shared", cures: true},
			{name: "direct", title: "the empty endpoint without a gateway", set: "client=none", cures: true},
		},
		start: startGateway, predict: predictGateway, predictor: byLoad,
	}
}

// startGames is MariaDB with the table of the game.
func startGames(s *stage, set settings) target {
	indexes := ""
	switch set["index"] {
	case "none":
	case "doctor":
		indexes = strings.TrimSuffix(doctorIndex, ";") + ";"
	default:
		indexes = "CREATE INDEX ranking ON game_record (" + set["index"] + ");"
	}
	db := s.mysql("mariadb", "0", "", gameTable(indexes), "--max-connections=200")
	return target{url: db.url, flags: append(db.flags(), "--sql", gameStatements[set["statement"]])}
}

// doctorIndex has all columns of the statement. doctor --query --measure tries it, and names it or the story's as the fastest.
const doctorIndex = "CREATE INDEX ranking ON game_record (app_id, token, prize_grade, score)"

// predictGames asks doctor what an index would give, on a copy.
func predictGames(s *stage, set settings, t target) prediction {
	if set["index"] != "none" || set["statement"] != "star" {
		return prediction{}
	}
	var d struct {
		Query struct {
			Verdict  string
			Measured []struct {
				Seconds float64 `json:"median_seconds"` // of the first: without an index
			}
			Winner *struct{ Create string }
		}
	}
	out := s.inside(s.network, s.abs(s.o.spillway), "doctor", "--database", t.url, "--query", gameStatement, "--measure",
		"--copy-rows", "200000", "--json")
	if s.err == nil {
		s.check(json.Unmarshal(out, &d))
	}
	text := d.Query.Verdict
	if d.Query.Winner != nil {
		text += " (" + d.Query.Winner.Create + ")"
	}
	rate := 0.0
	if len(d.Query.Measured) > 0 && d.Query.Measured[0].Seconds > 0 {
		seconds := d.Query.Measured[0].Seconds
		rate = 1 / seconds
		text = fmt.Sprintf("one core / %.0f ms per statement = %.2g/s; with an index: %s", 1000*seconds, rate, text)
	}
	return arithmetic(rate, text)
}

// farRedis is the address of the Redis behind the link.
const farRedis = "10.98.0.2:6379"

// startFarRedis is a service and a Redis in another namespace, over a link that takes half a millisecond each way.
func startFarRedis(s *stage, set settings) target {
	far := s.namespace("far")
	if s.err != nil {
		return target{}
	}
	up := s.dir + "/link.up"
	s.start(process.Command{
		Name: "link", Args: []string{
			s.abs(s.o.link), "-link", fmt.Sprintf("%d,%d", s.network.PID, far.PID), "-work", "500us",
			"-marker", up,
		}, Cores: loadCores,
		Ready: s.exists(up),
	})
	const near = "10.98.0.1"
	there, _, _ := strings.Cut(farRedis, ":")
	for _, end := range []struct {
		network     *process.Process
		local, peer string
	}{{s.network, near, there}, {far, there, near}} {
		s.inside(end.network, "ip", "address", "add", end.local, "peer", end.peer, "dev", "far0")
		s.inside(end.network, "ip", "link", "set", "far0", "up")
	}
	s.redis(far, farRedis)
	address := hostAddress + ":8080"
	app := s.service("redisget", address, 0, "--redis", farRedis, "--client", set["client"], "--pool", set["pool"])
	return target{url: "http://" + address + "/probe/redis?key=a", flags: watch(app)}
}

// predictFarRedis measures one command at a time over the link: a pool carries as many per round trip as it has connections.
func predictFarRedis(s *stage, set settings, _ target) prediction {
	pool := 0.0
	if _, err := fmt.Sscan(set["pool"], &pool); err != nil || set["client"] != "pool" {
		return prediction{Text: "one connection carries many commands at once: the round trip is no limit"}
	}
	file := s.write("far.ndjson", "")
	s.load([]string{
		s.abs(s.o.spillway), "load", "redis://" + farRedis,
		"-c", "1", "-d", "1s", "--warmup", "1s", "--command", "GET a", "-o", file,
	}, nil)
	one := &run{}
	if s.err != nil || !s.check(one.read(file)) {
		return prediction{}
	}
	return arithmetic(pool/one.P50,
		fmt.Sprintf("a command takes %.2g ms over the link; %.0f connections / %.2g ms = %.0f/s",
			1000*one.P50, pool, 1000*one.P50, pool/one.P50))
}

// predictGateway measures what a request costs the gateway and the service behind it when it is alone.
func predictGateway(s *stage, set settings, t target) prediction {
	file := s.write("alone.ndjson", "")
	s.load(slices.Concat([]string{
		s.abs(s.o.spillway), "load", t.url, "-c", "1", "-d", "2s", "--warmup", "500ms", "--header", "Cookie: sid=abc", "-o", file,
	}, t.flags), nil)
	if s.err != nil {
		return prediction{}
	}
	all, err := result.ReadFile(file)
	if !s.check(err) {
		return prediction{}
	}
	cost := func(name string) float64 {
		return max(all.Usage(0).Find(result.SamplerProcess, "", name).Value(result.CPUPerRequest), 0)
	}
	if set["client"] == "none" {
		return arithmetic(1/cost("app"), fmt.Sprintf("a request costs the endpoint %.2g ms of CPU when it is alone: one core / %.2g ms = %.0f/s",
			1000*cost("app"), 1000*cost("app"), 1/cost("app")))
	}
	both := cost("app") + cost("greeter")
	return arithmetic(1/both, fmt.Sprintf("a request costs the gateway %.2g ms of CPU and the service behind it %.2g ms when it is alone: "+
		"one core / %.2g ms = %.0f/s", 1000*cost("app"), 1000*cost("greeter"), 1000*both, 1/both))
}

// startGateway is the gateway with its registry and service, or the endpoint alone.
func startGateway(s *stage, set settings) target {
	address := hostAddress + ":8080"
	if set["client"] == "none" {
		app := s.service("empty", address, 0, "--server", "nethttp")
		return target{url: "http://" + address + "/probe/empty", flags: watch(app)}
	}
	registry, greeter := hostAddress+":8090", hostAddress+":8092"
	s.service("registry", registry, 0)
	behind := s.service("greeter", greeter, 0, "--registry", "http://"+registry)
	app := s.service("gateway", address, 0, "--registry", "http://"+registry, "--client", set["client"], "--pool", set["pool"])
	if behind != nil {
		behind.Name = "greeter"
	}
	return target{url: "http://" + address + "/", flags: watch(app, behind)}
}
