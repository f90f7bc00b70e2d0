package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/watch"
)

// watchFlags say what is watched. The host, its TCP and the accept queues are
// watched whenever anything is.
type watchFlags struct {
	Watch      []string `group:"Watch" sep:"none" placeholder:"NAME=SPEC" help:"Watch a process with all its descendants: app=:8080 (who listens there), db=1234 (a pid), web=/run/nginx.pid, db=unit:postgresql. May be repeated."`
	WatchDB    []string `group:"Watch" name:"watch-db" sep:"none" placeholder:"[NAME=]URL" help:"Watch a postgres://, mysql:// or redis:// server from inside. May be repeated."`
	WatchFrom  []string `group:"Watch" name:"watch-from" sep:"none" placeholder:"URL" help:"Join what 'spillway watch --listen' sees on another host: http://db-1:9191. May be repeated."`
	WatchToken string   `group:"Watch" name:"watch-token" env:"SPILLWAY_WATCH_TOKEN" placeholder:"TOKEN" help:"That the other hosts ask for."`
}

// given reports whether anything is to be watched.
func (f *watchFlags) given() bool { return len(f.Watch)+len(f.WatchDB)+len(f.WatchFrom) > 0 }

// watchers are the samplers of this host and the watches of others, on one
// clock. The zero value watches nothing.
type watchers struct {
	start   time.Time // time 0 of what they tell
	local   *watch.Watcher
	remotes []*watch.RemoteWatch
}

// open prepares everything that the flags name. ports are further ones whose
// accept queues are of interest. Whoever calls it calls close.
func (f *watchFlags) open(ctx context.Context, log *slog.Logger, ports ...int) (w *watchers, err error) {
	w = &watchers{start: time.Now()}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	samplers, err := f.samplers(log, ports)
	w.local = watch.New(w.start, samplers...)
	if err != nil {
		return nil, err
	}
	for _, from := range f.WatchFrom {
		remote, err := watch.Remote(ctx, from, f.WatchToken, w.start)
		if err != nil {
			return nil, usageError{fmt.Errorf("--watch-from %s: %w", result.RedactURL(from), err)}
		}
		w.remotes = append(w.remotes, remote)
	}
	return w, nil
}

// samplers opens those of this host. What may not be read is said and left out;
// what is not there is the user's mistake.
func (f *watchFlags) samplers(log *slog.Logger, ports []int) ([]*watch.Sampler, error) {
	samplers := []*watch.Sampler{watch.Host()}
	add := func(flag string, s *watch.Sampler, err error) error {
		switch {
		case err == nil:
			samplers = append(samplers, s)
			return nil
		case errors.Is(err, fs.ErrPermission):
			log.Warn("not watched: not permitted", "watch", flag, "error", err)
			return nil
		}
		return usageError{fmt.Errorf("%s: %w", flag, err)}
	}
	var errs []error
	targets, all, err := f.targets()
	errs = append(errs, err)
	for _, t := range targets {
		s, err := watch.Process(t)
		errs = append(errs, add("--watch "+t.Name+"="+t.Spec, s, err))
	}
	for _, text := range f.WatchDB {
		name, address := splitDatabase(text)
		s, err := watch.Database(name, address)
		errs = append(errs, add("--watch-db "+name, s, err))
	}
	if err := errors.Join(errs...); err != nil {
		return samplers, usageError{firstOf(errs)}
	}
	tcp, err := watch.TCP()
	errs = append(errs, add("TCP", tcp, err))
	ports = append(ports, f.ports()...)
	if all {
		ports = nil
	}
	listeners, err := watch.Listeners(ports...)
	errs = append(errs, add("accept queues", listeners, err))
	return samplers, errors.Join(errs...)
}

// firstOf is the first error: a mistake takes one line.
func firstOf(errs []error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	return errs[i]
}

// targets reads --watch. all says that a process may listen on any port: it is
// not named by one.
func (f *watchFlags) targets() (targets []watch.ProcessTarget, all bool, err error) {
	all = len(f.Watch) == 0
	seen := make(map[string]bool)
	for _, text := range f.Watch {
		t, err := watch.ParseProcess(text)
		if err != nil {
			return nil, false, usageError{fmt.Errorf("--watch: %w", err)}
		}
		if seen[t.Name] {
			return nil, false, usageError{fmt.Errorf("--watch %s: two processes are called %s: give each its own name", text, t.Name)}
		}
		seen[t.Name] = true
		targets = append(targets, t)
		all = all || portOf(t.Spec) == 0
	}
	return targets, all, nil
}

// ports are those that --watch names.
func (f *watchFlags) ports() []int {
	var ports []int
	for _, text := range f.Watch {
		if _, spec, _ := strings.Cut(text, "="); portOf(spec) != 0 {
			ports = append(ports, portOf(spec))
		}
	}
	return ports
}

// portOf is the port of ":8080" or "HOST:8080", else 0.
func portOf(spec string) int {
	colon := strings.LastIndexByte(spec, ':')
	if colon < 0 {
		return 0
	}
	port, err := strconv.ParseUint(spec[colon+1:], 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

var namedDatabase = regexp.MustCompile(`^([A-Za-z0-9_.-]+)=(.*)$`)

// splitDatabase takes NAME=URL apart. Without a name it is the URL's scheme.
func splitDatabase(text string) (name, address string) {
	if m := namedDatabase.FindStringSubmatch(text); m != nil {
		return m[1], m[2]
	}
	if u, err := url.Parse(text); err == nil && u.Scheme != "" {
		return u.Scheme, text
	}
	return "database", text
}

// watches are the records that go before the samples.
func (w *watchers) watches() []result.Watch {
	if w == nil {
		return nil
	}
	all := []result.Watch{w.local.Watch()}
	for _, remote := range w.remotes {
		all = append(all, remote.Watch())
	}
	return all
}

// run tells emit of every sample, counted from zero, until stop is called, which
// returns emit's first error. emit is called from several goroutines.
func (w *watchers) run(ctx context.Context, zero time.Time, emit func(*result.Sample) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	shift := zero.Sub(w.start).Seconds()
	tell := func(s *result.Sample) error {
		s.At -= shift
		return emit(s)
	}
	errs := make([]error, 1+len(w.remotes))
	var running sync.WaitGroup
	running.Go(func() { errs[0] = w.local.Run(ctx, tell) })
	for i, remote := range w.remotes {
		running.Go(func() { errs[1+i] = remote.Run(ctx, tell) })
	}
	return func() error {
		cancel()
		running.Wait()
		return errors.Join(errs...)
	}
}

func (w *watchers) close() {
	if w == nil {
		return
	}
	w.local.Close()
	for _, remote := range w.remotes {
		remote.Close()
	}
}
