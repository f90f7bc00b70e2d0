package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"spillway/internal/lab/load"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// loadCmd puts a load on a target and reports what it saw.
type loadCmd struct {
	Target string `arg:"" optional:"" name:"url" help:"http://, https://, http+unix://SOCKET%2FPATH/, postgres://, mysql://, sqlite:PATH, redis:// or rediss://."`

	Rate          string        `group:"How much" placeholder:"R,…" help:"Open loop: arrivals a second, whatever the target does. A list is a step each; FROM..TO/DURATION is a ramp. Without it a closed loop."`
	Arrival       string        `group:"How much" enum:"constant,poisson" default:"constant" help:"Open loop: evenly spaced, or as independent users arrive (poisson)."`
	Connections   string        `group:"How much" short:"c" placeholder:"N,…" help:"Connections. A list is a step each. Default: 10; with a rate at most 1000, opened as needed, and 10 for SQL."`
	Duration      time.Duration `group:"How much" short:"d" help:"Length of each step. Default: 10s, unless --requests is given."`
	Requests      int64         `group:"How much" short:"n" help:"Requests of each step."`
	Warmup        time.Duration `group:"How much" help:"Load before each step that is counted nowhere."`
	PerConnection int           `group:"How much" placeholder:"N" help:"Requests on one connection: 1 is short connections, 0 keeps them for ever."`
	Timeout       time.Duration `group:"How much" default:"10s" help:"Of one request, connecting included."`
	Backlog       int           `group:"How much" placeholder:"N" help:"Open loop: arrivals that may wait for a connection; more are unsent. Default: 10 s of them, from 1000 to 1000000."`
	Workers       int           `group:"How much" placeholder:"N" help:"Threads that drive http:// and redis://. Default: half of the cores."`
	Source        []string      `group:"How much" placeholder:"IP,…" help:"Local addresses to connect from, in turn: each has its own ports."`
	RandomSeed    uint64        `group:"How much" name:"seed" help:"Of every random choice; 0 draws one. It is in the result."`

	loadHTTP
	watchFlags
	SQL     string   `group:"SQL and Redis" name:"sql" placeholder:"STATEMENT" help:"Prepared once a connection; parameters are written :name."`
	Param   []string `group:"SQL and Redis" sep:"none" placeholder:"NAME=VALUE" help:"random(1,1000), sequence, file:PATH:COLUMN, or a constant. May be repeated."`
	Command []string `group:"SQL and Redis" sep:"none" placeholder:"WORDS" help:"Redis command, with values in braces: 'GET key:{random(1,100)}'. Repeated: drawn with equal chances."`

	SLO            string        `group:"What comes of it" name:"slo" placeholder:"TEXT" help:"Exit 1 when a step misses it: 'p99<70ms errors<0.5%'."`
	Out            string        `group:"What comes of it" short:"o" placeholder:"FILE" help:"Write the result file; .gz is compressed. 'spillway report FILE' shows it again."`
	JSON           bool          `group:"What comes of it" name:"json" help:"One JSON document on standard output in place of the table."`
	Label          string        `group:"What comes of it" help:"How reports call this run."`
	RunID          string        `group:"What comes of it" name:"run" placeholder:"ID" help:"The same on every host of one run, for 'report --merge'."`
	ReportInterval time.Duration `group:"What comes of it" default:"3s" help:"Between two progress lines where there is no terminal, a multiple of 1s."`
	Allow          []string      `group:"What comes of it" placeholder:"HOST" help:"You may load HOST though it is neither this machine nor a private address."`
	SelfTest       bool          `group:"What comes of it" help:"Test this generator on this machine instead: its ceiling, its honesty, its clock."`
}

// loadHTTP are the flags for HTTP.
type loadHTTP struct {
	Method       string   `group:"HTTP" short:"X" help:"Default: GET, or POST with a body."`
	Header       []string `group:"HTTP" short:"H" sep:"none" placeholder:"'NAME: VALUE'" help:"May be repeated."`
	Body         string   `group:"HTTP" placeholder:"TEXT" help:"With values in braces: {random(1,1000)}, {sequence}, {file:PATH:COLUMN}; so may the URL's path."`
	BodyFile     string   `group:"HTTP" placeholder:"FILE" help:"The body, as it is."`
	RequestsFile string   `group:"HTTP" placeholder:"FILE" help:"A request a line: [WEIGHT] METHOD PATH [BODY | @FILE]."`
	Check        []string `group:"HTTP" sep:"none" placeholder:"CHECK" help:"status=200, status=2xx, body~=TEXT or body!~TEXT. Default: status 200 to 399."`
	Socket       string   `group:"HTTP" placeholder:"PATH" help:"Connect to a Unix socket in place of the URL's host (also for redis://)."`
	HTTP2        bool     `group:"HTTP" name:"http2" help:"Speak HTTP/2 to https://."`
	Insecure     bool     `group:"HTTP" short:"k" help:"Take any certificate."`
}

// Help is shown below the flags.
func (loadCmd) Help() string {
	return `Latency counts from the intended start: an arrival that waits for a connection keeps it. Every step says whether it measured the target (VALID) or what else.

Examples:
  spillway load http://127.0.0.1:8080/goodslist --rate 100,200,500 --duration 30s --per-connection 1 --slo 'p99<70ms errors<0.5%'
  spillway load http://127.0.0.1:8080/goodslist -c 32 -o run.ndjson --watch app=:8080 --watch db=:5432 --watch-db postgres://app@db/shop
  spillway load postgres://app@db/shop --sql 'SELECT * FROM goods WHERE id = :id' --param 'id=random(1,1000)' -c 1,4,50`
}

// Run runs the load.
func (c *loadCmd) Run(env *environment) error {
	if c.SelfTest {
		return c.selfTest(env)
	}
	config, err := c.prepare(env)
	if err != nil {
		return err
	}
	w, err := c.openWatch(env)
	if err != nil {
		return err
	}
	defer w.close()
	r, err := c.newLoadRun(env, config, w)
	if err != nil {
		return err
	}
	stop := r.watch(env.ctx, w)
	// The heap is small and steady: collecting it less often costs a few
	// megabytes and disturbs the pacer less.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	interrupted, err := load.Run(env.ctx, *config, r.listener())
	if err = errors.Join(err, stop(), r.end(interrupted)); err != nil {
		return err
	}
	format := report.Text
	if c.JSON {
		format = report.JSON
	}
	if err := report.Write(env.stdout, format, []*result.Run{&r.run}); err != nil {
		return err
	}
	return r.missed()
}

// prepare turns the flags into a run.
func (c *loadCmd) prepare(env *environment) (*load.Config, error) {
	switch {
	case c.Target == "":
		return nil, usageError{errors.New("load: name a target, as in spillway load http://127.0.0.1:8080/")}
	case c.PerConnection < 0 || c.Backlog < 0 || c.Workers < 0 || c.Warmup < 0:
		return nil, usageError{errors.New("load: a number of connections, requests or seconds is never negative")}
	case c.ReportInterval < time.Second:
		return nil, usageError{errors.New("load: --report-interval is at least 1s")}
	}
	if c.RandomSeed == 0 {
		c.RandomSeed = rand.Uint64()>>12 | 1 // every reader of the JSON can hold 52 bits
	}
	slo, err := load.ParseSLO(c.SLO)
	if err != nil {
		return nil, usageError{err}
	}
	clock := target.NewClock()
	tc, err := c.targetConfig(clock)
	if err != nil {
		return nil, usageError{err}
	}
	t, err := target.Open(env.ctx, *tc)
	if err != nil {
		return nil, usageError{fmt.Errorf("load: %w", err)}
	}
	steps, err := load.Plan(c.Rate, c.Connections, c.Duration, c.Requests, t.SQL())
	if err != nil {
		return nil, usageError{err}
	}
	if err := t.Check(env.ctx); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	return &load.Config{
		Target: t, Clock: clock, Steps: steps, Poisson: c.Arrival == "poisson", PerConnection: c.PerConnection, Timeout: c.Timeout,
		Warmup: c.Warmup, Backlog: c.Backlog, Workers: c.Workers, Seed: c.RandomSeed, SLO: slo,
	}, nil
}

// targetConfig turns the flags into what is loaded.
func (c *loadCmd) targetConfig(clock target.Clock) (*target.Config, error) {
	tc := &target.Config{
		URL: c.Target, Socket: c.Socket, Allow: c.Allow, Timeout: c.Timeout, PerConnection: c.PerConnection, Seed: c.RandomSeed, Clock: clock,
		Method: c.Method, HTTP2: c.HTTP2, Insecure: c.Insecure, SQL: c.SQL, Commands: c.Command,
	}
	for _, text := range c.Source {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("--source %s: it is not an IP address of this machine", text)
		}
		tc.Sources = append(tc.Sources, address)
	}
	for _, text := range c.Header {
		h, err := target.ParseHeader(text)
		if err != nil {
			return nil, err
		}
		tc.Headers = append(tc.Headers, h)
	}
	for _, text := range c.Param {
		name, value, found := strings.Cut(text, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("--param %q: write NAME=VALUE", text)
		}
		v, err := target.ParseValue(value)
		if err != nil {
			return nil, fmt.Errorf("--param %s: %w", name, err)
		}
		if tc.Params == nil {
			tc.Params = make(map[string]target.Value)
		}
		tc.Params[name] = v
	}
	var err error
	if tc.Checks, err = target.ParseChecks(c.Check); err != nil {
		return nil, err
	}
	return tc, c.addBody(tc)
}

// addBody reads the body and the file of requests.
func (c *loadCmd) addBody(tc *target.Config) (err error) {
	switch {
	case c.Body != "" && c.BodyFile != "":
		return errors.New("--body and --body-file: give one of them")
	case c.Body != "":
		if tc.Body, err = target.ParseTemplate(c.Body); err != nil {
			return fmt.Errorf("--body: %w", err)
		}
	case c.BodyFile != "":
		text, err := target.ReadBody(c.BodyFile)
		if err != nil {
			return err
		}
		tc.Body = target.PlainTemplate(text)
	}
	if c.Method == "" && c.Body+c.BodyFile != "" {
		tc.Method = "POST"
	}
	if c.RequestsFile != "" {
		tc.Requests, err = target.ReadRequests(c.RequestsFile, target.Authority(c.Target))
	}
	return err
}

// header is the manifest of the run.
func (c *loadCmd) header(env *environment) result.Header {
	return result.Header{
		Format: result.Format, Version: fmt.Sprintf("%d.%d", result.VersionMajor, result.VersionMinor),
		Run: c.RunID, Label: c.Label, StartedAt: time.Now().UTC(), Command: result.RedactArgs(append([]string{"spillway"}, env.args...)),
		Tool: versionText(), Go: runtime.Version(), Seed: c.RandomSeed, Target: result.RedactURL(c.Target), SLO: c.SLO, Machine: result.ReadMachine(),
	}
}
