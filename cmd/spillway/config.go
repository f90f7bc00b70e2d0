package main

import (
	"spillway/internal/serve/app"
	"spillway/internal/serve/config"
)

type configCmd struct {
	Check  configCheckCmd  `cmd:"" help:"Report every mistake in a configuration."`
	Print  configPrintCmd  `cmd:"" help:"Print the effective configuration without secrets."`
	Reload configReloadCmd `cmd:"" help:"Have a running server apply its configuration file."`
	Schema configSchemaCmd `cmd:"" help:"Print the JSON Schema of the configuration, for editors."`
}

type configCheckCmd struct {
	File  string `arg:"" help:"Configuration (YAML)."`
	NoEnv bool   `name:"no-env" help:"Accept environment variables and secret files that are missing."`
}

// Run reports the mistakes.
func (c *configCheckCmd) Run(env *environment) error {
	return app.CheckConfig(c.File, c.NoEnv, env.stdout, env.stderr)
}

type configPrintCmd struct {
	File string `arg:"" optional:"" help:"Configuration (YAML). Without one: the built-in freight app."`
}

// Run prints the configuration as YAML.
func (c *configPrintCmd) Run(env *environment) error { return app.PrintConfig(c.File, env.stdout) }

type configReloadCmd struct {
	File  string `arg:"" optional:"" help:"Configuration (YAML) of the server, with the address and the token of its admin listener."`
	Admin string `help:"Admin listener, host:port or unix:PATH, if it is not the one in the file."`
}

// Run has the server reload.
func (c *configReloadCmd) Run(env *environment) error {
	return app.ReloadConfig(env.ctx, c.File, c.Admin, env.stdout)
}

type configSchemaCmd struct{}

// Run prints the schema.
func (configSchemaCmd) Run(env *environment) error {
	_, err := env.stdout.Write(config.Schema())
	return err
}

type grantsCmd struct {
	File     string `arg:"" help:"Configuration (YAML)."`
	Role     string `help:"Role or user of the server, on MySQL and MariaDB USER or USER@HOST; default: the one in the database's URL, or spillway."`
	Database string `help:"URL of an administrator or the tables' owner on the configured default database." placeholder:"URL"`
}

// Run prints the statements.
func (c *grantsCmd) Run(env *environment) error {
	return app.PrintGrants(env.ctx, c.File, c.Role, c.Database, env.stdout)
}

type popupsCmd struct {
	Forget popupsForgetCmd `cmd:"" help:"Delete all that is known about a user."`
}

type popupsForgetCmd struct {
	User   string `arg:"" help:"Id of the user."`
	Config string `help:"Configuration (YAML) of the server, with the address and the token of its admin listener." placeholder:"FILE"`
	Admin  string `help:"Admin listener, host:port or unix:PATH, if it is not the one in the file."`
}

// Run forgets a user.
func (c *popupsForgetCmd) Run(env *environment) error {
	return app.ForgetUser(env.ctx, c.User, c.Config, c.Admin, env.stdout)
}
