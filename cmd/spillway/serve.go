package main

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

type serveCmd struct {
	File     string `arg:"" optional:"" help:"Configuration (YAML). Without one: the built-in freight app."`
	Listen   string `help:"Public listener, host:port."`
	Admin    string `help:"Admin listener, host:port."`
	Database string `help:"Database URL: postgres://…, mysql://… or sqlite:PATH." env:"SPILLWAY_DATABASE"`
	Redis    string `help:"Redis URL: redis://…" env:"SPILLWAY_REDIS"`
	Data     string `help:"Directory of everything Spillway writes."`
}

// Help is shown below the flags.
func (serveCmd) Help() string {
	return `Flags win over the file. Without a file and a database, the freight app is created on embedded SQLite in the data directory and served.

Examples:
  spillway serve
  spillway serve spillway.yaml --listen 0.0.0.0:8080
  spillway serve --database postgres://app@db/freight`
}

// Run serves until the process is told to stop.
func (c *serveCmd) Run(env *environment) error {
	cfg, demo, err := c.load()
	if err != nil {
		return err
	}
	env.log, err = newLogger(cfg.Log, env.stderr)
	if err != nil {
		return err
	}
	if c.File == "" && len(cfg.Streams) == 0 {
		env.log.Warn("orders and positions are not taken: other hosts reach this listener and there is no key; write `spillway config print` into a file and give it keys")
	}
	a := &app{env: env, cfg: cfg, demo: demo, builtIn: c.File == "", stores: stores{
		pool: database.Pool(cfg.Pool), log: env.log, open: make(map[string]*store),
	}}
	defer a.close()
	if cfg.Popups.Path != "" {
		defer oneThreadMore()()
	}
	if err := a.run(); err != nil && !stopped(env.ctx, err) {
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
func (c *serveCmd) load() (cfg config.Config, demo bool, err error) {
	if c.File == "" {
		cfg = builtInConfig()
	} else if cfg, err = loadConfig(c.File); err != nil {
		return cfg, false, err
	}
	set := func(flag string, field *string) {
		if flag != "" {
			*field = flag
		}
	}
	set(c.Listen, &cfg.Listen)
	set(c.Admin, &cfg.Admin.Listen)
	set(c.Database, (*string)(&cfg.Database))
	set(c.Redis, (*string)(&cfg.Redis))
	set(c.Data, &cfg.Data)
	if c.File == "" && cfg.Database != "" {
		cfg.Popups = config.DefaultPopups() // one process of a database may keep them, and they make tables in it
	}
	if c.File == "" && cfg.OpenToOthers() {
		cfg.Streams = nil
	}
	if err := cfg.Validate(checkDatabases, checkStatements, checkStreams, checkPopups); err != nil {
		return cfg, false, usageError{err}
	}
	if cfg.Database == "" {
		cfg.Database = config.Secret("sqlite:" + filepath.Join(cfg.Data, "spillway.db"))
		demo = c.File == ""
	}
	return cfg, demo, nil
}

// newLogger returns the process's logger.
func newLogger(cfg config.Log, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, usageError{fmt.Errorf("log level %q: want debug, info, warn or error", cfg.Level)}
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}
