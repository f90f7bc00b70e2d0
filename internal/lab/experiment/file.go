// Package experiment runs a comparison of one change at a time from a file: it starts the services of a variant, puts
// the levels of a load on them, and does so for every variant in every block, in random order and with fresh processes.
//
// It promises that variants differ in declared factors only, that what it started is gone when it ends, however it
// ends, and that a run that was cut off can be resumed. The load is put on by `spillway load` as a child process; the
// result files are those that it writes. What the figures mean is for the study to say, not for the engine.
//
// File is the format (docs/experiments.md explains it), Manifest and Trial are what a run leaves in its directory.
package experiment

import "time"

// A File is an experiment as written. Texts may be templates where their comment says so: see Values.
type File struct {
	Name     string `yaml:"name"`     // a word; names directories
	Title    string `yaml:"title"`    // one line
	Question string `yaml:"question"` // what the experiment answers

	Needs    []Need            `yaml:"needs"`    // programs, checked before anything is started
	Hosts    []Host            `yaml:"hosts"`    // network namespaces; none: this host, on loopback
	Settings map[string]string `yaml:"settings"` // templates; values for all variants that no factor or level changes
	Services []Service         `yaml:"services"` //

	Factors  []Factor  `yaml:"factors"`  // what may differ between variants
	Baseline string    `yaml:"baseline"` // the variant that the others are compared with; default: the first
	Variants []Variant `yaml:"variants"` //
	AA       bool      `yaml:"aa"`       // run the baseline twice in each block, the second time as NAME-again

	Load          Load     `yaml:"load"`           // flags of `spillway load` for every level
	Levels        []Level  `yaml:"levels"`         // at least one, unless there is a peak
	ShuffleLevels bool     `yaml:"shuffle_levels"` // a random order in each trial; default: as written
	Peak          *Peak    `yaml:"peak"`           // after the levels: the highest rate that meets an SLO
	Watch         Watch    `yaml:"watch"`          //
	Blocks        int      `yaml:"blocks"`         // default 10, which intervals need
	Cooldown      Cooldown `yaml:"cooldown"`       //
	Quick         *Quick   `yaml:"quick"`          // what --quick changes
	Charts        []Chart  `yaml:"charts"`         // bar charts that the report draws; default: its choice

	places map[string]place // of each value, by path
	name   string           // of the file, for messages
	source []byte
}

// A Need is a program that must be installed.
type Need struct {
	Name    string   `yaml:",key"`    // as templates call it: {{.program.NAME}}
	Package string   `yaml:"package"` // the Debian package that has it
	Find    []string `yaml:"find"`    // names in PATH, or path patterns of which the last match counts; default: NAME
	Version []string `yaml:"version"` // arguments that make it print its version, for the manifest; default: it is not asked
}

// A Host is a network namespace on a switch of its own, reached by the other hosts only.
type Host struct {
	Name   string            `yaml:",key"`
	Ports  string            `yaml:"ports"`  // range for outgoing connections, "32768-60999"; default: the kernel's
	Sysctl map[string]string `yaml:"sysctl"` // net.…: value
}

// A Service is a program that runs for the length of a trial or of the whole experiment. One that a factor names runs in
// the variants whose value of the factor names it; all others run in every variant.
type Service struct {
	Name    string            `yaml:",key"`
	Host    string            `yaml:"host"`    // template; default: the first host
	User    string            `yaml:"user"`    // runs as this user (root only); default: as the caller
	Command []string          `yaml:"command"` // templates; run without a shell, must stay in the foreground
	Env     map[string]string `yaml:"env"`     // templates; added to the caller's
	Files   map[string]string `yaml:"files"`   // path in the service's folder: path of the template beside the file, itself a template
	Ports   []string          `yaml:"ports"`   // names; each is given a free port
	After   []string          `yaml:"after"`   // services that must be ready first; those that do not run are passed over
	Scope   string            `yaml:"scope"`   // ScopeBlock (default) or ScopeExperiment
	Prepare [][]string        `yaml:"prepare"` // templates; commands run once, before it first starts: they fill {{.data}}
	Fill    [][]string        `yaml:"fill"`    // templates; commands run once, when it is first ready: a seed
	Keep    string            `yaml:"keep"`    // a version, "1": keeps {{.data}} for later runs until the version or what fills it changes
	Ready   Ready             `yaml:"ready"`
	Stop    Stop              `yaml:"stop"`
}

// Scopes of a service.
const (
	ScopeBlock      = "block"      // started afresh in every trial
	ScopeExperiment = "experiment" // started once
)

// Ready says when a service is ready: all that is given holds. Default: each of its ports accepts a connection.
type Ready struct {
	HTTP    string        `yaml:"http"`    // template; a URL that answers 200
	TCP     []string      `yaml:"tcp"`     // names of its ports
	Command []string      `yaml:"command"` // templates; ends with 0, on the service's host
	Timeout time.Duration `yaml:"timeout"` // default 30s
}

// Stop says how a service is asked to end, and how long it has before it is killed.
type Stop struct {
	Signal string        `yaml:"signal"` // TERM (default), INT, QUIT, HUP, WINCH, USR1, USR2
	Grace  time.Duration `yaml:"grace"`  // default 10s
}

// A Factor is one thing that is varied. A setting or a service belongs to one factor at most.
type Factor struct {
	Name   string        `yaml:",key"`
	Title  string        `yaml:"title"`
	Values []FactorValue `yaml:"values"` // two at least
}

// A FactorValue is what one value of a factor stands for.
type FactorValue struct {
	Name     string            `yaml:",key"`
	Settings map[string]string `yaml:"settings"` // templates
	Services []string          `yaml:"services"` // that run with this value, and only with the values that name them
}

// A Variant is a value for each factor. What it does not give is that of its baseline; so it says what it changes.
type Variant struct {
	Name      string            `yaml:",key"`
	Title     string            `yaml:"title"`
	Values    map[string]string `yaml:"values"`    // factor: value
	Baseline  string            `yaml:"baseline"`  // compared with this variant; default: the file's baseline
	Factors   int               `yaml:"factors"`   // differs in so many, when that is more than one
	Published []Published       `yaml:"published"` // what others measured of it, shown beside ours
}

// A Published figure is one that others measured.
type Published struct {
	Metric string  `yaml:"metric" json:"metric"`         // a column of the study
	Level  string  `yaml:"level" json:"level,omitempty"` // of this file; "" for a figure of the whole variant, as a peak
	Value  float64 `yaml:"value" json:"value"`           // in the metric's unit
	Note   string  `yaml:"note" json:"note,omitempty"`   // "17 % 502s, ports used up"
}

// Load holds flags of `spillway load` by name, as templates; "" leaves a flag out.
type Load struct {
	URL           string   `yaml:"url"`
	Host          string   `yaml:"host"` // that the load comes from; default: the first
	Rate          string   `yaml:"rate"`
	Arrival       string   `yaml:"arrival"`
	Connections   string   `yaml:"connections"`
	Duration      string   `yaml:"duration"`
	Requests      string   `yaml:"requests"`
	Warmup        string   `yaml:"warmup"`
	PerConnection string   `yaml:"per_connection"`
	Timeout       string   `yaml:"timeout"`
	Backlog       string   `yaml:"backlog"`
	Workers       string   `yaml:"workers"`
	Method        string   `yaml:"method"`
	Header        []string `yaml:"header"`
	Body          string   `yaml:"body"`
	BodyFile      string   `yaml:"body_file"`     // beside the file
	RequestsFile  string   `yaml:"requests_file"` // beside the file
	Check         []string `yaml:"check"`
	Socket        string   `yaml:"socket"`
	HTTP2         string   `yaml:"http2"`    // true
	Insecure      string   `yaml:"insecure"` // true
	SQL           string   `yaml:"sql"`
	Param         []string `yaml:"param"`
	Command       []string `yaml:"command"`
	SLO           string   `yaml:"slo"` // judged and recorded; missing it fails nothing
}

// A Level is one load: what it gives replaces what Load gives.
type Level struct {
	Name     string            `yaml:"name"`     // default: of what it gives, "rate-300"
	Settings map[string]string `yaml:"settings"` // services of scope block that run start afresh when these change
	Load     `yaml:",inline"`
}

// Peak searches the highest rate that meets load's SLO: it doubles from Start until one misses, then halves the interval
// until it is within Step.
type Peak struct {
	Start float64 `yaml:"start"` // requests a second; default 100
	Max   float64 `yaml:"max"`   // never more; default 100000
	Step  float64 `yaml:"step"`  // the interval left, as a share of the rate; default 0.05
	Load  `yaml:",inline"`
}

// Watch names what is sampled beside the load.
type Watch struct {
	Processes map[string][]string `yaml:"processes"` // name: services, of which one at most runs in a variant; default: all by their names; {}: none, and no host
	Databases map[string]string   `yaml:"databases"` // name: URL, a template
}

// Cooldown waits before each level until TIME_WAIT and accept queues of every host are back to what they were before
// the first block.
type Cooldown struct {
	Timeout  time.Duration `yaml:"timeout"`   // goes on after this long, which is recorded; default 75s
	TimeWait int           `yaml:"time_wait"` // sockets above the base that do not matter; default 50
}

// Quick is what --quick changes; what it does not give stays.
type Quick struct {
	Blocks   int      `yaml:"blocks"`
	Load     Load     `yaml:"load"`
	Levels   []Level  `yaml:"levels"`
	Peak     *Peak    `yaml:"peak"`
	Cooldown Cooldown `yaml:"cooldown"`
}
