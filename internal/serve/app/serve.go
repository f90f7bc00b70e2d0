// Package app builds the server from its configuration. It opens the databases, creates the
// engines, and starts and stops the listeners in order. It is the only package that imports
// adapters.
package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/exit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/front"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/server"
)

// Options are the flags of spillway serve. Empty fields do not change the configuration.
type Options struct {
	File     string // configuration file; without one, the freight app is served
	Listen   string // public listener, host:port
	Admin    string // admin listener, host:port
	Database string // URL
	Redis    string // URL
	Data     string // directory of all files that Spillway writes
	Strict   bool   // a part that does not start at once ends the process
	Version  string // of the program, for its metric
	Revision string // of its source

	Stdout, Stderr io.Writer

	defaults config.Config // at the start of the process; see addThreads
}

// Serve runs the server until ctx ends, then drains it and returns nil. A mistake in the
// options or the configuration is an exit.UsageError. So is a part that its database rejects,
// if Options.Strict is set; otherwise the part is started again and again while the others are
// served. SIGHUP reloads the configuration file.
func Serve(ctx context.Context, o Options) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	passed, err := passedSockets()
	if err != nil {
		return err
	}
	if passed.public != nil {
		o.Listen = addressOf(passed.public)
	}
	if passed.admin != nil {
		o.Admin = addressOf(passed.admin)
	}
	o.defaults = config.Default()
	cfg, demo, err := o.load()
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(logLevel(cfg.Log))
	log := slog.New(logHandler(cfg.Log, level, o.Stderr))
	if o.File == "" && len(cfg.Streams) == 0 {
		log.Warn("orders and positions are disabled, because other hosts can reach this listener and no keys are set; save the output of " +
			"`spillway config print` and add keys")
	}
	metrics := prometheus.NewRegistry()
	a := &app{
		ctx: ctx, log: log, level: level, options: o, hangups: hangups, cfg: cfg, demo: demo, sockets: passed, metrics: metrics,
		leftovers: make(map[string]*leftover), started: time.Now(),
		stores: stores{pool: cfg.Pool, log: log, open: make(map[config.Address]*store)},
	}
	a.accessLog = server.NewAccessLog(o.Stderr, func(w io.Writer) slog.Handler { return logHandler(cfg.Log, level, w) })
	defer a.accessLog.Close()
	defer a.close()
	loops, undo := addThreads(&cfg)
	defer undo()
	a.loops = loops
	if err := a.run(); ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // it was told to stop
}

// addThreads raises GOMAXPROCS until undo is called, and returns the number of event loops, -1 for none. Each of them has a thread
// that no other work takes while it waits. Popup events reach the database in bursts, and the database may share the cores: with
// one more thread, responses need not wait for one that the kernel has preempted (experiments/popup).
func addThreads(cfg *config.Config) (loops int, undo func()) {
	before := runtime.GOMAXPROCS(0)
	switch loops = cfg.HTTP.Loops; {
	case !front.Supported || cfg.HTTP.TLSCert != "":
		loops = -1
	case loops == 0:
		loops = before
	}
	more := max(loops, 0)
	if cfg.Popups.Path != "" {
		more++
	}
	runtime.GOMAXPROCS(before + more)
	return loops, func() { runtime.GOMAXPROCS(before) }
}

// load returns the configuration of file and flags, and whether it is the freight app on SQLite
// in the data directory, which is then created.
func (o Options) load() (cfg config.Config, demo bool, err error) {
	if o.File == "" {
		cfg = BuiltIn()
	} else if cfg, err = load(o.File, o.defaults, false); err != nil {
		return cfg, false, err
	}
	set := func(flag string, field *string) {
		if flag != "" {
			*field = flag
		}
	}
	set(o.Listen, &cfg.Listen)
	set(o.Admin, &cfg.Admin.Listen)
	set(o.Database, (*string)(&cfg.Database))
	set(o.Redis, (*string)(&cfg.Redis))
	set(o.Data, &cfg.Data)
	if o.File == "" && cfg.Database != "" {
		cfg.Popups = config.Defaults[config.Popups]() // popups create tables, and only one process per database may serve them from memory
	}
	if o.File == "" && cfg.OpenToOthers() {
		cfg.Streams = nil
	}
	if err := cfg.Validate(checks()...); err != nil {
		return cfg, false, exit.UsageError(err)
	}
	if cfg.Database == "" {
		cfg.Database = config.Address("sqlite:" + filepath.Join(cfg.Data, "spillway.db"))
		demo = cfg.Demo
	}
	return cfg, demo, nil
}

// logHandler returns what writes lines of the log to w.
func logHandler(cfg config.Log, level *slog.LevelVar, w io.Writer) slog.Handler {
	options := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}

// logLevel returns the level of a valid configuration.
func logLevel(cfg config.Log) (level slog.Level) {
	_ = level.UnmarshalText([]byte(cfg.Level))
	return level
}

// delayStop returns when no connection has to be accepted any more: after http.stop_delay, at a second signal or when running has
// ended. Until then load balancers find out from readiness that the process stops, and responses close their connections. why is
// the cause of the stop; nil: it has ended by itself.
func (a *app) delayStop(running context.Context, why error) {
	delay := a.stopDelay(why)
	if delay == 0 {
		return
	}
	a.public.PrepareStop()
	a.log.Info("stopping: connections are accepted until load balancers have seen it; a second signal ends the wait", "stop_delay", delay)
	wait, end := signal.NotifyContext(running, os.Interrupt, syscall.SIGTERM)
	defer end()
	queue.Sleep(wait, delay)
}

// stopDelay returns the delay of a stop with a cause. Only SIGTERM has one: at an interrupt, somebody waits.
func (a *app) stopDelay(why error) time.Duration {
	if why == nil || !strings.HasPrefix(why.Error(), syscall.SIGTERM.String()) { // the cause of signal.NotifyContext
		return 0
	}
	return a.cfg.StopDelay()
}
