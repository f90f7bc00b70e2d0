package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/flow"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
	"spillway/internal/netstat"
)

// Options are the settings of `spillway load`, as written on the command line. The fields are its flags, with tags of kong.
type Options struct {
	Target string `arg:"" optional:"" name:"url" help:"http://, https://, http+unix://SOCKET%2FPATH/, postgres://, mysql://, redis:// or rediss://."`
	Amount
	Policy
	HTTP
	Statement
	Output
	Parts
	Sharing
	Watched []string `kong:"-"` // processes of the target besides those that listen, NAME=SPEC
}

// Amount is how much load is generated.
type Amount struct {
	Rate     string        `filled:"" group:"Most used" placeholder:"R,…" help:"Open loop: arrivals per second, independent of the target. A list is one step each. Default: a closed loop."`
	Duration time.Duration `filled:"" group:"Most used" short:"d" help:"Length of each step. Default: 10s, unless --requests is given."`
	Requests int64         `group:"Arrivals and connections" short:"n" help:"Requests per step."`
	Warmup   time.Duration `group:"Most used" help:"Load before each step that is not counted."`
}

// Policy is how requests arrive and which connections they take.
type Policy struct {
	Arrival       string        `group:"Arrivals and connections" enum:"constant,poisson" default:"constant" help:"Open loop: evenly spaced arrivals, or those of independent users (poisson)."`
	Connections   string        `filled:"" group:"Most used" short:"c" placeholder:"N,…" help:"Connections. A list is one step each. Default: 10; with a rate up to 1000, opened as needed, and 10 for SQL."`
	PerConnection int           `group:"Most used" placeholder:"N" help:"Requests per connection: 1 for short connections, 0 for unlimited."`
	Timeout       time.Duration `group:"Arrivals and connections" default:"10s" help:"Limit for one request, including connecting."`
	Backlog       int           `group:"Arrivals and connections" placeholder:"N" help:"Open loop: arrivals that may wait for a connection; the rest are unsent. Default: those of 10 s, from 1000 to 1000000."`
	Workers       int           `group:"Arrivals and connections" placeholder:"N" help:"Threads for http:// and redis://. Default: half of the cores."`
	Source        []string      `group:"Arrivals and connections" placeholder:"IP" help:"Local addresses to connect from, in rotation. Each has its own ports."`
	RandomSeed    uint64        `group:"Arrivals and connections" name:"seed" help:"Seed of all random choices; 0 draws one. It is in the result."`
}

// HTTP describes the requests to an HTTP target.
type HTTP struct {
	Method       string   `group:"HTTP requests" short:"X" help:"Default: GET, or POST with a body."`
	Header       []string `group:"Most used" short:"H" sep:"none" placeholder:"'NAME: VALUE'" help:"Header line. $${NAME} in its value is an environment variable. Repeatable."`
	HeaderFile   string   `group:"HTTP requests" placeholder:"FILE" help:"File with one header per line, so that secrets do not show in the process list."`
	Body         string   `group:"Most used" placeholder:"TEXT" help:"Body. It and the URL's path may contain {random(1,1000)}, {sequence} and {file:PATH:COLUMN}."`
	BodyFile     string   `group:"HTTP requests" placeholder:"FILE" help:"File with the body, sent unchanged."`
	RequestsFile string   `filled:"" group:"Most used" placeholder:"FILE" help:"File with one request per line: [name=NAME] [WEIGHT] METHOD PATH [BODY | @FILE]."`
	Flow         string   `filled:"" group:"HTTP requests" placeholder:"FILE" help:"YAML file with the steps of a user: values from answers, cookies, think times, data. --connections counts users, --rate and --requests iterations."`
	Check        []string `group:"HTTP requests" sep:"none" placeholder:"CHECK" help:"status=200, status=2xx, body~=TEXT or body!~TEXT. Repeatable. Default: status 2xx or 304."`
	Socket       string   `group:"HTTP/2, gRPC and TLS" placeholder:"PATH" help:"Connect to a Unix socket instead of the URL's host (also for redis://)."`
	HTTP2        bool     `group:"HTTP/2, gRPC and TLS" name:"http2" help:"Use HTTP/2, for http:// with prior knowledge (h2c)."`
	Streams      int      `group:"HTTP/2, gRPC and TLS" placeholder:"N" help:"HTTP/2: requests in flight per connection. Default: 1."`
	GRPC         string   `group:"HTTP/2, gRPC and TLS" name:"grpc" placeholder:"METHOD" help:"Call the unary gRPC method package.Service/Method. --body is its request in JSON."`
	Proto        string   `group:"HTTP/2, gRPC and TLS" placeholder:"FILE" help:"File descriptor set of --grpc, from protoc --include_imports --descriptor_set_out or buf build."`
	Insecure     bool     `group:"HTTP/2, gRPC and TLS" short:"k" help:"Accept any certificate."`
	CACert       string   `group:"HTTP/2, gRPC and TLS" name:"cacert" placeholder:"FILE" help:"PEM file with the authorities to trust instead of the system's (also for rediss://)."`
	Cert         string   `group:"HTTP/2, gRPC and TLS" placeholder:"FILE" help:"PEM file with the client's certificate (also for rediss://)."`
	Key          string   `group:"HTTP/2, gRPC and TLS" placeholder:"FILE" help:"PEM file with the key of --cert."`
}

// Statement describes the statement for SQL, or the commands for Redis.
type Statement struct {
	SQL     string   `filled:"" group:"SQL and Redis" name:"sql" placeholder:"STATEMENT" help:"SQL statement, prepared once per connection. Parameters are written :name."`
	Param   []string `group:"SQL and Redis" sep:"none" placeholder:"NAME=VALUE" help:"Value of a parameter: random(1,1000), sequence, file:PATH:COLUMN, or a constant. Repeatable."`
	Command []string `group:"SQL and Redis" sep:"none" placeholder:"WORDS" help:"Redis command, with values in braces: '[name=NAME] GET key:{random(1,100)}'. Repeatable: drawn with equal probability."`
}

// Output is what happens with the results.
type Output struct {
	SLO            string        `filled:"" group:"Most used" name:"slo" placeholder:"TEXT" help:"Exit with 1 if a step misses it: 'p99<70ms errors<0.5%'."`
	Abort          string        `filled:"" group:"Result" placeholder:"TEXT" help:"End the run and exit with 1 if this holds for so many seconds in a row: 'errors>20% for 3s', 'p99>1s for 3s'."`
	Out            string        `group:"Most used" short:"o" placeholder:"FILE" help:"Write a result file; .gz is compressed. 'spillway report FILE' shows it."`
	JSON           bool          `group:"Result" name:"json" help:"Print one JSON document on standard output instead of the table."`
	Label          string        `group:"Result" help:"Name of this run in reports."`
	RunID          string        `group:"Result" name:"run" placeholder:"ID" help:"Name of this run, the same for all parts of a load."`
	ReportInterval time.Duration `group:"Result" default:"3s" help:"Time between two progress lines without a terminal, a multiple of 1s."`
	Allow          []string      `group:"Result" placeholder:"HOST" help:"Public host that you may load. Without it, only this machine and private addresses are allowed."`
}

// prepare parses the options, opens the target and connects to it once. The steps are those of the part, or next decides
// them. Errors of the options are usage errors.
func (o *Options) prepare(ctx context.Context, next Next) (*Config, error) {
	config, err := o.open(ctx, next)
	if err != nil {
		return nil, exit.UsageError(err)
	}
	if err := config.Target.Check(ctx); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	return config, nil
}

// open is prepare without the connection.
func (o *Options) open(ctx context.Context, next Next) (*Config, error) {
	config, requests, err := o.parse(next != nil)
	if err != nil {
		return nil, err
	}
	if config.Target, err = target.Open(ctx, *requests); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	if err := checkLabels(config.SLO, config.Target.Names()); err != nil {
		return nil, err
	}
	if config.Next = next; next != nil {
		config.Connections, err = oneCount(o.Connections, config.Target.SQL())
	} else {
		config.Steps, err = ParseSteps(o.Rate, o.Connections, o.Duration, o.Requests, config.Target.SQL())
	}
	if err == nil {
		config.Steps, err = Split(config.Steps, o.Backlog, config.Part)
	}
	if err == nil {
		err = config.checkLengths()
	}
	most := config.Connections
	for i := range config.Steps {
		config.Steps[i].Warmup = o.Warmup
		most = max(most, config.Steps[i].Connections)
	}
	if err == nil && config.Target.Slots(most) > ConnectionsMax {
		err = fmt.Errorf("%d connections with %d streams each: at most %d requests can be in flight; reduce --connections", most, o.Streams,
			ConnectionsMax)
	}
	return config, err
}

// Mistake returns the mistake that Execute would find before it connects to the
// target. It reads the files that the options name, and looks up the target's name.
// next is that of the hooks.
func (o *Options) Mistake(ctx context.Context, next Next) error {
	_, err := o.open(ctx, next)
	return err
}

// parse parses everything but the target and the steps. It draws the seed if there is none. searches says that a Next
// decides the steps.
func (o *Options) parse(searches bool) (*Config, *target.Config, error) {
	if err := o.validate(searches); err != nil {
		return nil, nil, err
	}
	part, start, err := o.Parts.parse(time.Now())
	if err != nil {
		return nil, nil, err
	}
	o.RandomSeed = cmp.Or(o.RandomSeed, wholeSeed(start)>>12|1) // 52 bits are exact in every JSON reader
	slo, err := result.ParseSLO(o.SLO)
	if err != nil {
		return nil, nil, err
	}
	config := &Config{
		Clock: target.NewClock(), Poisson: o.Arrival == "poisson", PerConnection: o.PerConnection, Timeout: o.Timeout,
		Backlog: o.Backlog, Workers: o.Workers, Seed: partSeed(o.RandomSeed, part), SLO: slo, Part: part, StartAt: start,
	}
	if config.abort, err = parseAbort(o.Abort); err != nil {
		return nil, nil, err
	}
	requests, err := o.targetConfig(config)
	if err != nil {
		return nil, nil, err
	}
	if o.Flow == "" {
		return config, requests, nil
	}
	if config.Flow, err = flow.Read(o.Flow); err != nil {
		return nil, nil, err
	}
	requests.Calls = config.Flow.Names()
	return config, requests, config.Flow.Part(part)
}

func (o *Options) validate(searches bool) error {
	switch {
	case o.Target == "":
		return errors.New("load: name a target, as in spillway load http://127.0.0.1:8080/")
	case o.PerConnection < 0 || o.Backlog < 0 || o.Workers < 0 || o.Warmup < 0:
		return errors.New("load: --per-connection, --backlog, --workers and --warmup must not be negative")
	case o.ReportInterval < time.Second:
		return errors.New("load: --report-interval must be at least 1s")
	case o.Rate == "" && !searches && (o.Arrival == "poisson" || o.Backlog > 0):
		return errors.New("load: --arrival and --backlog are for an open loop; add --rate, or remove them")
	}
	return nil
}

// targetConfig parses the description of the target and its requests.
func (o *Options) targetConfig(load *Config) (*target.Config, error) {
	config := &target.Config{
		URL: o.Target, Socket: o.Socket, Allow: o.Allow, Timeout: o.Timeout, PerConnection: o.PerConnection,
		Seed: load.Seed, Part: load.Part, Clock: load.Clock,
		Method: o.Method, HTTP2: o.HTTP2, Streams: o.Streams, GRPC: o.GRPC, Proto: o.Proto, SQL: o.SQL, Commands: o.Command,
		Insecure: o.Insecure, CACert: o.CACert, Cert: o.Cert, Key: o.Key,
	}
	for _, text := range o.Source {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("--source %s: not an IP address", text)
		}
		config.Sources = append(config.Sources, address)
	}
	for _, text := range o.Param {
		name, value, found := strings.Cut(text, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("--param %q: write NAME=VALUE", text)
		}
		v, err := target.ParseValue(value)
		if err != nil {
			return nil, fmt.Errorf("--param %s: %w", name, err)
		}
		if config.Params == nil {
			config.Params = make(map[string]target.Value)
		}
		config.Params[name] = v
	}
	var err error
	if config.Headers, err = o.headers(os.LookupEnv); err != nil {
		return nil, err
	}
	if config.Checks, err = target.ParseChecks(o.Check); err != nil {
		return nil, err
	}
	return config, o.readBody(config)
}

// readBody parses the body and reads the requests file.
func (o *Options) readBody(config *target.Config) (err error) {
	switch {
	case o.Body != "" && o.BodyFile != "":
		return errors.New("--body and --body-file: give one of them")
	case o.Body != "":
		if config.Body, err = target.ParseTemplate(o.Body); err != nil {
			return fmt.Errorf("--body: %w", err)
		}
	case o.BodyFile != "":
		text, err := target.ReadFile(o.BodyFile)
		if err != nil {
			return fmt.Errorf("--body-file: %w", err)
		}
		config.Body = target.PlainTemplate(string(text))
	}
	if o.Method == "" && o.Body+o.BodyFile != "" {
		config.Method = "POST"
	}
	if o.RequestsFile != "" {
		config.Requests, err = target.ReadRequests(o.RequestsFile, target.Authority(o.Target))
	}
	return err
}

// LocalPort returns the target's port if it is on this host, or 0.
func (o *Options) LocalPort() int {
	u, err := url.Parse(o.Target)
	if err != nil || o.Socket != "" {
		return 0
	}
	if !netstat.IsLoopback(u.Hostname()) {
		return 0
	}
	port, _ := strconv.Atoi(u.Port()) // 0 without a port
	return port
}
