//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"spillway/experiments/process"
	"spillway/internal/lab/cores"
)

// stage is where the servers of one database run. They have all cores but the last, which is the load's.
type stage struct {
	ctx            context.Context
	options        options
	dir, log, self string
	cores          []int
	processes      []*process.Process
}

func newStage(ctx context.Context, o options) (*stage, error) {
	all, err := cores.Available()
	if err == nil && len(all) < 2 {
		err = errors.New("two cores are needed: one for the load")
	}
	if err != nil {
		return nil, fmt.Errorf("find the cores: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	dir, err := os.MkdirTemp("", "peers-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the databases have users of their own
	}
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	return &stage{ctx: ctx, options: o, dir: dir, log: filepath.Join(dir, "log"), self: self, cores: all[:len(all)-1]}, nil
}

// end ends the processes, the last one first.
func (s *stage) end() {
	for _, p := range slices.Backward(s.processes) {
		p.End()
	}
	_ = os.RemoveAll(s.dir) // it is temporary
}

func (s *stage) start(c process.Command) (*process.Process, error) {
	c.Cores = s.cores
	p, err := process.Launch(s.ctx, c, s.log)
	if err == nil {
		s.processes = append(s.processes, p)
	}
	return p, err
}

// contests starts what competes for a database and returns the contests.
func (s *stage) contests(database string) ([]contest, error) {
	switch {
	case database == "redis" && has(s.options.Only, "popup"):
		return s.popups()
	case database == "nothing" && has(s.options.Only, "post"):
		return s.constants()
	case !has(s.options.Databases, database):
		return nil, nil
	}
	c := contest{database: database}
	pages := filepath.Join(s.dir, "pages.csv")
	var wanted []contest
	for _, w := range []contest{
		{workload: "q", path: "/q?id={random(1,100000)}"},
		{workload: "page", path: "/page?id={file:" + pages + ":id}&before={file:" + pages + ":before}"},
		{workload: "w", path: "/w", body: body},
		{workload: "slow", path: "/slow?id={random(1,50000)}"},
		{workload: "stuck", path: "/stuck?id={random(2,100)}", beside: "/stuck?id=1"},
	} {
		if has(s.options.Only, w.workload) && (w.beside == "" || database == "postgres") {
			wanted = append(wanted, w)
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	b, err := s.startBackend(database)
	if err == nil {
		c.ours, err = s.startAll(b, func(string) string { return statements(b) })
	}
	if err != nil {
		return nil, err
	}
	peers, err := s.create(b, "peer")
	for pool := range strings.SplitSeq(s.options.Pools, ",") {
		var v variant
		if err == nil {
			v, err = s.startPeer(b.driver+" pool of "+pool, b.driver, peers.url, pool, b.span)
		}
		v.table = peers
		c.others = append(c.others, v)
	}
	if err == nil && has(s.options.Only, "page") {
		err = writePages(c.ours[0].address, pages)
	}
	for i := range wanted {
		w := &wanted[i]
		w.database, w.ours, w.others = database, c.ours, c.others
		if b.pid > 0 {
			w.watch = []int{b.pid}
		}
	}
	return wanted, err
}

// body is one record, as a template of spillway load.
const body = `{{"device":{random(1,100000)},"lat":31.2,"lon":121.5,"speed":61.5}`

// statements is the configuration of q, page, w, slow and stuck.
func statements(b *backend) string {
	text := "queries:\n"
	for path, sql := range map[string]string{"q": selectItem, "slow": fmt.Sprintf(selectSlow, b.span), "stuck": selectStuck} {
		if path != "stuck" || b.driver == "postgres" {
			text += fmt.Sprintf("  - {path: /%s, sql: %q, params: {id: integer}, one: true, timeout: 10s}\n", path, sql)
		}
	}
	return text + "feeds:\n  - {path: /page, sql: 'SELECT id, name, price, stock FROM items', key: id}\nstreams:\n" +
		"  - {path: /w, table: records, columns: {device: {type: integer, required: true}, lat: real, lon: real, speed: real}}\n"
}

// popups compares a popup that is due with the other program on Redis. States in memory reach the disk before the answer, and so do
// those of the other program then; states in Redis are as safe as Redis's default for both.
func (s *stage) popups() ([]contest, error) {
	b, err := s.startBackend("postgres")
	if err != nil {
		return nil, err
	}
	var all []contest
	for kept, fsync := range map[string]string{"memory": "always", "redis": "everysec"} {
		address, err := process.FreeAddress()
		if err != nil {
			return nil, err
		}
		redis, err := s.start(process.Command{Name: "redis-" + fsync, Dir: s.dir, Ready: process.Answers(address), Args: strings.Fields(
			"redis-server --bind 127.0.0.1 --appendonly yes --appenddirname " + kept + " --appendfsync " + fsync + " --port " + portOf(address))})
		if err != nil {
			return nil, err
		}
		c := contest{database: "redis", workload: "popup-" + kept, path: "/popup?user={random(1,9000000000000)}", watch: []int{b.pid, redis.PID}}
		c.ours, err = s.startAll(b, func(name string) string {
			return fmt.Sprintf("redis: redis://%s\npopups: {path: /popup, store: %s, redis_prefix: %s, state_ttl: 0s, "+
				"keys: [a-key-of-peers-that-signs-show-tokens]}\n", address, kept, name)
		})
		for _, v := range c.ours {
			err = errors.Join(err, createCampaign(v.admin))
		}
		if err != nil {
			return nil, err
		}
		peer, err := s.startPeer("redis program, fsync "+fsync, "redis", address, "1", 0)
		if err != nil {
			return nil, err
		}
		c.others = []variant{peer}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b contest) int { return strings.Compare(a.workload, b.workload) })
	return all, nil
}

// constants compares a POST that spillway answers with 404 with a constant of nginx.
func (s *stage) constants() ([]contest, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, "nginx.conf")
	text := fmt.Sprintf("daemon off;\npid nginx.pid;\nerror_log stderr;\nevents { worker_connections 4096; }\nhttp {\naccess_log off;\n"+
		"keepalive_requests 100000000;\nserver { listen %s; location / { return 204; } }\n}\n", address)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("write nginx.conf: %w", err)
	}
	_, err = s.start(process.Command{
		Name: "nginx", Args: []string{"nginx", "-p", s.dir, "-c", file, "-e", "stderr"}, Ready: process.Answers(address),
	})
	if err != nil {
		return nil, err
	}
	b := &backend{driver: "sqlite", dir: s.dir, span: 1}
	ours, err := s.startAll(b, func(string) string { return statements(b) })
	c := contest{
		database: "nothing", workload: "post", path: "/nothing", body: body, ours: ours, others: []variant{{name: "nginx", address: address}},
	}
	return []contest{c}, err
}

// writePages writes where pages of the list begin: after which id, and the cursor of spillway.
func writePages(address, file string) error {
	text := "id,before\n"
	var list struct {
		Rows []item `json:"data"`
		Next string
	}
	for list.Rows = []item{{}}; len(list.Rows) > 0; {
		response, err := http.Get("http://" + address + "/page?limit=100&before=" + list.Next)
		if err != nil {
			return fmt.Errorf("read a page: %w", err)
		}
		list.Rows, list.Next = nil, ""
		err = json.NewDecoder(response.Body).Decode(&list)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			return fmt.Errorf("read a page: %s: %w", response.Status, err)
		}
		if list.Next == "" {
			break
		}
		text += fmt.Sprintf("%d,%s\n", list.Rows[len(list.Rows)-1].ID, list.Next)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the pages: %w", err)
	}
	return nil
}

// startAll starts the processes of spillway, each on a database of its own.
func (s *stage) startAll(b *backend, yaml func(name string) string) (all []variant, err error) {
	for name, binary := range map[string]string{"spillway": s.options.Spillway, "again": s.options.Spillway, "base": s.options.Base} {
		if binary == "" {
			continue
		}
		v, err := s.startSpillway(name, binary, b, yaml(name))
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b variant) int { return strings.Compare(b.name, a.name) }) // spillway first
	return all, nil
}

func (s *stage) startSpillway(name, binary string, b *backend, yaml string) (variant, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return variant{}, err
	}
	admin, err := process.FreeAddress()
	if err != nil {
		return variant{}, err
	}
	table, err := s.create(b, fmt.Sprintf("%s%d", name, len(s.processes)))
	if err != nil {
		return variant{}, err
	}
	file := filepath.Join(s.dir, name+portOf(admin))
	yaml = fmt.Sprintf("database: %s\npool: {max: %d}\nprobes: true\n%s", table.spillway, s.options.Pool, yaml)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return variant{}, fmt.Errorf("write a configuration: %w", err)
	}
	_, err = s.start(process.Command{
		Name: name, Ready: func(ctx context.Context) error {
			_, err := read(ctx, "http://"+admin+"/readyz", http.StatusOK)
			return err
		},
		Args: []string{binary, "serve", file, "--listen", address, "--admin", admin, "--data", file + ".data"},
	})
	return variant{name: name, address: address, admin: admin, table: table}, err
}

// startPeer starts the other program.
func (s *stage) startPeer(name, database, url, pool string, span int) (variant, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return variant{}, err
	}
	_, err = s.start(process.Command{Name: name, Ready: process.Answers(address), Args: []string{
		s.self, "-serve", database, "-url", url, "-pool", pool, "-span", strconv.Itoa(span), "-listen", address,
	}})
	return variant{name: name, address: address}, err
}

// createCampaign creates a campaign for all users on the admin listener.
func createCampaign(admin string) error {
	campaign := `{"name":"all","placement":"home","order":10,"payload":{"title":"A new version is out"},"status":"active"}`
	response, err := http.Post("http://"+admin+"/popups/campaigns", "application/json", strings.NewReader(campaign))
	if err != nil {
		return fmt.Errorf("create a campaign: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("create a campaign: %s", response.Status)
	}
	return nil
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// read asks for url and returns the body of an answer with the status that is wanted.
func read(ctx context.Context, url string, want int) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		return "", fmt.Errorf("%s answers %s", url, response.Status)
	}
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
