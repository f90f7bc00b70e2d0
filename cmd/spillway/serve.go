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

// Run serves until the process is told to stop.
func (c *serveCmd) Run(env *environment) error {
	return app.Serve(env.ctx, app.Options{
		File: c.File, Listen: c.Listen, Admin: c.Admin, Database: c.Database, Redis: c.Redis, Data: c.Data, Strict: c.Strict,
		Version: spillway.Version(), Revision: revisionText(), Stdout: env.stdout, Stderr: env.stderr,
	})
}

type readyCmd struct {
	File  string `arg:"" optional:"" help:"Configuration (YAML) of the server, with the address of its admin listener."`
	Admin string `help:"Admin listener, host:port or unix:PATH, if it is not the one in the file."`
}

// Run prints whether the server is ready.
func (c *readyCmd) Run(env *environment) error {
	return app.CheckReady(env.ctx, c.File, c.Admin, env.stdout)
}
