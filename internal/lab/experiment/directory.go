package experiment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
)

// A run's directory:
//
//	manifest.json                          Manifest: what is compared, where, in which order; written once, at the start
//	experiment.yaml                        the file as it was run
//	blocks/001/VARIANT/block.json          Trial: what ran in this block's trial of the variant; written when the trial ends
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
	TrialFile    = "block.json"
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
	CPU       *CPUAccounting `json:"cpu_accounting,omitempty"` // nil in runs of earlier versions: process tree
	Hosts     []HostFacts    `json:"hosts,omitempty"`          // none: this host on loopback
	Baseline  string         `json:"baseline"`
	Variants  []VariantFacts `json:"variants"` // in the file's order; the A/A twin right behind the baseline
	Levels    []LevelFacts   `json:"levels"`   // in the file's order
	SLO       string         `json:"slo,omitempty"`
	Peak      *PeakFacts     `json:"peak,omitempty"`
	Watched   []string       `json:"watched,omitempty"` // names of processes and databases, as samples call them
	Charts    []Chart        `json:"charts,omitempty"`
	Plan      [][]TrialPlan  `json:"plan"` // by block: the trials in the order they run
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

// A TrialPlan is one variant's trial in a block.
type TrialPlan struct {
	Variant string   `json:"variant"`
	Levels  []string `json:"levels"` // in the order they run
}

// A Trial is what happened in one variant's trial in a block.
type Trial struct {
	Block     int          `json:"block"` // from 1
	Variant   string       `json:"variant"`
	Position  int          `json:"position"` // in its block, from 1
	StartedAt time.Time    `json:"started_at"`
	EndedAt   time.Time    `json:"ended_at"`
	Services  []ServiceRun `json:"services"`
	Levels    []LevelRun   `json:"levels"`
	Peak      *PeakRun     `json:"peak,omitempty"`
	Complete  bool         `json:"complete"` // every level, and the peak, has its result files
	// Interrupted says that the run ended in this trial; --resume runs its block again.
	Interrupted bool   `json:"interrupted,omitempty"`
	Error       string `json:"error,omitempty"` // why it is not complete, or what went wrong besides
}

// A ServiceRun is one process that was started for a trial, or was running for the whole experiment.
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
	File      string       `json:"file"` // in the trial's directory
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
	Done      int       `json:"done"`            // trials
	Trials    int       `json:"turns"`           // in all
	Ended     string    `json:"ended,omitempty"` // finished, interrupted, or what went wrong
}

// replaceJSON replaces a file at once: whoever reads it, also after a crash, sees the old text or the new one.
func replaceJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	fresh := path + ".new"
	file, err := os.Create(fresh)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

// begin makes the directory of a run, and keeps other runs out of it until the file returned is closed. A directory
// that holds a run is refused, unless it is to be resumed.
func (e *engine) begin() (lock *os.File, err error) {
	dir := e.config.Dir
	if _, err := os.Stat(filepath.Join(dir, ManifestFile)); err == nil && !e.config.Resume {
		return nil, &UseError{fmt.Sprintf("%s holds a run already: go on with it by --resume %s, or give another directory", dir, dir)}
	}
	if err := os.MkdirAll(filepath.Join(dir, BlocksDir), 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if !e.config.Resume {
		if err := os.WriteFile(filepath.Join(dir, SourceFile), e.file.source, 0o644); err != nil {
			return nil, fmt.Errorf("write experiment: %w", err)
		}
	}
	if lock, err = os.Open(filepath.Join(dir, SourceFile)); err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, &UseError{fmt.Sprintf("%s is in use by another run", dir)}
	}
	return lock, nil
}

func (e *engine) saveState(block int, variant, level, ended string) error {
	return replaceJSON(filepath.Join(e.config.Dir, StateFile), State{
		UpdatedAt: time.Now(), PID: os.Getpid(), Block: block, Variant: variant, Level: level, Done: e.done, Trials: e.trials(), Ended: ended,
	})
}

func (e *engine) blockDir(block int) string {
	return filepath.Join(e.config.Dir, BlocksDir, fmt.Sprintf("%03d", block))
}

func (e *engine) trialDir(block int, variant string) string {
	return filepath.Join(e.blockDir(block), variant)
}

// incomplete lists the blocks that are to be run: those in which a trial has no record, or one of a run that ended in it.
func (e *engine) incomplete() []int {
	var blocks []int
	for i, trials := range e.plan.Trials {
		for _, plan := range trials {
			var t Trial
			if err := readJSON(filepath.Join(e.trialDir(i+1, plan.Variant), TrialFile), &t); err != nil || t.Interrupted {
				blocks = append(blocks, i+1)
				break
			}
		}
	}
	return blocks
}

// failures are the trials of a block that are not complete.
func (e *engine) failures(block int) []string {
	var failed []string
	for _, plan := range e.plan.Trials[block-1] {
		var t Trial
		if err := readJSON(filepath.Join(e.trialDir(block, plan.Variant), TrialFile), &t); err == nil && !t.Complete {
			failed = append(failed, fmt.Sprintf("block %d, %s: %s", block, plan.Variant, t.Error))
		}
	}
	return failed
}

// setAside keeps what there is of a block that is run again.
func (e *engine) setAside(block int) error {
	dir := e.blockDir(block)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	aside := filepath.Join(e.config.Dir, "incomplete")
	if err := os.MkdirAll(aside, 0o755); err != nil {
		return fmt.Errorf("set an incomplete block aside: %w", err)
	}
	for i := 1; ; i++ {
		to := filepath.Join(aside, fmt.Sprintf("%03d-%d", block, i))
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Rename(dir, to); err != nil {
			return fmt.Errorf("set an incomplete block aside: %w", err)
		}
		return nil
	}
}

// manifestMax bounds the manifest, block and state files, which are small.
const manifestMax = 16 << 20

func readJSON(path string, v any) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > manifestMax {
		return fmt.Errorf("%s is larger than %d bytes", path, manifestMax)
	}
	if err := json.NewDecoder(file).Decode(v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
