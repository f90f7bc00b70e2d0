package main

import (
	"context"

	"github.com/alecthomas/kong"

	"spillway"
	"spillway/internal/exit"
	"spillway/internal/lab/experiment"
)

// experimentCmd compares variants of a system as a file describes.
type experimentCmd struct{ experiment.Flags }

// Run runs the experiment.
func (c *experimentCmd) Run(env *environment) error {
	command := experiment.Command{
		Flags: c.Flags, Tool: spillway.Version(), Args: env.args, Stdout: env.stdout, Stderr: env.stderr, CheckLoad: checkLoad,
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
	if err := c.CheckDatabases(); err != nil {
		return err
	}
	c.Watched = c.Processes
	return c.Mistake(ctx, nil)
}
