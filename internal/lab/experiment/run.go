package experiment

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
	"spillway/internal/progress"
)

// engine runs one experiment.
type engine struct {
	command  *Command
	dir      string // of the results
	prefix   string // of everything that the run makes, from inner
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
	began    time.Time // the first trial of this process
	before   int       // trials that were done before
	done     int       // trials
	failed   []string  // trials that are not complete, one sentence each
}

// open reads the file and plans the run; a resumed run takes its plan from its directory. A mistake of the user is returned before
// anything is started.
func (c *Command) open(ctx context.Context, prefix string) (*engine, error) {
	file, err := ReadFile(c.File)
	if err != nil {
		return nil, err
	}
	e := &engine{
		command: c, prefix: prefix, data: map[string]*dataFolder{}, network: &network{prefix: prefix}, meter: progress.New(c.Stderr),
		token: crand.Text(), temp: filepath.Join(os.TempDir(), prefix+"run"),
	}
	if e.dir, err = filepath.Abs(cmp.Or(c.Resume, c.Out, file.Name+time.Now().Format("-20060102-150405"))); err != nil {
		return nil, err
	}
	options := c.options(ctx)
	var before *Manifest
	if c.Resume != "" {
		before = &Manifest{}
		if err := readJSON(filepath.Join(e.dir, ManifestFile), before); err != nil {
			return nil, exit.UsageError(fmt.Errorf("no run to resume: %w", err))
		}
		options = Options{Quick: before.Quick, Seed: before.Seed}
		for _, v := range before.Variants {
			if !v.Again {
				options.Only = append(options.Only, v.Name)
			}
		}
	}
	source, err := filepath.Abs(filepath.Dir(c.File))
	if err != nil {
		return nil, err
	}
	if e.file, e.plan, err = file.applied(source, options); err != nil {
		return nil, err
	}
	programs, err := c.programs(ctx, e.file)
	if err != nil {
		return nil, err
	}
	e.layout = e.file.placeholders(source)
	e.layout.spillway = filepath.Join(e.temp, "spillway")
	for _, p := range programs {
		e.layout.programs[p.Name] = p.Path
	}
	if e.manifest, err = e.describe(programs, options); err != nil {
		return nil, err
	}
	if before == nil {
		return e, nil
	}
	if before.Sum != e.manifest.Sum {
		return nil, exit.UsageError(fmt.Errorf("%s or one of its templates has changed since the run in %s: start a new run", c.File, e.dir))
	}
	e.manifest, e.plan.Trials = before, before.Plan
	return e, nil
}

// describe makes the manifest. Hosts and CPU accounting are added later.
func (e *engine) describe(programs []Program, o Options) (*Manifest, error) {
	sum, err := e.file.sum(e.layout.source, e.plan)
	if err != nil {
		return nil, err
	}
	f := e.file
	m := &Manifest{
		Format: Format, Version: Version, Name: f.Name, Title: f.Title, Question: f.Question, Tool: e.command.Tool, Go: runtime.Version(),
		StartedAt: time.Now(), Command: result.RedactArgs(append([]string{"spillway"}, e.command.Args...)), Seed: o.Seed, Quick: o.Quick,
		Sum: sum, Machine: result.ReadMachine(), Programs: programs, Baseline: f.Baseline,
		Variants: e.plan.Variants, Levels: e.plan.Levels, SLO: f.Load.SLO, Peak: f.peakFacts(), Charts: f.Charts, Plan: e.plan.Trials,
	}
	for i := range m.Variants {
		for _, service := range m.Variants[i].Services {
			if name := f.watchedAs(service); name != "" {
				m.Watched = append(m.Watched, name)
			}
		}
	}
	m.Watched = slices.AppendSeq(m.Watched, maps.Keys(f.Watch.Databases))
	slices.Sort(m.Watched)
	m.Watched = slices.Compact(m.Watched)
	return m, nil
}

func (e *engine) trials() int {
	n := 0
	for _, block := range e.plan.Trials {
		n += len(block)
	}
	return n
}

// run runs the trials. However it ends, it stops the services, and the directory can be resumed.
func (e *engine) run(ctx context.Context) error {
	err := e.setUp(ctx)
	if err == nil {
		err = e.blocks(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	stopServices(e.fixed)
	for _, d := range e.data {
		_ = d.lock.Close() // nil has nothing to close
	}
	err = errors.Join(err, removeNamespaces(context.WithoutCancel(ctx), e.prefix), os.RemoveAll(e.temp))
	ended := "finished"
	if err != nil {
		ended = err.Error()
	}
	return errors.Join(err, e.saveState(0, "", "", ended))
}

// blocks runs the blocks that are not complete.
func (e *engine) blocks(ctx context.Context) error {
	left := e.incomplete()
	e.began, e.before = time.Now(), e.trials()-len(left)*len(e.plan.Variants)
	e.done = e.before
	e.logf("%d trials in %d blocks; %s", e.trials()-e.done, len(left), e.plan.Time(e.began, len(left)))
	for block := range e.plan.Trials {
		if !slices.Contains(left, block+1) {
			e.failed = append(e.failed, e.failures(block+1)...)
			continue
		}
		if err := e.block(ctx, block+1); err != nil {
			return err
		}
	}
	return nil
}

// setUp makes hosts and data folders, and starts the services of scope experiment.
func (e *engine) setUp(ctx context.Context) error {
	if err := e.copyProgram(); err != nil {
		return err
	}
	if err := e.layout.findPorts(e.file); err != nil {
		return err
	}
	hosts, err := e.file.createNetwork(ctx, e.network, append(numbers(e.layout.ports), watchPort))
	if err != nil {
		return err
	}
	e.cgroups = openCgroups(ctx, e.prefix)
	if err := e.shareHosts(hosts); err != nil {
		return err
	}
	if before := e.manifest.CPU; e.command.Resume != "" && before != e.cgroups.accounting {
		return exit.UsageError(fmt.Errorf("%s counts CPU time by %s, and here it can only be counted by %s: start a new run", e.dir,
			before.Source, e.cgroups.accounting.Source))
	}
	if e.command.Resume == "" {
		e.manifest.Hosts, e.manifest.CPU = hosts, e.cgroups.accounting
		if err := replaceJSON(filepath.Join(e.dir, ManifestFile), e.manifest); err != nil {
			return err
		}
	}
	if err := e.openData(); err != nil {
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
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	content, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(e.layout.spillway, content, 0o755)
	}
	if err != nil {
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
	logs := filepath.Join(e.dir, ServicesDir)
	if err := makeFolder(logs, ""); err != nil {
		return err
	}
	e.fixed, err = e.startServices(ctx, ScopeExperiment, data, logs)
	return err
}

// block runs the trials of a block.
func (e *engine) block(ctx context.Context, block int) error {
	if err := e.archiveBlock(block); err != nil {
		return err
	}
	for i, plan := range e.plan.Trials[block-1] {
		err := e.trial(ctx, block, i+1, plan)
		if errors.As(err, new(fatalError)) {
			return fmt.Errorf("block %d, %s: %w", block, plan.Variant, err)
		}
		e.done++
		left := time.Since(e.began) / time.Duration(e.done-e.before) * time.Duration(e.trials()-e.done)
		if left >= time.Second {
			e.logf("%d of %d trials done, %s left, ends about %s", e.done, e.trials(), sheet.Duration(left.Seconds()),
				time.Now().Add(left).Format("15:04:05"))
		}
	}
	for _, failure := range e.failures(block) {
		e.logf("%s", failure)
		e.failed = append(e.failed, failure)
	}
	return nil
}

// logf prints a line for the user.
func (e *engine) logf(format string, args ...any) {
	fmt.Fprintln(e.command.Stderr, strings.TrimSpace(fmt.Sprintf(format, args...)))
}
