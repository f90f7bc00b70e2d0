//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"spillway/experiments/process"
	"spillway/internal/lab/cores"
)

// stage is where the servers of one database run. They have all cores but the last, which is the load's.
type stage struct {
	ctx       context.Context
	options   options
	dir, log  string
	self      string
	cores     []int
	processes []*process.Process
}

func newStage(ctx context.Context, o options, dir, log string) (*stage, error) {
	all, err := cores.Available()
	if err != nil {
		return nil, fmt.Errorf("find the cores: %w", err)
	}
	if len(all) < 2 {
		return nil, errors.New("two cores are needed: one for the load")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return &stage{ctx: ctx, options: o, dir: dir, log: log, self: self, cores: all[:len(all)-1]}, nil
}

// end ends the processes, the last one first.
func (s *stage) end() {
	for _, p := range slices.Backward(s.processes) {
		p.End()
	}
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
	switch database {
	case "":
		return s.contestsOfNothing()
	case "redis":
		return s.contestsOfPopups()
	}
	b, err := s.startBackend(database)
	if err != nil {
		return nil, err
	}
	var ours, others []variant
	for _, name := range s.ourNames() {
		v, err := s.startSpillway(name, s.options.binary(name), b, queriesAndStream(b))
		if err != nil {
			return nil, err
		}
		ours = append(ours, v)
	}
	store, err := b.create("peer")
	if err != nil {
		return nil, err
	}
	for _, pool := range s.options.Pools {
		v, err := s.startPeer(fmt.Sprintf("%s pool of %d", b.driver, pool), b.driver, store.url, pool, b.span)
		if err != nil {
			return nil, err
		}
		v.table = store
		others = append(others, v)
	}
	all := []contest{
		{workload: "q", path: "/q?id={random(1,100000)}"},
		{workload: "w", path: "/w", body: body},
		{workload: "slow", path: "/slow?id={random(1,50000)}"},
	}
	var wanted []contest
	for _, c := range all {
		if slices.Contains(s.options.Only, c.workload) {
			c.database, c.ours, c.others, c.watch = database, ours, others, b.pid
			wanted = append(wanted, c)
		}
	}
	return wanted, nil
}

// body is one record, as a template of spillway load.
const body = `{{"device":{random(1,100000)},"lat":31.2,"lon":121.5,"speed":61.5}`

// contestsOfPopups compares a popup that is due, with states in memory and in Redis, with the other program on Redis.
func (s *stage) contestsOfPopups() ([]contest, error) {
	b, err := s.startBackend("postgres")
	if err != nil {
		return nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	redis, err := s.start(process.Command{
		Name: "redis", Dir: s.dir, Ready: process.Answers(address),
		Args: []string{"redis-server", "--bind", "127.0.0.1", "--port", portOf(address), "--save", "", "--appendonly", "yes"},
	})
	if err != nil {
		return nil, err
	}
	peer, err := s.startPeer("redis program", "redis", address, 1, 0)
	if err != nil {
		return nil, err
	}
	var contests []contest
	for _, store := range []string{"memory", "redis"} {
		c := contest{
			database: "redis", workload: "popup-" + store, path: "/popup?user={random(1,9000000000000)}", watch: redis.PID,
			others: []variant{peer},
		}
		for _, name := range s.ourNames() {
			yaml := fmt.Sprintf("redis: redis://%s\npopups: {path: /popup, store: %s, redis_prefix: %s, keys: [%s]}\n",
				address, store, name, signingKey)
			v, err := s.startSpillway(name, s.options.binary(name), b, yaml)
			if err == nil {
				err = createCampaign(v.admin)
			}
			if err != nil {
				return nil, err
			}
			c.ours = append(c.ours, v)
		}
		contests = append(contests, c)
	}
	return contests, nil
}

const signingKey = "a-key-of-peers-that-signs-show-tokens"

// contestsOfNothing compares a POST that spillway answers with 404 with a constant of nginx.
func (s *stage) contestsOfNothing() ([]contest, error) {
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
	b, err := s.startBackend("sqlite")
	if err != nil {
		return nil, err
	}
	c := contest{workload: "post", path: "/nothing", body: body, others: []variant{{name: "nginx", address: address}}}
	for _, name := range s.ourNames() {
		v, err := s.startSpillway(name, s.options.binary(name), b, queriesAndStream(b))
		if err != nil {
			return nil, err
		}
		v.table = nil
		c.ours = append(c.ours, v)
	}
	return []contest{c}, nil
}

// ourNames are the processes of spillway.
func (s *stage) ourNames() []string {
	if s.options.Base == "" {
		return []string{"spillway", "again"}
	}
	return []string{"spillway", "again", "base"}
}

func (o *options) binary(name string) string {
	if name == "base" {
		return o.Base
	}
	return o.Spillway
}

// startSpillway starts spillway on a database of its own.
func (s *stage) startSpillway(name, binary string, b *backend, yaml string) (variant, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return variant{}, err
	}
	admin, err := process.FreeAddress()
	if err != nil {
		return variant{}, err
	}
	store, err := b.create(fmt.Sprintf("%s%d", name, len(s.processes)))
	if err != nil {
		return variant{}, err
	}
	file := filepath.Join(s.dir, name+portOf(admin))
	yaml = fmt.Sprintf("database: %s\npool: {max: %d}\nprobes: true\n%s", store.spillway, s.options.Pool, yaml)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return variant{}, fmt.Errorf("write a configuration: %w", err)
	}
	_, err = s.start(process.Command{
		Name: name, Ready: func(ctx context.Context) error { return get(ctx, "http://"+address+"/hello", http.StatusOK) },
		Args: []string{binary, "serve", file, "--listen", address, "--admin", admin, "--data", file + ".data"},
	})
	return variant{name: name, address: address, admin: admin, table: store}, err
}

// startPeer starts the other program.
func (s *stage) startPeer(name, database, url string, pool, span int) (variant, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return variant{}, err
	}
	_, err = s.start(process.Command{Name: name, Ready: process.Answers(address), Args: []string{
		s.self, "-serve", database, "-url", url, "-pool", strconv.Itoa(pool), "-span", strconv.Itoa(span), "-listen", address,
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

// runAs returns the user of a database, which is not root.
func runAs(name string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("find a user: %w", err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32) // numbers on Linux
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// command runs a program to its end.
func (s *stage) command(as *syscall.Credential, args ...string) error {
	cmd := exec.CommandContext(s.ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", args[0], err, out)
	}
	return nil
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func get(ctx context.Context, url string, want int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}
