package main

import (
	"spillway/internal/serve/app"
	"spillway/internal/serve/config"
)

type configCmd struct {
	Check  configCheckCmd  `cmd:"" help:"Report every mistake in a configuration."`
	Print  configPrintCmd  `cmd:"" help:"Print the effective configuration without secrets."`
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
