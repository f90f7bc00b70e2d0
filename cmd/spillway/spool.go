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
type spoolFlags struct {
	Config string `help:"Configuration (YAML) of the server, with its data directory, and the address and the token of its admin listener." placeholder:"FILE"`
	Data   string `help:"Data directory, as of serve; default: the one in the configuration, or spillway-data." placeholder:"DIR"`
	Admin  string `help:"Admin listener of the server, host:port or unix:PATH, if the spool is on another machine."`
	Popups bool   `help:"The popups' event log, popups.spool, instead of the streams' spool."`
}

// spoolFilter says which dead letters a subcommand is about.
type spoolFilter struct {
	Stream string `help:"Of this stream only." placeholder:"PATH"`
	Reason string `help:"Of dead letters, only those with this text in their reason." placeholder:"TEXT"`
}

func (f spoolFilter) filter() spool.Filter { return spool.Filter{Stream: f.Stream, Reason: f.Reason} }

// run runs a subcommand on the spool, and gives its error the exit code.
func (f spoolFlags) run(env *environment, work func(spool.Command) error) error {
	c, data, err := app.SpoolCommand(app.SpoolOptions(f), env.stdout)
	if err != nil {
		return err
	}
	err = work(c)
	var remaining spool.Remaining
	switch {
	case errors.Is(err, fs.ErrNotExist):
		users := "streams with ack: spool"
		if f.Popups {
			users = "popups with store: memory"
		}
		return exit.UsageError(fmt.Errorf("there is no spool in %s: serve creates one for %s; name its data directory with --data", data, users))
	case errors.Is(err, spool.ErrOrder):
		return exit.UsageError(err)
	case errors.As(err, &remaining):
		return exit.FailedError(err)
	}
	return err
}

type spoolStatusCmd struct {
	spoolFlags
	JSON bool `help:"Print one JSON document."`
}

// Help is shown below the flags.
func (spoolStatusCmd) Help() string {
	return `A server may be running meanwhile; it tells what each drain does, and which records belong to no stream. For each stream: the groups and records that wait to be drained, their bytes, the age of the oldest, and the dead letters, which are records that the database refused. The exit code is 1 while there are dead letters.

Examples:
  spillway spool status
  spillway spool status --data /var/lib/spillway --json`
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

// Help is shown below the flags.
func (spoolExportCmd) Help() string {
	return `A server may be running meanwhile. Each line is a record: {"stream","sequence","accepted_at","record"}, with --dead also "id" and "reason", and "in_doubt" if the database may have it. A payload that is not a record of a stream is base64.

Examples:
  spillway spool export > waiting.ndjson
  spillway spool export --dead --stream /positions`
}

// Run prints records.
func (c *spoolExportCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Export(env.ctx, c.filter(), c.Dead) })
}

type spoolRetryCmd struct {
	spoolFlags
	spoolFilter
	InDoubt    bool `help:"Also the dead letters that the database may have."`
	GroupBytes int  `help:"Bytes per row of the file, as spool.group_bytes; a running server uses its own." default:"1048576"`
}

// Help is shown below the flags.
func (spoolRetryCmd) Help() string {
	return `A server may be running: then the command has it put them back, over its admin listener. The dead letters go behind what waits, in their order and without their idempotency keys, and are drained once more. A record that the database refuses again becomes a dead letter again.

A dead letter in doubt may be in the database already: compare before you put it back with --in-doubt.

Exit codes: 0 all were put back; 1 some are left.

Examples:
  spillway spool retry --stream /positions
  spillway spool retry --config spillway.yaml --in-doubt`
}

// Run puts dead letters back.
func (c *spoolRetryCmd) Run(env *environment) error {
	if c.GroupBytes < 1 {
		return exit.UsageError(errors.New("--group-bytes must be at least 1"))
	}
	return c.run(env, func(on spool.Command) error {
		on.GroupBytes = c.GroupBytes
		return on.Retry(env.ctx, c.filter(), c.InDoubt)
	})
}

type spoolDiscardCmd struct {
	spoolFlags
	spoolFilter
	Yes bool `help:"Delete them; without it they are only counted."`
}

// Help is shown below the flags.
func (spoolDiscardCmd) Help() string {
	return `A server may be running: then the command has it delete them, over its admin listener. Export the dead letters before: they are acknowledged records, and this is their last copy.

Example:
  spillway spool export --dead > dead.ndjson && spillway spool discard --yes`
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

// Help is shown below the flags.
func (spoolMoveCmd) Help() string {
	return `A stream that was removed, or whose path has changed, leaves records in the spool that no stream drains: spool status, /readyz and the log name them. The command gives them, and the dead letters, to another stream, whose columns must fit. A server may be running: it then drains them at once.

Example:
  spillway spool move /orders /v2/orders --config spillway.yaml`
}

// Run moves records.
func (c *spoolMoveCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Move(env.ctx, c.From, c.To) })
}

type spoolRepairCmd struct {
	spoolFlags
	Yes bool `help:"Repair; without it only show what is lost."`
}

// Help is shown below the flags.
func (spoolRepairCmd) Help() string {
	return `Stop the server first. The command reads every group that waits. What can be read goes into a new file, with an empty group in place of each one that cannot, so that the drain continues. What is left of damaged groups becomes dead letters. The old file is kept. Nothing changes without --yes.

Exit codes: 0 nothing is wrong, or it was repaired; 1 something is wrong and --yes was not given.

Examples:
  spillway spool repair
  spillway spool repair --yes
  spillway spool repair --popups --yes`
}

// Run shows what is damaged, and repairs it with --yes.
func (c *spoolRepairCmd) Run(env *environment) error {
	return c.run(env, func(on spool.Command) error { return on.Repair(env.ctx, c.Yes) })
}
