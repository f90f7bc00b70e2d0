package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// Spec lists what to watch, as written on the command line. The host, its TCP and
// its accept queues are always watched.
type Spec struct {
	Processes []string `group:"Most used" name:"watch" sep:"none" placeholder:"NAME=SPEC" help:"Watch a process and its descendants: app=:8080 (the process that listens there), db=1234 (a pid), web=unit:nginx, db=unix:/run/mysqld/mysqld.sock. Repeatable."`
	Databases []string `group:"Most used" name:"watch-db" sep:"none" placeholder:"[NAME=]URL" help:"Watch the statistics of a postgres://, mysql:// or redis:// server. Repeatable."`
	Remotes   []string `group:"Watch" name:"watch-from" sep:"none" placeholder:"URL" help:"Include what 'spillway watch --listen' sees on another host: http://db-1:9191. Repeatable."`
	Token     string   `group:"Watch" name:"watch-token" env:"SPILLWAY_WATCH_TOKEN" placeholder:"TOKEN" help:"Token for the other hosts."`
}

// Empty reports whether the specification lists nothing.
func (s *Spec) Empty() bool { return len(s.Processes)+len(s.Databases)+len(s.Remotes) == 0 }

// Set is the watcher of this host and the watches of others, on one clock. A nil
// Set watches nothing.
type Set struct {
	start   time.Time // time 0 of the samples
	local   *Watcher
	remotes []*RemoteWatch
}

// OpenSet opens everything in the specification. ports are more ports whose accept
// queues are watched. The caller calls Close.
func OpenSet(ctx context.Context, spec Spec, log *slog.Logger, ports ...int) (*Set, error) {
	s := &Set{start: time.Now()}
	if err := s.open(ctx, spec, log, ports); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Set) open(ctx context.Context, spec Spec, log *slog.Logger, ports []int) error {
	samplers, err := spec.samplers(log, ports)
	s.local = New(s.start, samplers...)
	if err != nil {
		return err
	}
	for _, from := range spec.Remotes {
		remote, err := Remote(ctx, from, spec.Token, s.start)
		if err != nil {
			return exit.UsageError(fmt.Errorf("--watch-from %s: %w", result.RedactURL(from), err))
		}
		s.remotes = append(s.remotes, remote)
	}
	return nil
}

// CheckDatabases returns what is wrong with the URLs of databases; it does not connect.
func (s *Spec) CheckDatabases() error {
	for _, text := range s.Databases {
		name, address := splitDatabase(text)
		sampler, err := Database(name, address)
		if err != nil {
			return exit.UsageError(fmt.Errorf("--watch-db %s: %w", name, err))
		}
		sampler.Close()
	}
	return nil
}

// samplers opens the samplers of this host. It skips a subject that may not be
// read, with a warning. A subject that does not exist is a mistake of the user.
func (s *Spec) samplers(log *slog.Logger, ports []int) ([]*Sampler, error) {
	samplers := []*Sampler{Host()}
	var errs []error
	add := func(flag string, sampler *Sampler, err error) {
		switch {
		case err == nil:
			samplers = append(samplers, sampler)
		case errors.Is(err, fs.ErrPermission):
			log.Warn("not watched: not permitted", "watch", flag, "error", err)
		default:
			errs = append(errs, exit.UsageError(fmt.Errorf("%s: %w", flag, err)))
		}
	}
	targets, named, err := s.targets()
	if err != nil {
		return samplers, err
	}
	for _, t := range targets {
		sampler, err := Process(t)
		add("--watch "+t.Name+"="+t.Spec, sampler, err)
	}
	for _, text := range s.Databases {
		name, address := splitDatabase(text)
		sampler, err := Database(name, address)
		add("--watch-db "+name, sampler, err)
	}
	tcp, err := TCP()
	add("TCP", tcp, err)
	if len(named) == 0 || len(named) < len(targets) {
		ports = nil // a process may listen on any port
	} else {
		ports = append(ports, named...)
	}
	listeners, err := Listeners(ports...)
	add("accept queues", listeners, err)
	if len(errs) > 0 {
		return samplers, errs[0] // one line
	}
	return samplers, nil
}

// targets parses the processes and returns the ports that name them.
func (s *Spec) targets() (targets []ProcessTarget, ports []int, err error) {
	var names []string
	for _, text := range s.Processes {
		t, err := ParseProcess(text)
		if err != nil {
			return nil, nil, exit.UsageError(fmt.Errorf("--watch: %w", err))
		}
		if slices.Contains(names, t.Name) {
			return nil, nil, exit.UsageError(fmt.Errorf("--watch %s: two processes are called %s: give each its own name", text, t.Name))
		}
		names = append(names, t.Name)
		targets = append(targets, t)
		if t.port != 0 {
			ports = append(ports, t.port)
		}
	}
	return targets, ports, nil
}

var namedDatabase = regexp.MustCompile(`^([A-Za-z0-9_.-]+)=(.*)$`)

// splitDatabase splits NAME=URL. The default name is the URL's scheme.
func splitDatabase(text string) (name, address string) {
	if m := namedDatabase.FindStringSubmatch(text); m != nil {
		return m[1], m[2]
	}
	if u, err := url.Parse(text); err == nil && u.Scheme != "" {
		return u.Scheme, text
	}
	return "database", text
}

// Watches returns the records that precede the samples.
func (s *Set) Watches() []result.Watch {
	if s == nil {
		return nil
	}
	all := []result.Watch{s.local.Watch()}
	for _, remote := range s.remotes {
		all = append(all, remote.Watch())
	}
	return all
}

// Run passes every sample to emit until stop is called, which returns emit's first
// error. Times count from zero. emit is called from several goroutines.
func (s *Set) Run(ctx context.Context, zero time.Time, emit func(*result.Sample) error) (stop func() error) {
	if s == nil {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	shift := zero.Sub(s.start).Seconds()
	shifted := func(sample *result.Sample) error {
		sample.At -= shift
		if sample.Gap != nil {
			sample.Gap.From -= shift
		}
		return emit(sample)
	}
	errs := make([]error, 1+len(s.remotes))
	var running sync.WaitGroup
	running.Go(func() { errs[0] = s.local.Run(ctx, shifted) })
	for i, remote := range s.remotes {
		running.Go(func() { errs[1+i] = remote.Run(ctx, shifted) })
	}
	return func() error {
		s.settle()
		cancel()
		running.Wait()
		return errors.Join(errs...)
	}
}

// How long to wait at the end for samples of other hosts at the last border.
const (
	settleLimit = time.Second
	settleEvery = 5 * time.Millisecond
)

// settle waits until the samples of all marks so far have arrived from other hosts.
func (s *Set) settle() {
	again := time.Tick(settleEvery)
	now := time.Now()
	for slices.ContainsFunc(s.remotes, func(r *RemoteWatch) bool { return !r.settled(now) }) && time.Since(now) < settleLimit {
		<-again
	}
}

// Mark makes every host read all its samplers once at a time, now or later. It returns at once.
func (s *Set) Mark(at time.Time) {
	if s == nil {
		return
	}
	s.local.Mark(at)
	for _, remote := range s.remotes {
		remote.Mark(at)
	}
}

// Close closes every sampler and every connection to other hosts.
func (s *Set) Close() {
	if s == nil {
		return
	}
	s.local.Close()
	for _, remote := range s.remotes {
		remote.Close()
	}
}
