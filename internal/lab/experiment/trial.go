package experiment

import (
	"context"
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

	"spillway/internal/lab/result"
	"spillway/internal/progress"
)

// loadGrace is what a load gets to write its file when the run is stopped.
const loadGrace = 15 * time.Second

// trial is a variant's trial while it goes on.
type trial struct {
	record   Trial
	facts    *VariantFacts
	dir      string
	data     *templateData
	settings map[string]string // of the level that the services were started for
	services []*service        // of scope block
	say      func(level string)
	task     *progress.Task
}

func (t *trial) path(name string) string { return filepath.Join(t.dir, name) }

// errStopped is a reason to end the run: what is wrong will be wrong in the next trial too, or the user stopped it.
type errStopped struct{ error }

func (e errStopped) Unwrap() error { return e.error }

// trial runs a variant's trial and writes its record. The error is of type errStopped when the run must end.
func (e *engine) trial(ctx context.Context, block, position int, plan TrialPlan) error {
	t, err := e.newTrial(block, position, plan)
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
	if writeErr := replaceJSON(t.path(TrialFile), &t.record); writeErr != nil {
		return errStopped{writeErr}
	}
	return err
}

// steps counts the levels of a trial, and the search for the peak as one more.
func (e *engine) steps(plan TrialPlan) int64 {
	n := int64(len(plan.Levels))
	if e.file.Peak != nil {
		n++
	}
	return n
}

func (e *engine) newTrial(block, position int, plan TrialPlan) (*trial, error) {
	i := slices.IndexFunc(e.plan.Variants, func(v VariantFacts) bool { return v.Name == plan.Variant })
	if i < 0 {
		return nil, fmt.Errorf("the plan names %s, which is no variant", plan.Variant)
	}
	t := &trial{facts: &e.plan.Variants[i], dir: e.trialDir(block, plan.Variant)}
	t.record = Trial{Block: block, Variant: plan.Variant, Position: position, StartedAt: time.Now(), Services: []ServiceRun{}, Levels: []LevelRun{}}
	for _, s := range e.fixed {
		t.record.Services = append(t.record.Services, s.about)
	}
	t.say = func(level string) { _ = e.saveState(block, plan.Variant, level, "") } // for people; the records tell --resume
	return t, makeFolder(t.dir, "")
}

// levels runs the levels of a trial. Failures of one level are in its record and do not keep the others from running.
func (e *engine) levels(ctx context.Context, t *trial, names []string) error {
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
func (t *trial) died(fixed []*service) string {
	for _, s := range slices.Concat(fixed, t.services) {
		if s.running.ended() {
			return fmt.Sprintf("service %s ended by itself: %s", s.config.Name, exitText(s.running.state))
		}
	}
	return ""
}

// stage has the services run with a level's settings: it starts them, or starts them afresh when settings changed.
func (e *engine) stage(ctx context.Context, t *trial, level *Level) error {
	var settings map[string]string
	if level != nil {
		settings = level.Settings
	}
	if t.data != nil && maps.Equal(settings, t.settings) {
		return nil
	}
	e.endServices(t)
	if err := e.placeServices(ScopeBlock, t.facts.Services); err != nil {
		return errStopped{err}
	}
	data, err := e.file.variantData(e.layout, t.facts, level)
	if err != nil {
		return errStopped{err}
	}
	t.data, t.settings = data, settings
	t.services, err = e.startServices(ctx, ScopeBlock, data, t.dir)
	if err != nil {
		return errStopped{err}
	}
	if died := t.died(e.fixed); died != "" {
		return errStopped{errors.New(died)}
	}
	return nil
}

// endServices stops what the trial started and keeps the record of it.
func (e *engine) endServices(t *trial) {
	stopServices(t.services)
	for _, s := range t.services {
		t.record.Services = append(t.record.Services, s.about)
	}
	t.services = nil
}

// level runs one load. The error is of type errStopped or the context's; what went wrong with the load itself is in the
// record.
func (e *engine) level(ctx context.Context, t *trial, name string, load Load) (*LevelRun, error) {
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
func (e *engine) command(t *trial, run *LevelRun, load Load) ([]string, error) {
	arguments, err := t.data.arguments(load)
	if err != nil {
		return nil, err
	}
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %d %s", e.manifest.Seed, t.record.Block, run.Name)
	command := append([]string{e.layout.spillway, "load"}, arguments...)
	command = append(command, "--label="+t.record.Variant, "--seed="+strconv.FormatUint(hash.Sum64()>>12|1, 10), "--out="+t.path(run.File))
	watch, err := t.data.watched()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(watch.processes)) {
		for _, s := range slices.Concat(e.fixed, t.services) {
			if s.config.Name == watch.processes[name] {
				command = append(command, "--watch="+name+"="+s.running.watchSpec())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(watch.databases)) {
		command = append(command, fmt.Sprintf("--watch-db=%s=%s", name, watch.databases[name]))
	}
	return command, nil
}

// loadHost returns the host that a load comes from, "" for this one.
func (f *File) loadHost(load Load) string {
	if load.Host == "" && len(f.Hosts) > 0 {
		return f.Hosts[0].Name
	}
	return load.Host
}

// arguments are those of `spillway load`, filled in; the URL stands first.
func (s *templateData) arguments(load Load) ([]string, error) {
	if load.URL == "" {
		return nil, s.file.mistake("load", "url is missing: what is loaded")
	}
	url, err := s.text(s.file.pathOf("url", load.URL), load.URL, s.values)
	if err != nil {
		return nil, err
	}
	arguments := []string{url}
	for _, flag := range load.list() {
		value, err := s.text(s.file.pathOf(flag.key, flag.value), flag.value, s.values)
		if err != nil {
			return nil, err
		}
		switch flag.key {
		case "http2", "insecure":
			if value == "true" {
				arguments = append(arguments, "--"+flag.key)
			}
			continue
		case "body_file", "requests_file":
			if !filepath.IsAbs(value) {
				value = filepath.Join(s.layout.source, value)
			}
		}
		arguments = append(arguments, "--"+strings.ReplaceAll(flag.key, "_", "-")+"="+value)
	}
	return arguments, nil
}

// flag is one flag of a load, as written.
type flag struct{ key, value string }

// list returns the flags that a load gives, repeated ones one by one; neither the URL nor the host is one.
func (l Load) list() []flag {
	var flags []flag
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("yaml")
		if key == "url" || key == "host" {
			continue
		}
		switch value := v.Field(i).Interface().(type) {
		case string:
			if value != "" {
				flags = append(flags, flag{key, value})
			}
		case []string:
			for _, one := range value {
				flags = append(flags, flag{key, one})
			}
		}
	}
	return flags
}

// flags are the same for the manifest; values of a repeated flag are divided by newlines.
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

// watchPort is where the watch of a host is read; hosts have nothing else there.
const watchPort = 9191

// watchGrace is what a watch gets to end.
const watchGrace = 5 * time.Second

// watchHosts starts a watch in every host but the one that the load comes from, which the load watches itself, and has
// the load read them. The watches end with stop, which is never nil.
func (e *engine) watchHosts(ctx context.Context, t *trial, host string, command *[]string) (stop func(), err error) {
	var watches []*running
	stop = func() {
		for _, w := range watches {
			w.stop(watchGrace)
		}
	}
	for _, name := range e.network.names {
		if name == host || !e.file.Watch.any() {
			continue
		}
		address := fmt.Sprintf("%s:%d", e.layout.address(name), watchPort)
		w, err := start(startSpec{
			command: []string{e.layout.spillway, "watch", "--listen=" + address}, env: e.watchEnv(),
			directory: e.temp, namespace: e.network.namespace(name), log: filepath.Join(t.dir, "watch-"+name+".log"), signal: syscall.SIGINT,
		})
		if err != nil {
			return stop, fmt.Errorf("watch host %s: %w", name, err)
		}
		watches = append(watches, w)
		if err := awaitPort(ctx, e.network.namespace(host), address, w); err != nil {
			return stop, fmt.Errorf("watch host %s: %w; %s", name, err, logTail(w.spec.log))
		}
		*command = append(*command, fmt.Sprintf("--watch-from=http://%s", address))
	}
	return stop, nil
}

// watchEnv gives a watch and its reader their token, which a command line would show.
func (e *engine) watchEnv() []string { return []string{"SPILLWAY_WATCH_TOKEN=" + e.token} }

// any says whether anything is watched.
func (w *Watch) any() bool { return w.Processes == nil || len(w.Processes)+len(w.Databases) > 0 }

// awaitPort waits until a process accepts connections.
func awaitPort(ctx context.Context, namespace, address string, r *running) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		conn, err := dial(ctx, namespace, address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-r.done:
			return fmt.Errorf("it ended: %s", exitText(r.state))
		case <-ctx.Done():
			return err
		case <-poll.C:
		}
	}
}
