// Package app builds the server from its configuration: it opens the databases, makes the
// engines, and starts and stops the listeners in order. It is the only package that names
// an adapter.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"spillway/internal/database"
	"spillway/internal/serve/config"
)

// Options say what to serve. Empty fields leave the configuration as it is.
type Options struct {
	File     string // configuration file; without one, the freight app is served
	Listen   string // public listener, host:port
	Admin    string // admin listener, host:port
	Database string // URL
	Redis    string // URL
	Data     string // directory of all files that the process writes

	Stdout, Stderr io.Writer
}

// UsageError is a mistake in the options or the configuration, as opposed to a failure.
type UsageError struct{ error }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.error }

// Serve runs the server until ctx ends; then it drains and returns nil. The error is a
// UsageError if the options or the configuration are at fault.
func Serve(ctx context.Context, o Options) error {
	cfg, demo, err := o.load()
	if err != nil {
		return err
	}
	log, err := newLogger(cfg.Log, o.Stderr)
	if err != nil {
		return err
	}
	if o.File == "" && len(cfg.Streams) == 0 {
		log.Warn("orders and positions are not taken: other hosts reach this listener and there is no key; write `spillway config print` into a file and give it keys")
	}
	a := &app{
		ctx: ctx, log: log, stdout: o.Stdout, stderr: o.Stderr, cfg: cfg, demo: demo, builtIn: o.File == "",
		stores: stores{pool: database.Pool(cfg.Pool), log: log, open: make(map[string]*store)},
	}
	defer a.close()
	if cfg.Popups.Path != "" {
		defer oneThreadMore()()
	}
	if err := a.run(); err != nil && !stopped(ctx, err) {
		return err
	}
	return nil
}

// oneThreadMore has Go run on one thread more than there are cores, until undo is called;
// not where GOMAXPROCS is set. The events of popups go to a database that may share these
// cores, in bursts: a thread that the kernel takes off its core for one keeps the answers
// that wait behind it, and one that is free sends them (experiments/popup). Feeds alone,
// whose answers wait for nothing, have a longer tail with it when both cores are full.
func oneThreadMore() (undo func()) {
	if os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	cores := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(cores + 1)
	return func() { runtime.GOMAXPROCS(cores) }
}

// stopped reports whether err only says that the process was told to stop.
func stopped(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}

// load returns the configuration that file and flags make, and whether it is the
// freight app on its own SQLite.
func (o Options) load() (cfg config.Config, demo bool, err error) {
	if o.File == "" {
		cfg = BuiltIn()
	} else if cfg, err = LoadConfig(o.File); err != nil {
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
		cfg.Popups = config.DefaultPopups() // one process of a database may keep them, and they make tables in it
	}
	if o.File == "" && cfg.OpenToOthers() {
		cfg.Streams = nil
	}
	if err := cfg.Validate(checkDatabases, checkStatements, checkStreams, checkPopups); err != nil {
		return cfg, false, UsageError{err}
	}
	if cfg.Database == "" {
		cfg.Database = config.Secret("sqlite:" + filepath.Join(cfg.Data, "spillway.db"))
		demo = o.File == ""
	}
	return cfg, demo, nil
}

// newLogger returns the process's logger.
func newLogger(cfg config.Log, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, UsageError{fmt.Errorf("log level %q: want debug, info, warn or error", cfg.Level)}
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}
