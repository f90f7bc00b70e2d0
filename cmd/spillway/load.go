package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"spillway"
	"spillway/internal/lab/cores"
	"spillway/internal/lab/live"
	"spillway/internal/lab/load"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
	"spillway/internal/lab/watch"
)

// loadCmd loads a target and reports the results.
type loadCmd struct {
	Target string `arg:"" optional:"" name:"url" help:"http://, https://, http+unix://SOCKET%2FPATH/, postgres://, mysql://, redis:// or rediss://."`
	loadAmount
	loadPolicy
	loadHTTP
	watchFlags
	loadStatement
	loadOutput
	loadParts
	loadLive
	loadSharing
}

// The flags, by group. Each type has the fields of the type in package load.
type (
	loadAmount struct {
		Rate     string        `filled:"" group:"Amount" placeholder:"R,…" help:"Open loop: arrivals per second, independent of the target. A list is one step each. Default: a closed loop."`
		Duration time.Duration `filled:"" group:"Amount" short:"d" help:"Length of each step. Default: 10s, unless --requests is given."`
		Requests int64         `group:"Amount" short:"n" help:"Requests per step."`
		Warmup   time.Duration `group:"Amount" help:"Load before each step that is not counted."`
	}
	loadPolicy struct {
		Arrival       string        `group:"Amount" enum:"constant,poisson" default:"constant" help:"Open loop: evenly spaced arrivals, or those of independent users (poisson)."`
		Connections   string        `filled:"" group:"Amount" short:"c" placeholder:"N,…" help:"Connections. A list is one step each. Default: 10; with a rate up to 1000, opened as needed, and 10 for SQL."`
		PerConnection int           `group:"Amount" placeholder:"N" help:"Requests per connection: 1 for short connections, 0 for unlimited."`
		Timeout       time.Duration `group:"Amount" default:"10s" help:"Limit for one request, including connecting."`
		Backlog       int           `group:"Amount" placeholder:"N" help:"Open loop: arrivals that may wait for a connection; the rest are unsent. Default: those of 10 s, from 1000 to 1000000."`
		Workers       int           `group:"Amount" placeholder:"N" help:"Threads for http:// and redis://. Default: half of the cores."`
		Source        []string      `group:"Amount" placeholder:"IP" help:"Local addresses to connect from, in rotation. Each has its own ports."`
		DNSRefresh    time.Duration `group:"Amount" name:"dns-refresh" placeholder:"DURATION" help:"Look the host up at this interval; new connections go to all its addresses in rotation. Default: the first address that can be connected to."`
		RandomSeed    uint64        `group:"Amount" name:"seed" help:"Seed of all random choices; 0 draws one. It is in the result."`
	}
	loadHTTP struct {
		Method       string   `group:"HTTP" short:"X" help:"Default: GET, or POST with a body."`
		Header       []string `group:"HTTP" short:"H" sep:"none" placeholder:"'NAME: VALUE'" help:"Header line. $${NAME} in its value is an environment variable. Repeatable."`
		HeaderFile   string   `group:"HTTP" placeholder:"FILE" help:"File with one header per line, so that secrets do not show in the process list."`
		Body         string   `group:"HTTP" placeholder:"TEXT" help:"Body. It and the URL's path may contain {random(1,1000)}, {sequence} and {file:PATH:COLUMN}."`
		BodyFile     string   `group:"HTTP" placeholder:"FILE" help:"File with the body, sent unchanged."`
		Form         []string `group:"HTTP" sep:"none" placeholder:"NAME=VALUE" help:"Field of a multipart/form-data body; NAME=@PATH sends a file. Repeatable."`
		RequestsFile string   `filled:"" group:"HTTP" placeholder:"FILE" help:"File with one request per line: [name=NAME] [WEIGHT] METHOD PATH [BODY | @FILE]."`
		Flow         string   `filled:"" group:"HTTP" placeholder:"FILE" help:"YAML file with the steps of a user: values from answers, cookies, think times, data. --connections counts users, --rate and --requests iterations."`
		Check        []string `group:"HTTP" sep:"none" placeholder:"CHECK" help:"status=200, status=2xx, body~=TEXT or body!~TEXT. Repeatable. Default: status 2xx or 304."`
		Socket       string   `group:"HTTP" placeholder:"PATH" help:"Connect to a Unix socket instead of the URL's host (also for redis://)."`
		HTTP2        bool     `group:"HTTP" name:"http2" help:"Use HTTP/2, for http:// with prior knowledge (h2c)."`
		Streams      int      `group:"HTTP" placeholder:"N" help:"HTTP/2: requests in flight per connection. Default: 1."`
		GRPC         string   `group:"HTTP" name:"grpc" placeholder:"METHOD" help:"Call the unary gRPC method package.Service/Method. --body is its request in JSON."`
		Proto        string   `group:"HTTP" placeholder:"FILE" help:"File descriptor set of --grpc, from protoc --include_imports --descriptor_set_out or buf build."`
		Insecure     bool     `group:"HTTP" short:"k" help:"Accept any certificate."`
		CACert       string   `group:"HTTP" name:"cacert" placeholder:"FILE" help:"PEM file with the authorities to trust instead of the system's (also for rediss://)."`
		Cert         string   `group:"HTTP" placeholder:"FILE" help:"PEM file with the client's certificate (also for rediss://)."`
		Key          string   `group:"HTTP" placeholder:"FILE" help:"PEM file with the key of --cert."`
	}
	loadStatement struct {
		SQL     string   `filled:"" group:"SQL and Redis" name:"sql" placeholder:"STATEMENT" help:"SQL statement, prepared once per connection. Parameters are written :name."`
		Param   []string `group:"SQL and Redis" sep:"none" placeholder:"NAME=VALUE" help:"Value of a parameter: random(1,1000), sequence, file:PATH:COLUMN, or a constant. Repeatable."`
		Command []string `group:"SQL and Redis" sep:"none" placeholder:"WORDS" help:"Redis command, with values in braces: '[name=NAME] GET key:{random(1,100)}'. Repeatable: drawn with equal probability."`
	}
	loadSharing struct {
		Pin   bool   `group:"Amount" help:"Run the generator on cores of its own, and the target's processes (those that listen, and those of --watch) on the others, until the end. Needs the right to move them."`
		Awake bool   `group:"Amount" help:"Keep idle CPUs of this machine from sleeping until the end: for a virtual machine whose hypervisor takes CPU time (HOST_CONTENDED). Needs root."`
		Hosts string `hidden:"" env:"SPILLWAY_LOAD_HOSTS"` // set by spillway experiment
	}
	loadOutput struct {
		SLO            string        `filled:"" group:"Result" name:"slo" placeholder:"TEXT" help:"Exit with 1 if a step misses it: 'p99<70ms errors<0.5%'."`
		Abort          string        `filled:"" group:"Result" placeholder:"TEXT" help:"End the run and exit with 1 if this holds for so many seconds in a row: 'errors>20% for 3s', 'p99>1s for 3s'."`
		Out            string        `group:"Result" short:"o" placeholder:"FILE" help:"Write a result file; .gz is compressed. 'spillway report FILE' shows it."`
		JSON           bool          `group:"Result" name:"json" help:"Print one JSON document on standard output instead of the table."`
		Label          string        `group:"Result" help:"Name of this run in reports."`
		RunID          string        `group:"Result" name:"run" placeholder:"ID" help:"Name of this run, the same for all parts of a load."`
		ReportInterval time.Duration `group:"Result" default:"3s" help:"Time between two progress lines without a terminal, a multiple of 1s."`
		Allow          []string      `group:"Result" placeholder:"HOST" help:"Public host that you may load. Without it, only this machine and private addresses are allowed."`
	}
	loadParts struct {
		Part    string `filled:"" group:"Several hosts" placeholder:"K/N" help:"Make the K-th of N parts of the load, for 'report --merge'; rate, connections, requests and rows are divided. 'job' reads K and N from JOB_COMPLETION_INDEX and SPILLWAY_PARTS."`
		StartAt string `filled:"" group:"Several hosts" placeholder:"TIME" help:"When the first step begins in all parts, as in 2026-03-01T12:00:00Z."`
	}
)

// loadLive is how a run can be seen while it is under way.
type loadLive struct {
	Live    liveAddress `group:"Result" placeholder:"ADDR" help:"Serve the report page while the run is under way, and print its address. With =ADDR on that loopback address instead of a free port."`
	Metrics string      `group:"Result" placeholder:"ADDR" help:"Serve metrics for Prometheus at http://ADDR/metrics while the run is under way."`
}

// liveAddress is a flag whose value may be left out.
type liveAddress string

// Decode implements kong.MapperValue.
func (a *liveAddress) Decode(ctx *kong.DecodeContext) error {
	*a = live.Address
	if ctx.Scan.Peek().Type == kong.FlagValueToken {
		*a = liveAddress(ctx.Scan.Pop().String())
	}
	return nil
}

// IsBool implements kong.BoolMapperValue.
func (*liveAddress) IsBool() bool { return true }

// open serves what was asked for. show is nil if nothing was.
func (l *loadLive) open(env *environment) (show *live.Server, err error) {
	if l.Live == "" && l.Metrics == "" {
		return nil, nil
	}
	render := func(w io.Writer, run *result.Run) error { return report.Write(w, report.HTML, []*result.Run{run}) }
	return live.Open(live.Options{Page: string(l.Live), Metrics: l.Metrics}, render, func(text string) { fmt.Fprintln(env.stderr, text) })
}

// Help is shown below the flags.
func (loadCmd) Help() string {
	return `Latency counts from the intended start, including the wait for a connection. Each step states whether it measured the target (VALID) or something else.

Examples:
  spillway load http://127.0.0.1:8080/goodslist --rate 100,200,500 --duration 30s --per-connection 1 --slo 'p99<70ms errors<0.5%'
  spillway load http://127.0.0.1:8080/goodslist -c 32 -o run.ndjson --watch app=:8080 --watch db=:5432 --watch-db postgres://app@db/shop
  spillway load postgres://app@db/shop --sql 'SELECT * FROM goods WHERE id = :id' --param 'id=random(1,1000)' -c 1,4,50`
}

// Run runs the load.
func (c *loadCmd) Run(env *environment) (err error) {
	o := c.options()
	hooks := load.Hooks{Find: func(spec string) (load.Process, error) { return watch.ParseProcess(spec) }}
	if hooks.Keeper, err = c.keeper(); err != nil {
		return err
	}
	show, err := c.loadLive.open(env)
	if err != nil {
		return err
	}
	if show != nil {
		defer func() { err = errors.Join(err, show.Close()) }()
		hooks.Follow = show.Follow
	}
	var watched *watch.Set
	defer func() { watched.Close() }()
	if spec := watch.Spec(c.watchFlags); !spec.Empty() {
		hooks.Watch = func() (_ load.Watcher, err error) {
			watched, err = watch.OpenSet(env.ctx, spec, env.log, o.LocalPort())
			return watched, err
		}
	}
	run, err := load.Execute(env.ctx, o, hooks, result.NewHeader(spillway.Version(), env.args), env.stderr)
	if err != nil {
		return err
	}
	if show != nil {
		defer show.Finish(env.ctx)
	}
	format := report.Text
	if c.JSON {
		format = report.JSON
	}
	if err := report.Write(env.stdout, format, []*result.Run{run}); err != nil {
		return err
	}
	if err := load.Judge(run); err != nil {
		return err
	}
	return load.Broken(run)
}

func (c *loadCmd) options() load.Options {
	return load.Options{
		Target: c.Target, Amount: load.Amount(c.loadAmount), Policy: load.Policy(c.loadPolicy), HTTP: load.HTTP(c.loadHTTP),
		Statement: load.Statement(c.loadStatement), Output: load.Output(c.loadOutput), Parts: load.Parts(c.loadParts),
		Sharing: load.Sharing{Pin: c.Pin, Awake: c.Awake, Hosts: c.Hosts, Watched: c.Processes},
	}
}

// keeper is the command that restores the cores of a pinned target, nil without --pin.
func (s *loadSharing) keeper() ([]string, error) {
	if !s.Pin {
		return nil, nil
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return []string{program, "restore-cores"}, nil
}

// restoreCoresCmd restores the cores of a pinned target when the load that started it is gone.
type restoreCoresCmd struct{}

// Run reads what to restore from standard input.
func (restoreCoresCmd) Run(env *environment) error { return cores.Keep(os.Stdin, env.stdout) }
