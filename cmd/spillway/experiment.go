package main

import (
	"context"

	"github.com/alecthomas/kong"

	"spillway"
	"spillway/internal/exit"
	"spillway/internal/lab/experiment"
	"spillway/internal/lab/watch"
)

// experimentCmd compares variants of a system as a file describes.
type experimentCmd struct {
	File string `arg:"" placeholder:"FILE" help:"The experiment."`

	Check   bool     `help:"Print the plan and its duration; start nothing."`
	Quick   bool     `help:"Use the file's quick block: ranges only, no verdicts."`
	Only    []string `placeholder:"VARIANT" help:"Run only these variants and their baselines."`
	Seed    uint64   `placeholder:"N" help:"Seed for the order of variants; 0 draws one. It is in the results."`
	Out     string   `short:"o" placeholder:"DIR" help:"Directory of the results. Default: NAME-DATE-TIME."`
	Resume  string   `placeholder:"DIR" help:"Continue a run that was interrupted, with its options."`
	Data    string   `default:"spillway-data" placeholder:"DIR" help:"Directory for the data of services with 'keep'."`
	Install bool     `help:"Install missing Debian packages first (requires root)."`
	JSON    bool     `name:"json" help:"Print the study as one JSON document on standard output."`
}

// Help is shown below the flags.
func (experimentCmd) Help() string {
	return `Variants differ in one declared factor. They run in every block, in random order, with fresh processes. Every process that is started is stopped, also after an error. docs/experiments.md describes the file.

Examples:
  spillway experiment experiments/freight-ladder/experiment.yaml --check
  spillway experiment experiments/freight-ladder/experiment.yaml --quick -o ladder
  spillway experiment experiments/freight-ladder/experiment.yaml --resume ladder`
}

// Run runs the experiment.
func (c *experimentCmd) Run(env *environment) error {
	command := experiment.Command{
		File: c.File, Check: c.Check, Quick: c.Quick, Only: c.Only, Seed: c.Seed, Out: c.Out, Resume: c.Resume, Data: c.Data, Install: c.Install,
		JSON: c.JSON,
		Tool: spillway.Version(), Args: env.args, Stdout: env.stdout, Stderr: env.stderr, CheckLoad: checkLoad,
	}
	code, err := command.Execute(env.ctx)
	if err == nil && code != exit.OK {
		panic(exitPanic(code)) // the inner process has printed the reason
	}
	return err
}

// checkLoad returns what `spillway load` would say about its arguments before it connects.
func checkLoad(ctx context.Context, args []string) error {
	var c loadCmd
	parser, err := kong.New(&c, kong.Name("load"), kong.NoDefaultHelp())
	if err != nil {
		panic("bug: " + err.Error())
	}
	command, err := parser.Parse(args)
	if err != nil {
		return err
	}
	if err := checkFilled(command); err != nil {
		return err
	}
	spec := watch.Spec(c.watchFlags)
	if err := spec.CheckDatabases(); err != nil {
		return err
	}
	o := c.options()
	return o.Mistake(ctx, nil)
}
