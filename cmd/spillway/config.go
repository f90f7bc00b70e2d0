package main

import (
	"errors"
	"fmt"

	"spillway/internal/serve/app"
	"spillway/internal/serve/config"
	"spillway/internal/yaml"
)

type configCmd struct {
	Check  configCheckCmd  `cmd:"" help:"Report every mistake in a configuration."`
	Print  configPrintCmd  `cmd:"" help:"Print the effective configuration, secrets left out."`
	Schema configSchemaCmd `cmd:"" help:"Print the JSON Schema of the configuration, for editors."`
}

type configCheckCmd struct {
	File string `arg:"" help:"Configuration (YAML)."`
}

// Help is shown below the flags.
func (configCheckCmd) Help() string {
	return `Reads the file as serve does, with the environment and the files that it names for secrets, and opens no database. Mistakes are one line each, FILE:LINE:COLUMN: KEY: what is wrong; then the exit code is 2.

Example:
  spillway config check spillway.yaml`
}

// Run prints that the file is in order, or all that is not.
func (c *configCheckCmd) Run(env *environment) error {
	_, err := app.LoadConfig(c.File)
	var mistakes yaml.Errors
	if errors.As(err, &mistakes) {
		fmt.Fprintln(env.stderr, mistakes.Error())
		return usageError{fmt.Errorf("%s: %s", c.File, counted(len(mistakes), "mistake"))}
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "%s: ok\n", c.File)
	return err
}

type configPrintCmd struct {
	File string `arg:"" optional:"" help:"Configuration (YAML). Without one: the built-in freight app."`
}

// Help is shown below the flags.
func (configPrintCmd) Help() string {
	return `Prints every key with the value in use, defaults filled in. Passwords and tokens are ***.

Examples:
  spillway config print spillway.yaml
  spillway config print > spillway.yaml`
}

// Run prints the configuration as YAML.
func (c *configPrintCmd) Run(env *environment) error {
	cfg := app.BuiltIn()
	if c.File != "" {
		var err error
		if cfg, err = app.LoadConfig(c.File); err != nil {
			return err
		}
	}
	return cfg.Print(env.stdout)
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

// counted writes "1 mistake" or "2 mistakes".
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
