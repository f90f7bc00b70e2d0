//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"spillway/experiments/process"
)

// own returns the parts of spillway itself, embedded (SQLite, states in memory) and with PostgreSQL and Redis. The server and its
// database have a core, and the load generator another one. Feeds and popups, which need less CPU than the load, have a quarter of
// the core.
func own() []scenario {
	var all []scenario
	for _, p := range []ownPart{
		{"feed", ownFeed, false, 0.25},
		{"popup", ownPopup, false, 0.25},
		{"stream", ownStream, false, 0},
		{"query", ownQuery, false, 0},
		{"feed-postgres", ownFeed, true, 0.25},
		{"popup-redis", ownPopup, true, 0},
		{"stream-postgres", ownStream, true, 0},
		{"query-postgres", ownQuery, true, 0},
	} {
		where := "embedded"
		if p.servers {
			where = "with servers"
		}
		all = append(all, scenario{name: p.name, plants: "spillway, " + where, start: p.start})
	}
	return all
}

// An ownPart is what is loaded of a server.
type ownPart struct {
	name    string
	flags   func(*stage) ([]string, error) // of the load: path last
	servers bool
	share   float64 // of a core; 0: all of it
}

// ownConfig is the configuration of all parts; database, redis and store are filled in.
const ownConfig = `database: %s
redis: %q
log: {level: error}
probes: true
feeds:
  - path: /goodslist
    sql: >-
      SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno
      FROM orders JOIN users ON users.id = orders.users_id
    key: id
streams:
  - path: /positions
    table: positions
    columns: {device_id: {type: integer, required: true}, latitude: real, longitude: real}
popups:
  path: /popup
  placements: [home]
  store: %s
  keys: [popup-key-of-32-characters-or-more-00]
queries:
  - path: /order
    sql: SELECT id, createtime, goods_name FROM orders WHERE id = :id
    params: {id: integer}
`

// freightOrders is how many orders there are at least, numbered from 1: a page of a feed costs the same with more.
const freightOrders = 40_000

// seedFreight makes the tables of the freight app.
func (s *stage) seedFreight(database string) error {
	return s.run(nil, s.spillway, "seed", "freight", "--database", database, "--users", "10000", "--days", "366", "--per-day", "120")
}

func ownFeed(*stage) ([]string, error) { return []string{"/goodslist"}, nil }

func ownQuery(*stage) ([]string, error) {
	return []string{"--check", "body~=goods_name", fmt.Sprintf("/order?id={random(1,%d)}", freightOrders)}, nil
}

func ownStream(*stage) ([]string, error) {
	return []string{
		"--method", "POST", "-H", "Content-Type: application/json", "--body",
		`{{"device_id":{random(1,100000)},"latitude":31.2,"longitude":121.5}`, "/positions",
	}, nil
}

// ownPopup asks for users most of whom have seen the popup, and for new ones.
func ownPopup(s *stage) ([]string, error) {
	file, err := s.write("popups.txt", "9 GET /popup?user={random(1,1000)}\n1 GET /popup?user={random(1000000,9000000000000)}\n")
	return []string{"--requests-file", file, "/"}, err
}

func (p ownPart) start(s *stage) (*setup, error) {
	flags, err := p.flags(s)
	if err != nil {
		return nil, err
	}
	database, redis, store := "sqlite:"+filepath.Join(s.dir, "shop.db"), "", "memory"
	var watched []*process.Process
	var views []string
	if p.servers {
		db, err := s.postgres(nil, nil)
		if err != nil {
			return nil, err
		}
		r, err := s.redis()
		if err != nil {
			return nil, err
		}
		database, redis, store = db.url, r.url, "redis"
		watched = append(watched, db.Process, r.Process)
		views = []string{"--watch-db", "db-stats=" + db.url, "--watch-db", "redis-stats=" + r.url}
	}
	if err := s.seedFreight(database); err != nil {
		return nil, err
	}
	c := process.Command{Name: "spillway"}
	if p.share > 0 {
		if c.Group, err = s.slice(p.share, shortPeriod); err != nil {
			return nil, err
		}
	}
	app, address, err := s.spillwayServer(c, fmt.Sprintf(ownConfig, database, redis, store))
	if err != nil {
		return nil, err
	}
	n := len(flags) - 1
	return &setup{
		url: "http://" + address + flags[n], slo: "p99<50ms errors<1%", rates: []int{200, 400, 800},
		flags: append(append(append(flags[:n:n], watch(append(watched, app)...)...), views...), "--pin"),
	}, nil
}

// spillwayServer starts spillway serve as the command says, and makes a popup campaign if it has popups.
func (s *stage) spillwayServer(c process.Command, config string) (*process.Process, string, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, "", err
	}
	admin, err := process.FreeAddress()
	if err != nil {
		return nil, "", err
	}
	file, err := s.write(c.Name+".yaml", config)
	if err != nil {
		return nil, "", err
	}
	c.Args = []string{s.spillway, "serve", file, "--listen", address, "--admin", admin, "--data", filepath.Join(s.dir, c.Name)}
	c.Ready = func(ctx context.Context) error { return get(ctx, "http://"+admin+"/readyz") }
	server, err := s.start(c)
	if err != nil || !strings.Contains(config, "popups:") {
		return server, address, err
	}
	campaign := `{"name":"once","placement":"home","payload":{},"status":"active"}`
	response, err := http.Post("http://"+admin+"/popups/campaigns", "application/json", strings.NewReader(campaign))
	if err != nil {
		return nil, "", fmt.Errorf("make a campaign: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return nil, "", fmt.Errorf("make a campaign: %s", response.Status)
	}
	return server, address, nil
}
