package main

import (
	"spillway"
	"spillway/internal/serve/app"
)

type serveCmd struct {
	File     string `arg:"" optional:"" help:"Configuration (YAML). Without one: the built-in freight app."`
	Listen   string `help:"Public listener, host:port or unix:PATH."`
	Admin    string `help:"Admin listener, host:port or unix:PATH."`
	Database string `help:"Database URL: postgres://…, mysql://… or sqlite:PATH." env:"SPILLWAY_DATABASE"`
	Redis    string `help:"Redis URL: redis://…" env:"SPILLWAY_REDIS"`
	Data     string `help:"Directory of everything Spillway writes."`
	Strict   bool   `help:"Exit if a feed, a query, a stream or the popups cannot start, instead of serving the rest: with 2 if the database rejects it, else with 3."`
}

// Help is shown below the flags.
func (serveCmd) Help() string {
	return `Flags override the file. SIGHUP applies a changed file. Without a file and a database, the freight app is created on embedded SQLite in the data directory and served. So it is with a file that config print has printed without one.

Examples:
  spillway serve
  spillway serve spillway.yaml --listen 0.0.0.0:8080
  spillway serve spillway.yaml --strict
  spillway serve --database postgres://app@db/freight`
}

// Run serves until the process is told to stop.
func (c *serveCmd) Run(env *environment) error {
	return app.Serve(env.ctx, app.Options{
		File: c.File, Listen: c.Listen, Admin: c.Admin, Database: c.Database, Redis: c.Redis, Data: c.Data, Strict: c.Strict,
		Version: spillway.Version(), Revision: revisionText(), Stdout: env.stdout, Stderr: env.stderr,
	})
}
