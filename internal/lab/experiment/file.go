// Package experiment compares variants of a system that differ in one declared factor. For every variant in every block, in
// random order and with fresh processes, it starts the services, puts the levels of load on them and stops everything.
//
// It promises that variants differ in declared factors only, that nothing it started outlives it, and that an interrupted
// run can be resumed. `spillway load` generates the load as a child process and writes the result files. The CPU time of each
// service is counted by a control group of its own, if one can be made. Study computes the verdicts from the files.
//
// File is the format (docs/reference/experiments.md explains it); Manifest and Trial are what a run leaves in its directory. Running
// needs Linux; files can be checked and results read on every system.
package experiment

import (
	"fmt"
	"os"
	"time"

	"spillway/internal/exit"
	"spillway/internal/yaml"
)

// A File is an experiment as written. A text is a template if its comment says so.
type File struct {
	Name     string `yaml:"name"`     // names directories
	Title    string `yaml:"title"`    // one line
	Question string `yaml:"question"` // that the experiment answers

	Needs    []Need            `yaml:"needs"`    // programs that must be installed
	Hosts    []Host            `yaml:"hosts"`    // network namespaces; empty: this host, on loopback
	Network  string            `yaml:"network"`  // NetworkLoopback: hosts are shares of CPU only; default: each is a network namespace
	Settings map[string]string `yaml:"settings"` // templates; values that no factor changes
	Services []Service         `yaml:"services"` //

	Factors  []Factor  `yaml:"factors"`  // what may differ between variants
	Baseline string    `yaml:"baseline"` // variant that the others are compared with; default: the first
	Variants []Variant `yaml:"variants"` //
	AA       bool      `yaml:"aa"`       // run the baseline twice in each block, the second time as NAME-again

	Load          Load     `yaml:"load"`           // flags of `spillway load` for every level
	Levels        []Level  `yaml:"levels"`         // at least one, unless there is a peak
	ShuffleLevels bool     `yaml:"shuffle_levels"` // a random order in each trial; default: as written
	Peak          *Peak    `yaml:"peak"`           // after the levels: the highest rate that meets an SLO
	Watch         Watch    `yaml:"watch"`          //
	Blocks        int      `yaml:"blocks"`         // default 10, the least for intervals
	Cooldown      Cooldown `yaml:"cooldown"`       //
	Quick         *Quick   `yaml:"quick"`          // what --quick changes
	Charts        []Chart  `yaml:"charts"`         // bar charts of the report; default: a choice by the report

	places map[string]yaml.Place // of each value, by path
	name   string                // of the file, for messages
	source []byte
}

// A Need is a program that must be installed.
type Need struct {
	Name    string   `yaml:",key"`    // in templates: {{.program.NAME}}
	Package string   `yaml:"package"` // the Debian package that has it
	Find    []string `yaml:"find"`    // names in PATH, or path patterns of which the last match counts; default: NAME
	Version []string `yaml:"version"` // arguments that print its version; default: none, the version is not recorded
}

// NetworkLoopback is the network of hosts that are all at 127.0.0.1.
const NetworkLoopback = "loopback"

// A Host is a network namespace that only the other hosts can reach, or just a share of CPU.
type Host struct {
	Name   string            `yaml:",key"`
	Ports  string            `yaml:"ports"`  // range for outgoing connections, "32768-60999", or how many, "2000"; default: the kernel's
	Sysctl map[string]string `yaml:"sysctl"` // net.…: value
	CPUs   float64           `yaml:"cpus"`   // share of this machine's CPU: whole numbers are cores of its own; default: all hosts share all cores
}

// A Service is a program that runs for a trial or for the whole experiment. A service that a factor names runs only in the
// variants whose value names it; every other service runs in every variant.
type Service struct {
	Name    string            `yaml:",key"`
	Host    string            `yaml:"host"`    // template; default: the first host
	User    string            `yaml:"user"`    // runs as this user (needs root); default: the caller
	Command []string          `yaml:"command"` // templates; no shell; must stay in the foreground
	Env     map[string]string `yaml:"env"`     // templates; added to the caller's
	Files   map[string]string `yaml:"files"`   // path in the service's folder: path of a template file
	Ports   []string          `yaml:"ports"`   // names; each gets a free port
	After   []string          `yaml:"after"`   // services that must be ready first; services that do not run are ignored
	Scope   string            `yaml:"scope"`   // ScopeBlock (default) or ScopeExperiment
	Prepare [][]string        `yaml:"prepare"` // templates; commands run once, before its first start, to fill {{.data}}
	Fill    [][]string        `yaml:"fill"`    // templates; commands run once, when it is first ready, to load data
	Keep    string            `yaml:"keep"`    // a version, such as "1": keeps {{.data}} for later runs until the version or what fills it changes
	Ready   Ready             `yaml:"ready"`
	Stop    Stop              `yaml:"stop"`
}

// Scopes of a service.
const (
	ScopeBlock      = "block"      // started anew in every trial
	ScopeExperiment = "experiment" // started once
)

// Ready is the condition for a service to be ready: everything given must hold. Default: each port accepts a connection.
type Ready struct {
	HTTP    string        `yaml:"http"`    // template; a URL that answers 200
	TCP     []string      `yaml:"tcp"`     // names of its ports
	Command []string      `yaml:"command"` // templates; must exit with 0; runs on the service's host
	Timeout time.Duration `yaml:"timeout"` // default 30s
}

// Stop is the signal that stops a service, and the time until it is killed.
type Stop struct {
	Signal string        `yaml:"signal"` // TERM (default), INT, QUIT, HUP, WINCH, USR1, USR2
	Grace  time.Duration `yaml:"grace"`  // default 10s
}

// A Factor is one thing that varies. A setting or a service belongs to at most one factor.
type Factor struct {
	Name   string        `yaml:",key"`
	Title  string        `yaml:"title"`
	Values []FactorValue `yaml:"values"` // at least two
}

// A FactorValue is one value of a factor.
type FactorValue struct {
	Name     string            `yaml:",key"`
	Settings map[string]string `yaml:"settings"` // templates
	Services []string          `yaml:"services"` // run only with the values that name them
}

// A Variant is a value for each factor. It inherits missing values from its baseline.
type Variant struct {
	Name     string            `yaml:",key"`
	Title    string            `yaml:"title"`
	Values   map[string]string `yaml:"values"`   // factor: value
	Baseline string            `yaml:"baseline"` // variant that it is compared with; default: the file's baseline
	Factors  int               `yaml:"factors"`  // number of factors that differ, if more than one
}

// Load holds flags of `spillway load` as templates; "" leaves a flag out. A key is the name of a flag with _ for -. The tag "flag"
// marks a switch, which is true or false. Paths are relative to the experiment, because the load runs in its folder.
type Load struct {
	URL           string   `yaml:"url"`
	Host          string   `yaml:"host"` // where the load comes from; default: the first host
	Rate          string   `yaml:"rate"`
	Arrival       string   `yaml:"arrival"`
	Connections   string   `yaml:"connections"`
	Duration      string   `yaml:"duration"`
	Requests      string   `yaml:"requests"`
	Warmup        string   `yaml:"warmup"`
	PerConnection string   `yaml:"per_connection"`
	Timeout       string   `yaml:"timeout"`
	Source        []string `yaml:"source"`
	Allow         []string `yaml:"allow"`
	Backlog       string   `yaml:"backlog"`
	Workers       string   `yaml:"workers"`
	Awake         string   `yaml:"awake" flag:"switch"`
	Method        string   `yaml:"method"`
	Header        []string `yaml:"header"`
	HeaderFile    string   `yaml:"header_file"`
	Body          string   `yaml:"body"`
	BodyFile      string   `yaml:"body_file"`
	RequestsFile  string   `yaml:"requests_file"`
	Flow          string   `yaml:"flow"`
	Check         []string `yaml:"check"`
	Socket        string   `yaml:"socket"`
	HTTP2         string   `yaml:"http2" flag:"switch"`
	Streams       string   `yaml:"streams"`
	GRPC          string   `yaml:"grpc"`
	Proto         string   `yaml:"proto"`
	Insecure      string   `yaml:"insecure" flag:"switch"`
	CACert        string   `yaml:"cacert"`
	Cert          string   `yaml:"cert"`
	Key           string   `yaml:"key"`
	SQL           string   `yaml:"sql"`
	Param         []string `yaml:"param"`
	Command       []string `yaml:"command"`
	Abort         string   `yaml:"abort"`
	SLO           string   `yaml:"slo"` // judged and recorded; missing it is not an error
}

// A Level is one load. Its flags replace those of Load.
type Level struct {
	Name     string            `yaml:"name"`     // default: from its flags, such as "rate-300"
	Settings map[string]string `yaml:"settings"` // when these change, running services of scope block are restarted
	Load     `yaml:",inline"`
}

// Peak searches for the highest rate that meets the SLO by `spillway peak`. It takes every flag of Load but rate, duration, requests
// and abort.
type Peak struct {
	Start   float64       `yaml:"start"`    // requests per second; default 100
	Max     float64       `yaml:"max"`      // upper limit; default 100000
	Step    float64       `yaml:"step"`     // final interval, as a share of its lower end; default 0.05
	MaxTime time.Duration `yaml:"max_time"` // ends the search; default 10m
	Load    `yaml:",inline"`
}

// Watch names what is sampled during the load.
type Watch struct {
	Processes map[string][]string `yaml:"processes"` // name: services, of which at most one runs in a variant; default: all services by their names; {}: nothing is sampled
	Databases map[string]string   `yaml:"databases"` // name: URL, a template
}

// Cooldown waits before each level until TIME_WAIT and accept queues of every host are back to their level before the first
// block.
type Cooldown struct {
	Timeout  time.Duration `yaml:"timeout"`   // the level starts after this time in any case, which is recorded; default 75s
	TimeWait int           `yaml:"time_wait"` // tolerated sockets above the base; default 50
}

// Quick is what --quick changes. Everything else stays.
type Quick struct {
	Blocks   int      `yaml:"blocks"`
	Load     Load     `yaml:"load"`
	Levels   []Level  `yaml:"levels"`
	Peak     *Peak    `yaml:"peak"`
	Cooldown Cooldown `yaml:"cooldown"`
}

// ReadFile reads the experiment at path as Read does.
func ReadFile(path string) (*File, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("read experiment: %w", err))
	}
	return Read(path, source)
}

// Read reads an experiment from YAML, fills in defaults and checks everything that the text alone can tell; templates
// and programs are for Plan and Programs. name stands for the file in messages. The error is yaml.Errors.
func Read(name string, source []byte) (*File, error) {
	document, err := yaml.Parse(name, source, yaml.Options{Loose: true, Unsigned: true, KeepEmpty: true})
	if err != nil {
		return nil, err
	}
	f := &File{name: name, source: source, places: document.Places}
	document.Decode(f)
	if err := document.Err(); err != nil {
		return nil, err
	}
	f.setDefaults()
	for _, m := range f.validate() {
		document.Add(m)
	}
	if err := document.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// UnknownKeyHint implements yaml.Hinter.
func (Variant) UnknownKeyHint() string {
	return "what differs between variants is declared under factors"
}
