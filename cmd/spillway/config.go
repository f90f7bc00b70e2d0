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

// Help is shown below the flags.
func (configCheckCmd) Help() string {
	return `Reads the file as serve does, with the environment and the files that it names for secrets. It opens no database. Each mistake is one line, FILE:LINE:COLUMN: KEY: MESSAGE; then the exit code is 2. With --no-env, values whose variable or file is missing are not checked.

Examples:
  spillway config check spillway.yaml
  spillway config check --no-env spillway.yaml`
}

// Run reports the mistakes.
func (c *configCheckCmd) Run(env *environment) error {
	return app.CheckConfig(c.File, c.NoEnv, env.stdout, env.stderr)
}

type configPrintCmd struct {
	File string `arg:"" optional:"" help:"Configuration (YAML). Without one: the built-in freight app."`
}

// Help is shown below the flags.
func (configPrintCmd) Help() string {
	return `Prints every key with its effective value, defaults included. Passwords and tokens are ***.

Examples:
  spillway config print spillway.yaml
  spillway config print > spillway.yaml`
}

// Run prints the configuration as YAML.
func (c *configPrintCmd) Run(env *environment) error { return app.PrintConfig(c.File, env.stdout) }

type configReloadCmd struct {
	File  string `arg:"" optional:"" help:"Configuration (YAML) of the server, with the address and the token of its admin listener."`
	Admin string `help:"Admin listener, host:port or unix:PATH, if it is not the one in the file."`
}

// Help is shown below the flags.
func (configReloadCmd) Help() string {
	return `Does what SIGHUP does, and waits for the outcome. Feeds, queries, keys (also those of reads), CORS origins, trusted proxies, the access log and the log level can change. If anything else has changed, or a new feed or query does not start, nothing is applied, the reason is printed, and the exit code is 1.

Examples:
  spillway config reload spillway.yaml
  spillway config reload --admin 127.0.0.1:9090`
}

// Run has the server reload.
func (c *configReloadCmd) Run(env *environment) error {
	return app.ReloadConfig(env.ctx, c.File, c.Admin, env.stdout)
}

type configSchemaCmd struct{}

// Help is shown below the flags.
func (configSchemaCmd) Help() string {
	return `An editor with a YAML language server checks and completes a file that starts with
  # yaml-language-server: $schema=spillway.schema.json

Example:
  spillway config schema > spillway.schema.json`
}

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

// Help is shown below the flags.
func (grantsCmd) Help() string {
	return `Prints the statements that create the role and Spillway's own tables and grant what the file needs: SELECT on the tables that feeds, queries and popups read, INSERT on those of streams, and the rights on Spillway's own tables. It asks the databases and changes nothing. Run the statements as an administrator; then serve with the role.

Examples:
  spillway grants spillway.yaml --role app
  spillway grants spillway.yaml --role app --database postgres://postgres@db/app | psql postgres://postgres@db/app`
}

// Run prints the statements.
func (c *grantsCmd) Run(env *environment) error {
	return app.PrintGrants(env.ctx, c.File, c.Role, c.Database, env.stdout)
}
