package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
	"spillway/internal/progress"
)

// loadGrace is the time in which a load may write its file when the run is stopped.
const loadGrace = 15 * time.Second

// trial is the running trial of a variant.
type trial struct {
	record   Trial
	facts    *VariantFacts
	dir      string
	data     *templateData
	settings map[string]string // of the level that the services run with
	services []*service        // of scope block
	task     *progress.Task
}

func (t *trial) path(name string) string { return filepath.Join(t.dir, name) }

// fatalError ends the run: the next trial would fail as well, or the user stopped it.
type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

// trial runs a trial and writes its record. The error is a fatalError if the run must end.
func (e *engine) trial(ctx context.Context, block, position int, plan TrialPlan) error {
	t, err := e.newTrial(block, position, plan)
	if err != nil {
		return fatalError{err}
	}
	steps := len(plan.Levels)
	if e.file.Peak != nil {
		steps++
	}
	t.task = e.meter.Start(fmt.Sprintf("block %d of %d, %s", block, e.file.Blocks, plan.Variant), "", int64(steps))
	err = e.levels(ctx, t, plan.Levels)
	if err == nil && e.file.Peak != nil {
		t.record.Peak, err = e.searchPeak(ctx, t)
		t.task.Add(1)
	}
	if err == nil {
		err = t.died(e.fixed)
	}
	e.endServices(t)
	if ctx.Err() != nil {
		err = fatalError{errors.New("interrupted")}
	}
	t.record.EndedAt = time.Now()
	t.record.Complete = err == nil && t.record.Error == ""
	if err != nil {
		t.record.Error = e.layout.secrets.hide(err.Error())
		t.record.Interrupted = errors.As(err, new(fatalError))
	}
	t.task.End(err)
	if writeErr := replaceJSON(t.path(TrialFile), &t.record); writeErr != nil {
		return fatalError{writeErr}
	}
	return err
}

func (e *engine) newTrial(block, position int, plan TrialPlan) (*trial, error) {
	facts := find(e.plan.Variants, func(v *VariantFacts) bool { return v.Name == plan.Variant })
	if facts == nil {
		return nil, fmt.Errorf("the plan has %s, which is not a variant", plan.Variant)
	}
	t := &trial{facts: facts, dir: e.trialDir(block, plan.Variant)}
	t.record = Trial{
		Block: block, Variant: plan.Variant, Position: position, StartedAt: time.Now(), Services: []ServiceRun{},
		Levels: []LevelRun{},
	}
	for _, s := range e.fixed {
		t.record.Services = append(t.record.Services, s.record)
	}
	return t, makeFolder(t.dir, "")
}

// levels runs the levels of a trial. A failed level is recorded, and the next one runs.
func (e *engine) levels(ctx context.Context, t *trial, names []string) error {
	if len(names) == 0 {
		return e.ensureServices(ctx, t, nil)
	}
	for _, name := range names {
		level := find(e.file.Levels, func(l *Level) bool { return l.Name == name })
		if err := e.ensureServices(ctx, t, level); err != nil {
			return err
		}
		run, err := e.level(ctx, t, name, []string{"load"}, e.file.Load.with(level.Load))
		if err != nil {
			return err
		}
		t.record.Levels = append(t.record.Levels, *run)
		if run.Error != "" && t.record.Error == "" {
			t.record.Error = fmt.Sprintf("level %s: %s", name, run.Error)
		}
		t.task.Add(1)
		if err := t.died(e.fixed); err != nil {
			return err
		}
	}
	return nil
}

// died returns an error if a service has ended by itself.
func (t *trial) died(fixed []*service) error {
	for _, s := range slices.Concat(fixed, t.services) {
		if s.running.ended() {
			return fmt.Errorf("service %s ended by itself: %s", s.config.Name, exitText(s.running.state))
		}
	}
	return nil
}

// ensureServices starts the services with the settings of a level, and restarts them if the settings have changed.
func (e *engine) ensureServices(ctx context.Context, t *trial, level *Level) error {
	var settings map[string]string
	if level != nil {
		settings = level.Settings
	}
	if t.data != nil && maps.Equal(settings, t.settings) {
		return nil
	}
	e.endServices(t)
	if err := e.makeFolders(ScopeBlock, t.facts.Services); err != nil {
		return fatalError{err}
	}
	data, err := e.file.variantData(e.layout, t.facts, level)
	if err != nil {
		return fatalError{err}
	}
	t.data, t.settings = data, settings
	t.services, err = e.startServices(ctx, ScopeBlock, data, t.dir)
	if err != nil {
		return fatalError{err}
	}
	if err := t.died(e.fixed); err != nil {
		return fatalError{err}
	}
	return nil
}

// endServices stops the services of the trial and keeps their records.
func (e *engine) endServices(t *trial) {
	stopServices(t.services)
	for _, s := range t.services {
		t.record.Services = append(t.record.Services, s.record)
	}
	t.services = nil
}

// level runs `spillway load`, or `spillway peak` for a search. program is the command, with the flags that load does not give. Failures
// of the load itself are in the record; the error is a fatalError or the context's.
func (e *engine) level(ctx context.Context, t *trial, name string, program []string, load Load) (*LevelRun, error) {
	_ = e.saveState(t.record.Block, t.record.Variant, name, "") // informative: --resume uses the records
	cooldown, err := e.coolDown(ctx)
	if err != nil {
		return nil, err
	}
	record := &LevelRun{Name: name, File: name + ResultSuffix, Cooldown: cooldown}
	command, err := e.loadCommand(t, record, program, load)
	if err != nil {
		return nil, fatalError{err}
	}
	host := e.file.loadHost(load)
	stop, err := e.watchHosts(ctx, t, host, &command)
	defer stop()
	if err != nil {
		return nil, fatalError{err}
	}
	record.Command = unmarkAll(command)
	record.StartedAt = time.Now()
	log := t.path("load.log")
	hidden, _ := json.Marshal(e.layout.secrets.hidden()) // that the load must not record; texts have no error
	err = e.visit(ctx, host, startSpec{
		command: e.layout.secrets.expandAll(command), env: append(e.watchEnv(), result.RedactVariable+"="+string(hidden)),
		directory: e.layout.source, namespace: e.network.namespace(host), log: log, signal: syscall.SIGINT,
	})
	record.EndedAt = time.Now()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	record.ExitCode = exitCode(err)
	switch {
	case err == nil, record.ExitCode == exit.Failed, record.ExitCode == exit.NothingValid: // the file has the result
	case record.ExitCode == exit.Usage: // the next load would fail as well
		return nil, fatalError{exit.UsageError(fmt.Errorf("level %s: spillway %s refuses its arguments; %s", name, program[0], e.logTail(log)))}
	default:
		record.Error = fmt.Sprintf("%s; %s", exitText(err), e.logTail(log))
	}
	return record, nil
}

// loadCommand returns the command of a load. Its seed is the same for all variants of a block.
func (e *engine) loadCommand(t *trial, run *LevelRun, program []string, load Load) ([]string, error) {
	arguments, err := t.data.arguments(load)
	if err != nil {
		return nil, err
	}
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %d %s", e.manifest.Seed, t.record.Block, run.Name)
	command := slices.Concat([]string{e.layout.spillway}, program, texts(arguments))
	command = append(command, "--label="+t.record.Variant, "--seed="+strconv.FormatUint(hash.Sum64()>>12|1, 10), "--out="+t.path(run.File))
	for _, s := range slices.Concat(e.fixed, t.services) {
		if name := e.file.watchedAs(s.config.Name); name != "" {
			command = append(command, "--watch="+name+"="+s.running.watchSpec())
		}
	}
	return command, nil
}

// loadHost returns the host that generates the load, "" for this host.
func (f *File) loadHost(load Load) string {
	if load.Host == "" && len(f.Hosts) > 0 {
		return f.Hosts[0].Name
	}
	return load.Host
}

// An argument of `spillway load`, and the path of its value in the file.
type argument struct{ path, text string }

func texts(arguments []argument) []string {
	list := make([]string, len(arguments))
	for i, a := range arguments {
		list[i] = a.text
	}
	return list
}

// arguments returns the arguments of `spillway load`, filled in, the URL first. They have the databases to watch, but no process.
func (s *templateData) arguments(load Load) ([]argument, error) {
	if load.URL == "" {
		return nil, s.file.mistake("load", "needs a url")
	}
	path := s.file.pathOf("url", load.URL)
	url, err := s.reference(path, load.URL, false, s.values)
	if err != nil {
		return nil, err
	}
	arguments := []argument{{path, url}}
	for _, flag := range load.list() {
		path := s.file.pathOf(flag.key, flag.value)
		value, err := s.text(path, flag.value, s.values)
		if err == nil && flag.key == "header" { // spillway load puts in the values of references, which must not be recorded
			_, err = s.mark(path, flag.value, false)
		}
		if err != nil {
			return nil, err
		}
		text := "--" + strings.ReplaceAll(flag.key, "_", "-")
		switch {
		case !flag.isSwitch:
			arguments = append(arguments, argument{path, text + "=" + value})
		case value == "true":
			arguments = append(arguments, argument{path, text})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.file.Watch.Databases)) {
		path := "watch.databases." + name
		url, err := s.reference(path, s.file.Watch.Databases[name], false, s.values)
		if err != nil {
			return nil, err
		}
		arguments = append(arguments, argument{path, "--watch-db=" + name + "=" + url})
	}
	return arguments, nil
}

// flag is a flag of a load, as written.
type flag struct {
	key, value string
	isSwitch   bool
}

// list returns the flags of a load without URL and host. Repeated flags are separate elements.
func (l Load) list() []flag {
	var flags []flag
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		key, isSwitch := tag.Get("yaml"), tag.Get("flag") == "switch"
		if key == "url" || key == "host" {
			continue
		}
		switch value := v.Field(i).Interface().(type) {
		case string:
			if value != "" {
				flags = append(flags, flag{key, value, isSwitch})
			}
		case []string:
			for _, one := range value {
				flags = append(flags, flag{key, one, isSwitch})
			}
		}
	}
	return flags
}

// flags returns the flags for the manifest. Newlines separate the values of a repeated flag.
func (l Load) flags() map[string]string {
	flags := map[string]string{"url": l.URL}
	for _, f := range l.list() {
		if flags[f.key] != "" {
			f.value = flags[f.key] + "\n" + f.value
		}
		flags[f.key] = f.value
	}
	return flags
}

// watchPort is the port of the watch on each host.
const watchPort = 9191

// Times in which a watch has to start and may end.
const (
	watchStart = 15 * time.Second
	watchGrace = 5 * time.Second
)

// watchHosts starts a watch on every host except the one that generates the load, and adds the watches to the command of the
// load. stop ends the watches and is never nil.
func (e *engine) watchHosts(ctx context.Context, t *trial, host string, command *[]string) (stop func(), err error) {
	var watches []*running
	stop = func() {
		for _, w := range watches {
			w.stop(watchGrace)
			_ = w.spec.cgroup.remove() // the guard tries again
		}
	}
	for _, name := range e.network.names {
		if name == host || !e.file.Watch.any() {
			continue
		}
		address := fmt.Sprintf("%s:%d", e.layout.address(name), watchPort)
		group, err := e.visitor("watch", name)
		if err != nil {
			return stop, err
		}
		w, err := start(startSpec{
			command: []string{e.layout.spillway, "watch", "--listen=" + address}, env: e.watchEnv(), cgroup: group,
			directory: e.temp, namespace: e.network.namespace(name), log: filepath.Join(t.dir, "watch-"+name+".log"), signal: syscall.SIGINT,
		})
		if err != nil {
			return stop, fmt.Errorf("watch host %s: %w", name, err)
		}
		watches = append(watches, w)
		ready := func(ctx context.Context) error { return accepts(ctx, e.network.namespace(host), address) }
		if err := w.await(ctx, watchStart, ready); err != nil {
			return stop, fmt.Errorf("watch host %s: %w; %s", name, err, e.logTail(w.spec.log))
		}
		*command = append(*command, fmt.Sprintf("--watch-from=http://%s", address))
	}
	return stop, nil
}

// watchEnv passes the token of the watches, which must not be on a command line.
func (e *engine) watchEnv() []string { return []string{"SPILLWAY_WATCH_TOKEN=" + e.token} }

// any reports whether anything is watched.
func (w *Watch) any() bool { return w.Processes == nil || len(w.Processes)+len(w.Databases) > 0 }
