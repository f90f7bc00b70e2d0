package experiment

import (
	"time"

	"spillway/internal/lab/result"
)

// A run's directory:
//
//	manifest.json                          Manifest: what is compared, where, in which order; written once, at the start
//	experiment.yaml                        the file as it was run
//	blocks/001/VARIANT/block.json          Turn: what ran in this block's turn of the variant; written when the turn ends
//	blocks/001/VARIANT/LEVEL.ndjson.gz     a result file of `spillway load`, its header's label the variant
//	blocks/001/VARIANT/peak-RATE.ndjson.gz the same, for an attempt of the search for the peak
//	blocks/001/VARIANT/SERVICE.log         what the service printed
//	blocks/001/VARIANT/load.log            what `spillway load` printed
//	blocks/001/VARIANT/watch-HOST.log      what the watch of a host printed
//	services/SERVICE.log                   the same for services of scope experiment
//	state.json                             State: what goes on now; rewritten often, for people and --resume
//
// Blocks count from 001. A block without block.json for each of its variants is incomplete: --resume runs it again as a
// whole, since its variants are to be close in time, and moves what there was to incomplete/NNN-K.
const (
	ManifestFile = "manifest.json"
	TurnFile     = "block.json"
	StateFile    = "state.json"
	SourceFile   = "experiment.yaml"
	BlocksDir    = "blocks"
	ServicesDir  = "services"
	ResultSuffix = ".ndjson.gz"
	PeakPrefix   = "peak-" // of the name of an attempt's result file
)

// The name and version that a manifest carries. A minor version only adds fields.
const (
	Format  = "spillway-experiment"
	Version = "1.0"
)

// A Manifest says what a run compares and on what. It is written before anything is measured and does not change.
type Manifest struct {
	Format    string         `json:"format"`
	Version   string         `json:"version"`
	Name      string         `json:"name"`
	Title     string         `json:"title,omitempty"`
	Question  string         `json:"question,omitempty"`
	Tool      string         `json:"tool"` // version of spillway
	Go        string         `json:"go"`
	StartedAt time.Time      `json:"started_at"`
	Command   []string       `json:"command"` // as typed, secrets redacted
	Seed      uint64         `json:"seed"`    // of the order of variants and levels
	Quick     bool           `json:"quick"`   // ranges only: too few or too short blocks for a claim
	Sum       string         `json:"sum"`     // SHA-256 of the file and its templates, in hexadecimal
	File      string         `json:"file"`    // its text
	Machine   result.Machine `json:"machine"`
	Programs  []Program      `json:"programs,omitempty"`
	Hosts     []HostFacts    `json:"hosts,omitempty"` // none: this host on loopback
	Baseline  string         `json:"baseline"`
	Variants  []VariantFacts `json:"variants"` // in the file's order; the A/A twin right behind the baseline
	Levels    []LevelFacts   `json:"levels"`   // in the file's order
	SLO       string         `json:"slo,omitempty"`
	Peak      *PeakFacts     `json:"peak,omitempty"`
	Watched   []string       `json:"watched,omitempty"` // names of processes and databases, as samples call them
	Charts    []Chart        `json:"charts,omitempty"`
	Plan      [][]TurnPlan   `json:"plan"` // by block: the turns in the order they run
}

// A Program is one that the experiment needs, as found.
type Program struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Package string `json:"package,omitempty"`
	Version string `json:"version,omitempty"` // the first line that it printed
}

// HostFacts describe a network namespace.
type HostFacts struct {
	Name    string            `json:"name"`
	Address string            `json:"address"`
	Ports   string            `json:"ports"` // as read from the kernel, "32768-60999"
	Sysctl  map[string]string `json:"sysctl,omitempty"`
}

// VariantFacts are a variant with everything that it inherits.
type VariantFacts struct {
	Name      string            `json:"name"`
	Title     string            `json:"title,omitempty"`
	Baseline  string            `json:"baseline,omitempty"` // compared with; "" for the baseline itself
	Again     bool              `json:"again,omitempty"`    // the baseline's A/A twin: nothing differs
	Values    map[string]string `json:"values,omitempty"`   // value by factor, inherited ones too
	Differs   []string          `json:"differs,omitempty"`  // factors in which it differs from its baseline
	Settings  map[string]string `json:"settings,omitempty"` // as written, templates not filled in
	Services  []string          `json:"services"`           // in the order of their start
	Published []Published       `json:"published,omitempty"`
}

// LevelFacts describe a level.
type LevelFacts struct {
	Name     string            `json:"name"` // of its result file
	Settings map[string]string `json:"settings,omitempty"`
	Flags    map[string]string `json:"flags"` // of `spillway load`, templates not filled in
}

// PeakFacts describe the search for a peak.
type PeakFacts struct {
	SLO   string            `json:"slo"`
	Start float64           `json:"start_hz"`
	Max   float64           `json:"max_hz"`
	Step  float64           `json:"step_share"`
	Flags map[string]string `json:"flags"`
}

// A TurnPlan is one variant's turn in a block.
type TurnPlan struct {
	Variant string   `json:"variant"`
	Levels  []string `json:"levels"` // in the order they run
}

// A Turn is what happened in one variant's turn in a block.
type Turn struct {
	Block     int          `json:"block"` // from 1
	Variant   string       `json:"variant"`
	Position  int          `json:"position"` // in its block, from 1
	StartedAt time.Time    `json:"started_at"`
	EndedAt   time.Time    `json:"ended_at"`
	Services  []ServiceRun `json:"services"`
	Levels    []LevelRun   `json:"levels"`
	Peak      *PeakRun     `json:"peak,omitempty"`
	Complete  bool         `json:"complete"` // every level, and the peak, has its result files
	// Interrupted says that the run ended in this turn; --resume runs its block again.
	Interrupted bool   `json:"interrupted,omitempty"`
	Error       string `json:"error,omitempty"` // why it is not complete, or what went wrong besides
}

// A ServiceRun is one process that was started for a turn, or was running for the whole experiment.
type ServiceRun struct {
	Name    string            `json:"name"`
	Watched string            `json:"watched,omitempty"` // as samples call it
	Host    string            `json:"host,omitempty"`
	PID     int               `json:"pid"`
	Scope   string            `json:"scope"`
	Command []string          `json:"command"` // secrets redacted
	Ports   map[string]int    `json:"ports,omitempty"`
	Ready   float64           `json:"ready_seconds"`     // from start until ready
	Ended   string            `json:"ended,omitempty"`   // how, when it ended by itself or had to be killed
	Setting map[string]string `json:"setting,omitempty"` // filled in
}

// A LevelRun is one level that was run.
type LevelRun struct {
	Name      string       `json:"name"`
	File      string       `json:"file"` // in the turn's directory
	StartedAt time.Time    `json:"started_at"`
	EndedAt   time.Time    `json:"ended_at"`
	Command   []string     `json:"command"` // secrets redacted
	ExitCode  int          `json:"exit_code"`
	Cooldown  CooldownRun  `json:"cooldown"`
	Error     string       `json:"error,omitempty"` // what `spillway load` said when it could not run
	Peak      *PeakAttempt `json:"attempt,omitempty"`
}

// A CooldownRun is the wait before a level.
type CooldownRun struct {
	Seconds  float64        `json:"seconds"`
	Reached  bool           `json:"reached"`             // back to the base; otherwise the limit ended the wait
	TimeWait map[string]int `json:"time_wait,omitempty"` // by host when the level began; "" is this host
	Base     map[string]int `json:"base,omitempty"`
	Queued   int            `json:"queued,omitempty"` // connections in accept queues
}

// A PeakRun is a search for the highest rate that meets the SLO.
type PeakRun struct {
	Feasible   float64    `json:"feasible_hz"`   // the highest that met it; 0 when none did
	Infeasible float64    `json:"infeasible_hz"` // the lowest above it that missed; 0 when none did
	Attempts   []LevelRun `json:"attempts"`
	Note       string     `json:"note,omitempty"` // "the limit of the search met the SLO"
}

// A PeakAttempt is what one attempt showed.
type PeakAttempt struct {
	Rate     float64         `json:"rate_hz"`
	Met      bool            `json:"met"`
	Missed   string          `json:"missed,omitempty"` // the criteria that were not met
	Validity result.Validity `json:"validity"`
}

// A State is how far a run is.
type State struct {
	UpdatedAt time.Time `json:"updated_at"`
	PID       int       `json:"pid"` // of the process that runs it
	Block     int       `json:"block"`
	Variant   string    `json:"variant,omitempty"`
	Level     string    `json:"level,omitempty"`
	Done      int       `json:"done"`            // turns
	Turns     int       `json:"turns"`           // in all
	Ended     string    `json:"ended,omitempty"` // finished, interrupted, or what went wrong
}
