package experiment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// A run's directory:
//
//	manifest.json                          Manifest: what is compared, where, in which order; written once, at the start
//	experiment.yaml                        the file as it was run
//	blocks/001/VARIANT/block.json          Trial: the record of the variant's trial in this block; written when it ends
//	blocks/001/VARIANT/LEVEL.ndjson.gz     a result file of `spillway load`; its label is the variant
//	blocks/001/VARIANT/peak.ndjson.gz      the result file of `spillway peak`
//	blocks/001/VARIANT/SERVICE.log         output of the service
//	blocks/001/VARIANT/load.log            output of `spillway load`
//	blocks/001/VARIANT/watch-HOST.log      output of the watch of a host
//	services/SERVICE.log                   output of a service of scope experiment
//	state.json                             State: the progress of the run; rewritten often
//
// Blocks count from 001. A block is incomplete until it has block.json for each variant. --resume moves an incomplete block to
// incomplete/NNN-K and runs all of it again, because its variants must be close in time.
const (
	ManifestFile = "manifest.json"
	TrialFile    = "block.json"
	StateFile    = "state.json"
	SourceFile   = "experiment.yaml"
	BlocksDir    = "blocks"
	ServicesDir  = "services"
	ResultSuffix = ".ndjson.gz"
	PeakName     = "peak" // of the search, where levels have their names

	incompleteDir = "incomplete"
	freshSuffix   = ".new" // of a file that is being written
)

// The name and version that a manifest carries. A minor version only adds fields.
const (
	Format  = "spillway-experiment"
	Version = "1.1"
)

// A Manifest describes a run: what it compares, and on which machine. It is written before the first trial and does not change.
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
	Seed      uint64         `json:"seed"`    // determines the order of variants
	Quick     bool           `json:"quick"`   // ranges only, no verdicts
	Sum       string         `json:"sum"`     // SHA-256 of the file and of its templates
	Machine   result.Machine `json:"machine"`
	Programs  []Program      `json:"programs,omitempty"`
	CPU       CPUAccounting  `json:"cpu_accounting,omitzero"`
	Hosts     []HostFacts    `json:"hosts,omitempty"` // empty: this host on loopback
	Baseline  string         `json:"baseline"`
	Variants  []VariantFacts `json:"variants"` // in the file's order; the A/A control follows the baseline
	Levels    []LevelFacts   `json:"levels"`   // in the file's order
	SLO       string         `json:"slo,omitempty"`
	Peak      *PeakFacts     `json:"peak,omitempty"`
	Watched   []string       `json:"watched,omitempty"` // names of processes and databases in the samples
	Charts    []Chart        `json:"charts,omitempty"`
	Plan      [][]TrialPlan  `json:"plan"` // by block: the trials in their order
}

// A Program is an installed program that the experiment needs.
type Program struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Package string `json:"package,omitempty"`
	Version string `json:"version,omitempty"` // first line of its output
}

// HostFacts describe a host.
type HostFacts struct {
	Name    string            `json:"name"`
	Address string            `json:"address"`
	Ports   string            `json:"ports"`           // as read from the kernel, "32768-60999"
	CPUs    float64           `json:"cpus,omitempty"`  // its share of CPU; 0: no share of its own
	Cores   string            `json:"cores,omitempty"` // that it may use, "0-1,4"
	Sysctl  map[string]string `json:"sysctl,omitempty"`
}

// PortScale is how many times fewer local ports a host has than the kernel gives by itself; 1 with as many or more.
func (h *HostFacts) PortScale() float64 {
	low, high, ok := parseSpan(h.Ports)
	if !ok {
		return 1
	}
	return max(1, KernelPorts/float64(high-low+1))
}

// VariantFacts describe a variant, including what it inherits.
type VariantFacts struct {
	Name     string            `json:"name"`
	Title    string            `json:"title,omitempty"`
	Baseline string            `json:"baseline,omitempty"` // the variant that it is compared with; "" for the baseline
	Again    bool              `json:"again,omitempty"`    // A/A control: the baseline once more
	Values   map[string]string `json:"values,omitempty"`   // value by factor, including inherited values
	Differs  []string          `json:"differs,omitempty"`  // factors that differ from its baseline
	Settings map[string]string `json:"settings,omitempty"` // as written, with templates
	Services []string          `json:"services"`           // in start order
}

// LevelFacts describe a level.
type LevelFacts struct {
	Name     string            `json:"name"` // also of its result file
	Settings map[string]string `json:"settings,omitempty"`
	Flags    map[string]string `json:"flags"` // of `spillway load`, with templates
}

// PeakFacts describe the search for a peak.
type PeakFacts struct {
	SLO     string            `json:"slo"`
	Start   float64           `json:"start_hz"`
	Max     float64           `json:"max_hz"`
	Step    float64           `json:"step_share"`
	MaxTime float64           `json:"max_seconds"`
	Flags   map[string]string `json:"flags"`
}

// A TrialPlan is one variant's trial in a block.
type TrialPlan struct {
	Variant string   `json:"variant"`
	Levels  []string `json:"levels"`
}

// A Trial is the record of one variant in one block.
type Trial struct {
	Block     int          `json:"block"` // from 1
	Variant   string       `json:"variant"`
	Position  int          `json:"position"` // in its block, from 1
	StartedAt time.Time    `json:"started_at"`
	EndedAt   time.Time    `json:"ended_at"`
	Services  []ServiceRun `json:"services"`
	Levels    []LevelRun   `json:"levels"`
	Peak      *PeakRun     `json:"peak,omitempty"`
	Complete  bool         `json:"complete"` // every level and the peak have their result files
	// Interrupted: the run ended during this trial; --resume runs its block again.
	Interrupted bool   `json:"interrupted,omitempty"`
	Error       string `json:"error,omitempty"` // why it is not complete, or another problem
}

// A ServiceRun is the record of one service process, of a trial or of the whole experiment.
type ServiceRun struct {
	Name    string            `json:"name"`
	Watched string            `json:"watched,omitempty"` // name in the samples
	Host    string            `json:"host,omitempty"`
	PID     int               `json:"pid"`
	Scope   string            `json:"scope"`
	Command []string          `json:"command"` // with references
	Ports   map[string]int    `json:"ports,omitempty"`
	Ready   float64           `json:"ready_seconds"`     // from start until ready
	Ended   string            `json:"ended,omitempty"`   // how it ended, if it ended by itself or was killed
	Setting map[string]string `json:"setting,omitempty"` // with templates filled in
}

// A LevelRun is the record of one level.
type LevelRun struct {
	Name      string      `json:"name"`
	File      string      `json:"file"` // in the directory of the trial
	StartedAt time.Time   `json:"started_at"`
	EndedAt   time.Time   `json:"ended_at"`
	Command   []string    `json:"command"` // with references
	ExitCode  int         `json:"exit_code"`
	Cooldown  CooldownRun `json:"cooldown"`
	Error     string      `json:"error,omitempty"` // why `spillway load` could not run
}

// A CooldownRun is the record of the wait before a level.
type CooldownRun struct {
	Seconds  float64        `json:"seconds"`
	Reached  bool           `json:"reached"`             // the sockets settled; otherwise the timeout ended the wait
	TimeWait map[string]int `json:"time_wait,omitempty"` // by host when the level began; "" is this host
	Base     map[string]int `json:"base,omitempty"`
	Queued   int            `json:"queued,omitempty"` // connections in accept queues
}

// A PeakRun is the record of a search for the highest rate that meets the SLO.
type PeakRun struct {
	LevelRun                   // of `spillway peak`
	Feasible   float64         `json:"feasible_hz"`    // highest rate that met it in a VALID probe; 0 if none did
	Infeasible float64         `json:"infeasible_hz"`  // lowest rate above it that missed it in a VALID probe; 0 if none did
	Validity   result.Validity `json:"validity"`       // VALID if the search proves the peak, or that no rate met the SLO
	Note       string          `json:"note,omitempty"` // what is not proved, or that the limit of the search met the SLO
}

// A State is the progress of a run.
type State struct {
	UpdatedAt time.Time `json:"updated_at"`
	PID       int       `json:"pid"` // of the running process
	Block     int       `json:"block"`
	Variant   string    `json:"variant,omitempty"`
	Level     string    `json:"level,omitempty"`
	Done      int       `json:"done"`            // trials
	Trials    int       `json:"turns"`           // in all
	Ended     string    `json:"ended,omitempty"` // finished, interrupted, or an error
}

// replaceJSON replaces a file atomically: a reader sees the old text or the new text, also after a crash.
func replaceJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	fresh := path + freshSuffix
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

// begin makes the directory of a run and locks it until the returned file is closed. A directory that already holds a run is
// an error, unless it is resumed.
func (e *engine) begin() (lock *os.File, err error) {
	dir, fresh := e.dir, e.command.Resume == ""
	if _, err := os.Stat(filepath.Join(dir, ManifestFile)); err == nil && fresh {
		return nil, exit.UsageError(fmt.Errorf("%s already holds a run: resume it with --resume %s, or choose another directory", dir, dir))
	}
	if other, err := foreign(dir); err != nil || other != "" && fresh {
		if err == nil {
			err = exit.UsageError(fmt.Errorf("%s has other files, such as %s: choose a new or empty directory", dir, other))
		}
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, BlocksDir), 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if fresh {
		if err := os.WriteFile(filepath.Join(dir, SourceFile), e.file.source, 0o644); err != nil {
			return nil, fmt.Errorf("write experiment: %w", err)
		}
	}
	if lock, err = os.Open(filepath.Join(dir, SourceFile)); err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, exit.UsageError(fmt.Errorf("%s is in use by another run", dir))
	}
	return lock, nil
}

// foreign returns a file in the directory that no run makes, "" if there is none.
func foreign(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read directory: %w", err)
	}
	ours := []string{ManifestFile, StateFile, SourceFile, BlocksDir, ServicesDir, incompleteDir}
	for _, entry := range entries {
		if !slices.Contains(ours, strings.TrimSuffix(entry.Name(), freshSuffix)) {
			return entry.Name(), nil
		}
	}
	return "", nil
}

func (e *engine) saveState(block int, variant, level, ended string) error {
	return replaceJSON(filepath.Join(e.dir, StateFile), State{
		UpdatedAt: time.Now(), PID: os.Getpid(), Block: block, Variant: variant, Level: level, Done: e.done, Trials: e.trials(), Ended: ended,
	})
}

func (e *engine) blockDir(block int) string {
	return filepath.Join(e.dir, BlocksDir, fmt.Sprintf("%03d", block))
}

func (e *engine) trialDir(block int, variant string) string {
	return filepath.Join(e.blockDir(block), variant)
}

// incomplete lists the blocks that are still to be run: a trial has no record or was interrupted.
func (e *engine) incomplete() []int {
	var blocks []int
	for i, trials := range e.plan.Trials {
		for _, plan := range trials {
			if t, err := ReadTrial(e.trialDir(i+1, plan.Variant)); err != nil || t.Interrupted {
				blocks = append(blocks, i+1)
				break
			}
		}
	}
	return blocks
}

// failures describes the trials of a block that are not complete.
func (e *engine) failures(block int) []string {
	var failed []string
	for _, plan := range e.plan.Trials[block-1] {
		if t, err := ReadTrial(e.trialDir(block, plan.Variant)); err == nil && !t.Complete {
			failed = append(failed, fmt.Sprintf("block %d, %s: %s", block, plan.Variant, t.Error))
		}
	}
	return failed
}

// archiveBlock moves what exists of a block that is run again.
func (e *engine) archiveBlock(block int) error {
	dir := e.blockDir(block)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	aside := filepath.Join(e.dir, incompleteDir)
	if err := os.MkdirAll(aside, 0o755); err != nil {
		return fmt.Errorf("archive incomplete block: %w", err)
	}
	for i := 1; ; i++ {
		to := filepath.Join(aside, fmt.Sprintf("%03d-%d", block, i))
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Rename(dir, to); err != nil {
			return fmt.Errorf("archive incomplete block: %w", err)
		}
		return nil
	}
}

// ReadManifest reads the manifest of the run in a directory.
func ReadManifest(dir string) (m Manifest, err error) {
	err = readJSON(filepath.Join(dir, ManifestFile), &m)
	return m, err
}

// ReadTrial reads the record of the trial in a directory.
func ReadTrial(dir string) (t Trial, err error) {
	err = readJSON(filepath.Join(dir, TrialFile), &t)
	return t, err
}

// ReadRun reads a result file. What is none is a mistake of the user.
func ReadRun(path string) (*result.Run, error) {
	run, err := result.ReadFile(path)
	info, statErr := os.Stat(path)
	switch {
	case statErr == nil && info.IsDir():
		return nil, exit.UsageError(fmt.Errorf("%s is not the directory of a run of spillway experiment (it has no %s): name such a "+
			"directory, alone in a report, or result files", path, ManifestFile))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, result.ErrNotResult), errors.Is(err, result.ErrVersion):
		return nil, exit.UsageError(err)
	}
	return run, err
}

func readJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
