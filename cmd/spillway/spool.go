package main

import (
	"errors"
	"fmt"
	"io/fs"

	"spillway/internal/exit"
	"spillway/internal/serve/app"
	"spillway/internal/serve/spool"
)

type spoolCmd struct {
	Status  spoolStatusCmd  `cmd:"" help:"Show what waits in the spool, and its dead letters."`
	Export  spoolExportCmd  `cmd:"" help:"Print what waits, or the dead letters, one JSON object per line."`
	Retry   spoolRetryCmd   `cmd:"" help:"Put dead letters back, to be drained once more."`
	Discard spoolDiscardCmd `cmd:"" help:"Delete dead letters."`
	Move    spoolMoveCmd    `cmd:"" help:"Give what a stream has left in the spool to another stream."`
	Repair  spoolRepairCmd  `cmd:"" help:"Show what is missing or damaged in the spool, and let the drain continue behind it."`
}

// spoolFlags say which spool a subcommand is about.
type spoolFlags struct{ app.SpoolOptions }

// spoolFilter says which dead letters a subcommand is about.
type spoolFilter struct {
	Stream string `help:"Of this stream only." placeholder:"PATH"`
	Reason string `help:"Of dead letters, only those with this text in their reason." placeholder:"TEXT"`
}

func (f spoolFilter) filter() spool.Filter { return spool.Filter{Stream: f.Stream, Reason: f.Reason} }

// run runs a subcommand on the spool, and gives its error the exit code.
func (f spoolFlags) run(env *environment, work func(spool.Command) error) error {
	c, data, err := app.SpoolCommand(f.SpoolOptions, env.stdout)
	if err != nil {
		return err
	}
	err = work(c)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		users := "streams with ack: spool"
		if f.Popups {
			users = "popups with store: memory"
		}
		return exit.UsageError(fmt.Errorf("there is no spool in %s: serve creates one for %s; name its data directory with --data", data, users))
	case errors.Is(err, spool.ErrOrder):
		return exit.UsageError(err)
	case errors.As(err, new(spool.Remaining)):
		return exit.FailedError(err)
	}
	return err
}

type spoolStatusCmd struct {
	spoolFlags
	JSON bool `help:"Print one JSON document."`
}

// Run prints what waits in the spool.
func (c *spoolStatusCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Status(env.ctx, c.JSON) })
}

type spoolExportCmd struct {
	spoolFlags
	spoolFilter
	Dead bool `help:"The dead letters, each with the reason."`
}

// Run prints records.
func (c *spoolExportCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Export(env.ctx, c.filter(), c.Dead) })
}

type spoolRetryCmd struct {
	spoolFlags
	spoolFilter
	InDoubt bool `help:"Also the dead letters that the database may have."`
}

// Run puts dead letters back.
func (c *spoolRetryCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Retry(env.ctx, c.filter(), c.InDoubt) })
}

type spoolDiscardCmd struct {
	spoolFlags
	spoolFilter
	Yes bool `help:"Delete them; without it they are only counted."`
}

// Run deletes dead letters.
func (c *spoolDiscardCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Discard(env.ctx, c.filter(), c.Yes) })
}

type spoolMoveCmd struct {
	From string `arg:"" help:"Path of the stream that has left the records."`
	To   string `arg:"" help:"Path of the stream that gets them."`
	spoolFlags
}

// Run moves records.
func (c *spoolMoveCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Move(env.ctx, c.From, c.To) })
}

type spoolRepairCmd struct {
	spoolFlags
	Yes bool `help:"Repair; without it only show what is lost."`
}

// Run shows what is damaged, and repairs it with --yes.
func (c *spoolRepairCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Repair(env.ctx, c.Yes) })
}
