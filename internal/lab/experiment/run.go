package experiment

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/progress"
)

// Config describes a run.
type Config struct {
	Options
	Path     string    // of the file
	Dir      string    // for the results
	Resume   bool      // resume the run in Dir, with its options
	Data     string    // for kept data
	Spillway string    // path of this program, which is copied
	Tool     string    // its version
	Command  []string  // as typed
	Prefix   string    // of everything that the run makes, from Inner
	Progress io.Writer // text for users
}

// Outcome is the result of a run.
type Outcome struct {
	Dir    string
	Trials int
	Failed []string // trials that are not complete, one sentence each
}

// engine runs one experiment.
type engine struct {
	config   Config
	file     *File
	plan     *Plan
	manifest *Manifest
	layout   *layout
	network  *network
	cgroups  *cgroups
	temp     string
	data     map[string]*dataFolder
	starts   int // makes the names of folders unique
	fixed    []*service
	base     sockets
	token    string // of the watches on the hosts
	meter    *progress.Meter
	clock    clock
	done     int // trials
}

// clock estimates the remaining time.
type clock struct {
	begin  time.Time
	trials int // finished by this process
	all    int // to be run by this process
}

// remaining estimates the remaining time from the trials so far, at least one.
func (c *clock) remaining(now time.Time) time.Duration {
	return now.Sub(c.begin) / time.Duration(c.trials) * time.Duration(c.all-c.trials)
}

// Run runs an experiment, or resumes one. However it ends, it stops the services, and the directory can be resumed. A Mistake
// in the file, a MissingError or a UseError is returned before anything is started.
func Run(ctx context.Context, c Config) (*Outcome, error) {
	e, err := open(ctx, c)
	if err != nil {
		return nil, err
	}
	lock, err := e.begin()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	outcome := &Outcome{Dir: c.Dir, Trials: e.trials()}
	err = e.run(ctx, outcome)
	ended := "finished"
	if err != nil {
		ended = err.Error()
	}
	return outcome, errors.Join(err, e.saveState(0, "", "", ended))
}

// open reads the file and plans the run; a resumed run takes its plan from its directory.
func open(ctx context.Context, c Config) (*engine, error) {
	file, err := ReadFile(c.Path)
	if err != nil {
		return nil, err
	}
	e := &engine{
		config: c, data: map[string]*dataFolder{}, network: &network{prefix: c.Prefix}, meter: progress.New(c.Progress),
		token: crand.Text(),
	}
	var before *Manifest
	if c.Resume {
		before = &Manifest{}
		if err := readJSON(filepath.Join(c.Dir, ManifestFile), before); err != nil {
			return nil, &UseError{fmt.Sprintf("no run to resume: %v", err)}
		}
		c.Options = Options{Quick: before.Quick, Seed: before.Seed, Only: before.only()}
	}
	if e.file, err = file.Apply(c.Options); err != nil {
		return nil, err
	}
	source, err := filepath.Abs(filepath.Dir(c.Path))
	if err != nil {
		return nil, err
	}
	if e.plan, err = e.file.Plan(source, c.Options); err != nil {
		return nil, err
	}
	e.layout = e.file.placeholders(source)
	e.temp = filepath.Join(os.TempDir(), c.Prefix+"run")
	e.layout.spillway = filepath.Join(e.temp, "spillway")
	if reason := e.file.RootFor(); reason != "" {
		return nil, &UseError{reason}
	}
	if _, err := e.file.divide(); err != nil {
		return nil, err
	}
	programs, err := e.file.Programs(ctx)
	if err != nil {
		return nil, err
	}
	if advice := e.file.advice(); advice != "" {
		e.logf("%s", advice)
	}
	for _, p := range programs {
		e.layout.programs[p.Name] = p.Path
	}
	if e.manifest, err = e.describe(programs, c.Options); err != nil {
		return nil, err
	}
	if before == nil {
		return e, nil
	}
	if before.Sum != e.manifest.Sum {
		return nil, &UseError{fmt.Sprintf("%s or one of its templates has changed since the run in %s: start a new run", c.Path, c.Dir)}
	}
	e.manifest, e.plan.Trials = before, before.Plan
	return e, nil
}

// A UseError is a mistake in the arguments, not in the file.
type UseError struct{ reason string }

// Error returns one line: what is wrong and what to do.
func (e *UseError) Error() string { return e.reason }

// only returns the variants of a manifest without the A/A control.
func (m *Manifest) only() []string {
	var names []string
	for _, v := range m.Variants {
		if !v.Again {
			names = append(names, v.Name)
		}
	}
	return names
}

// describe makes the manifest. Hosts and CPU accounting are added later.
func (e *engine) describe(programs []Program, o Options) (*Manifest, error) {
	sum, err := e.file.sum(e.layout.source, e.plan)
	if err != nil {
		return nil, err
	}
	f := e.file
	m := &Manifest{
		Format: Format, Version: Version, Name: f.Name, Title: f.Title, Question: f.Question, Tool: e.config.Tool, Go: runtime.Version(),
		StartedAt: time.Now(), Command: result.RedactArgs(e.config.Command), Seed: o.Seed, Quick: o.Quick, Sum: sum,
		File:    string(f.source),
		Machine: result.ReadMachine(), Programs: programs, Baseline: f.Baseline, Variants: slices.Clone(e.plan.Variants),
		Levels: slices.Clone(e.plan.Levels),
		SLO:    f.Load.SLO, Peak: f.peakFacts(), Charts: f.Charts, Plan: e.plan.Trials,
	}
	for i := range m.Variants {
		for _, service := range m.Variants[i].Services {
			if name := f.watchedAs(service); name != "" && !slices.Contains(m.Watched, name) {
				m.Watched = append(m.Watched, name)
			}
		}
	}
	for name := range f.Watch.Databases {
		if !slices.Contains(m.Watched, name) {
			m.Watched = append(m.Watched, name)
		}
	}
	slices.Sort(m.Watched)
	return m, nil
}

func (e *engine) trials() int {
	n := 0
	for _, block := range e.plan.Trials {
		n += len(block)
	}
	return n
}

func (e *engine) run(ctx context.Context, outcome *Outcome) (err error) {
	defer func() {
		stopServices(e.fixed)
		for _, d := range e.data {
			d.close()
		}
		err = errors.Join(err, removeNamespaces(context.WithoutCancel(ctx), e.config.Prefix), os.RemoveAll(e.temp))
	}()
	if err := e.setUp(ctx); err != nil {
		return interruptedOr(ctx, err)
	}
	left := e.incomplete()
	e.clock = clock{begin: time.Now(), all: len(left) * len(e.plan.Variants)}
	e.done = outcome.Trials - e.clock.all
	e.logf("%d trials in %d blocks; %s", e.clock.all, len(left), e.plan.Time(time.Now(), len(left)))
	for block := range e.plan.Trials {
		if !slices.Contains(left, block+1) {
			outcome.Failed = append(outcome.Failed, e.failures(block+1)...)
			continue
		}
		if err := e.block(ctx, block+1, outcome); err != nil {
			return interruptedOr(ctx, err)
		}
	}
	return nil
}

// ErrInterrupted means that a signal stopped the run; it can be resumed.
var ErrInterrupted = errors.New("interrupted")

func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}

// setUp makes hosts and data folders, and starts the services of scope experiment.
func (e *engine) setUp(ctx context.Context) error {
	err := e.copyProgram()
	if err != nil {
		return err
	}
	if e.layout.ports, err = e.file.allotPorts(); err != nil {
		return err
	}
	hosts, err := e.file.createNetwork(ctx, e.network, append(numbers(e.layout.ports), watchPort))
	if err != nil {
		return err
	}
	e.cgroups = openCgroups(ctx, e.config.Prefix)
	if err := e.shareHosts(hosts); err != nil {
		return err
	}
	if before := e.manifest.CPU; e.config.Resume && before != nil && *before != e.cgroups.accounting {
		return &UseError{fmt.Sprintf("%s counts CPU time by %s, and here it can only be counted by %s: start a new run", e.config.Dir,
			before.Source, e.cgroups.accounting.Source)}
	}
	if !e.config.Resume {
		e.manifest.Hosts, e.manifest.CPU = hosts, &e.cgroups.accounting
		if err := replaceJSON(filepath.Join(e.config.Dir, ManifestFile), e.manifest); err != nil {
			return err
		}
	}
	if err := e.openData(e.config.Data); err != nil {
		return err
	}
	if err := e.startFixed(ctx); err != nil {
		return err
	}
	e.base, err = e.countSockets(ctx)
	return err
}

// copyProgram copies this program into the folder of the run: every user can run the copy, and a new build does not replace it.
func (e *engine) copyProgram() error {
	if err := os.MkdirAll(e.temp, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	from, err := os.Open(e.config.Spillway)
	if err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	defer from.Close()
	to, err := os.OpenFile(e.layout.spillway, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	return nil
}

func (e *engine) startFixed(ctx context.Context) error {
	if err := e.makeFolders(ScopeExperiment, e.file.serviceNames()); err != nil {
		return err
	}
	data, err := e.file.fixedData(e.layout)
	if err != nil {
		return err
	}
	logs := filepath.Join(e.config.Dir, ServicesDir)
	if err := makeFolder(logs, ""); err != nil {
		return err
	}
	e.fixed, err = e.startServices(ctx, ScopeExperiment, data, logs)
	return err
}

// block runs the trials of a block.
func (e *engine) block(ctx context.Context, block int, outcome *Outcome) error {
	if err := e.archiveBlock(block); err != nil {
		return err
	}
	for i, plan := range e.plan.Trials[block-1] {
		err := e.trial(ctx, block, i+1, plan)
		if stopped := new(fatalError); errors.As(err, stopped) {
			return fmt.Errorf("block %d, %s: %w", block, plan.Variant, err)
		}
		e.done++
		e.clock.trials++
		if left := e.clock.remaining(time.Now()).Round(time.Second); left > 0 {
			e.logf("%d of %d trials done, %v left, ends about %s", e.done, outcome.Trials, left, time.Now().Add(left).Format("15:04:05"))
		}
	}
	for _, failure := range e.failures(block) {
		e.logf("%s", failure)
		outcome.Failed = append(outcome.Failed, failure)
	}
	return nil
}

// logf prints a line for the user.
func (e *engine) logf(format string, args ...any) {
	fmt.Fprintln(e.config.Progress, strings.TrimSpace(fmt.Sprintf(format, args...)))
}
