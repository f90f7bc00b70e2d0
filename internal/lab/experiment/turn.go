package experiment

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/progress"
)

// loadGrace is what a load gets to write its file when the run is stopped.
const loadGrace = 15 * time.Second

// turn is a variant's turn while it goes on.
type turn struct {
	record   Turn
	facts    *VariantFacts
	dir      string
	scene    *scene
	settings map[string]string // of the level that the services were started for
	services []*service        // of scope block
	say      func(level string)
	task     *progress.Task
}

func (t *turn) path(name string) string { return filepath.Join(t.dir, name) }

// errStopped is a reason to end the run: what is wrong will be wrong in the next turn too, or the user stopped it.
type errStopped struct{ error }

func (e errStopped) Unwrap() error { return e.error }

// turn runs a variant's turn and writes its record. The error is of type errStopped when the run must end.
func (e *engine) turn(ctx context.Context, block, position int, plan TurnPlan) error {
	t, err := e.newTurn(block, position, plan)
	if err != nil {
		return errStopped{err}
	}
	t.task = e.meter.Start(fmt.Sprintf("block %d of %d, %s", block, e.file.Blocks, plan.Variant), "", e.steps(plan))
	err = e.levels(ctx, t, plan.Levels)
	if err == nil && e.file.Peak != nil {
		t.record.Peak, err = e.searchPeak(ctx, t)
		t.task.Add(1)
	}
	if died := t.died(e.fixed); err == nil && died != "" {
		err = errors.New(died)
	}
	e.endServices(t)
	if ctx.Err() != nil {
		err = errStopped{errors.New("interrupted")}
	}
	t.record.EndedAt = time.Now()
	t.record.Complete = err == nil && t.record.Error == ""
	if err != nil {
		t.record.Error = err.Error()
		t.record.Interrupted = errors.As(err, new(errStopped))
	}
	t.task.End(err)
	if writeErr := replaceJSON(t.path(TurnFile), &t.record); writeErr != nil {
		return errStopped{writeErr}
	}
	return err
}

// steps counts the levels of a turn, and the search for the peak as one more.
func (e *engine) steps(plan TurnPlan) int64 {
	n := int64(len(plan.Levels))
	if e.file.Peak != nil {
		n++
	}
	return n
}

func (e *engine) newTurn(block, position int, plan TurnPlan) (*turn, error) {
	i := slices.IndexFunc(e.plan.Variants, func(v VariantFacts) bool { return v.Name == plan.Variant })
	if i < 0 {
		return nil, fmt.Errorf("the plan names %s, which is no variant", plan.Variant)
	}
	t := &turn{facts: &e.plan.Variants[i], dir: e.turnDir(block, plan.Variant)}
	t.record = Turn{Block: block, Variant: plan.Variant, Position: position, StartedAt: time.Now(), Services: []ServiceRun{}, Levels: []LevelRun{}}
	for _, s := range e.fixed {
		t.record.Services = append(t.record.Services, s.about)
	}
	t.say = func(level string) { _ = e.saveState(block, plan.Variant, level, "") } // for people; the records tell --resume
	return t, makeFolder(t.dir, "")
}

// levels runs the levels of a turn. Failures of one level are in its record and do not keep the others from running.
func (e *engine) levels(ctx context.Context, t *turn, names []string) error {
	if len(names) == 0 {
		return e.stage(ctx, t, nil)
	}
	for _, name := range names {
		level := e.file.level(name)
		if err := e.stage(ctx, t, level); err != nil {
			return err
		}
		t.say(name)
		run, err := e.level(ctx, t, name, e.file.Load.with(level.Load))
		if err != nil {
			return err
		}
		t.record.Levels = append(t.record.Levels, *run)
		if run.Error != "" && t.record.Error == "" {
			t.record.Error = fmt.Sprintf("level %s: %s", name, run.Error)
		}
		t.task.Add(1)
		if died := t.died(e.fixed); died != "" {
			return errors.New(died)
		}
	}
	return nil
}

func (f *File) level(name string) *Level {
	i := slices.IndexFunc(f.Levels, func(l Level) bool { return l.Name == name })
	return &f.Levels[i]
}

// died names the services that have ended by themselves.
func (t *turn) died(fixed []*service) string {
	for _, s := range slices.Concat(fixed, t.services) {
		if s.running.ended() {
			return fmt.Sprintf("service %s ended by itself: %s", s.config.Name, exitText(s.running.state))
		}
	}
	return ""
}

// stage has the services run with a level's settings: it starts them, or starts them afresh when settings changed.
func (e *engine) stage(ctx context.Context, t *turn, level *Level) error {
	var settings map[string]string
	if level != nil {
		settings = level.Settings
	}
	if t.scene != nil && maps.Equal(settings, t.settings) {
		return nil
	}
	e.endServices(t)
	if err := e.placeServices(ScopeBlock, t.facts.Services); err != nil {
		return errStopped{err}
	}
	scene, err := e.file.variantScene(e.layout, t.facts, level)
	if err != nil {
		return errStopped{err}
	}
	t.scene, t.settings = scene, settings
	t.services, err = e.startServices(ctx, ScopeBlock, scene, t.dir)
	if err != nil {
		return errStopped{err}
	}
	if died := t.died(e.fixed); died != "" {
		return errStopped{errors.New(died)}
	}
	return nil
}

// endServices stops what the turn started and keeps the record of it.
func (e *engine) endServices(t *turn) {
	stopServices(t.services)
	for _, s := range t.services {
		t.record.Services = append(t.record.Services, s.about)
	}
	t.services = nil
}

// level runs one load. The error is of type errStopped or the context's; what went wrong with the load itself is in the
// record.
func (e *engine) level(ctx context.Context, t *turn, name string, load Load) (*LevelRun, error) {
	cooldown, err := e.cool(ctx)
	if err != nil {
		return nil, err
	}
	record := &LevelRun{Name: name, File: name + ResultSuffix, Cooldown: cooldown}
	command, err := e.command(t, record, load)
	if err != nil {
		return nil, errStopped{err}
	}
	host := e.file.loadHost(load)
	stop, err := e.watchHosts(ctx, t, host, &command)
	defer stop()
	if err != nil {
		return nil, errStopped{err}
	}
	record.Command = result.RedactArgs(command)
	record.StartedAt = time.Now()
	log := t.path("load.log")
	err = run(ctx, startSpec{
		command: command, env: e.watchEnv(), directory: e.layout.source, namespace: e.network.namespace(host), log: log, signal: syscall.SIGINT,
	}, loadGrace)
	record.EndedAt = time.Now()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	record.ExitCode = exitCode(err)
	if err != nil && record.ExitCode != 1 { // 1: the SLO was missed, which is a result
		record.Error = fmt.Sprintf("%s; %s", exitText(err), logTail(log))
	}
	return record, nil
}

// command is that of `spillway load`. Its random choices are the same for all variants of a block.
func (e *engine) command(t *turn, run *LevelRun, load Load) ([]string, error) {
	arguments, err := t.scene.arguments(load)
	if err != nil {
		return nil, err
	}
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %d %s", e.manifest.Seed, t.record.Block, run.Name)
	command := append([]string{e.layout.spillway, "load"}, arguments...)
	command = append(command, "--label="+t.record.Variant, "--seed="+strconv.FormatUint(hash.Sum64()>>12|1, 10), "--out="+t.path(run.File))
	watch, err := t.scene.watched()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(watch.processes)) {
		for _, s := range slices.Concat(e.fixed, t.services) {
			if s.config.Name == watch.processes[name] {
				command = append(command, fmt.Sprintf("--watch=%s=%d", name, s.running.pid))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(watch.databases)) {
		command = append(command, fmt.Sprintf("--watch-db=%s=%s", name, watch.databases[name]))
	}
	return command, nil
}
