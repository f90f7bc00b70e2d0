package main

import (
	"errors"
	"fmt"
	"io/fs"

	"spillway/internal/exit"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

type spoolCmd struct {
	Status  spoolStatusCmd  `cmd:"" help:"Show what waits in the spool, and its dead letters."`
	Export  spoolExportCmd  `cmd:"" help:"Print what waits, or the dead letters, one JSON object per line."`
	Retry   spoolRetryCmd   `cmd:"" help:"Put dead letters back, to be drained once more."`
	Discard spoolDiscardCmd `cmd:"" help:"Delete dead letters."`
	Repair  spoolRepairCmd  `cmd:"" help:"Show what is missing or damaged in the spool, and let the drain continue behind it."`
}

// spoolFlags say which spool a subcommand is about.
type spoolFlags struct {
	Data   string `help:"Data directory, as of serve." default:"spillway-data"`
	Popups bool   `help:"The popups' event log, popups.spool, instead of the streams' spool."`
}

// on returns the subcommands on the spool.
func (f spoolFlags) on(env *environment) spool.Command {
	if f.Popups {
		return spool.Command{Path: popup.SpoolPath(f.Data), Flags: " --popups", Out: env.stdout, Decode: popup.EventJSON}
	}
	return spool.Command{Path: spool.Path(f.Data), Out: env.stdout, Decode: stream.SpooledJSON}
}

// exit gives the error of a subcommand its exit code.
func (f spoolFlags) exit(err error) error {
	var remaining spool.Remaining
	switch {
	case errors.Is(err, fs.ErrNotExist):
		users := "streams with ack: spool"
		if f.Popups {
			users = "popups with store: memory"
		}
		return exit.UsageError(fmt.Errorf("there is no spool in %s: serve creates one for %s; name its data directory with --data", f.Data,
			users))
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
	return `A server may be running meanwhile. For each stream: the groups and records that wait to be drained, their bytes, the age of the oldest, and the dead letters, which are records that the database refused. The exit code is 1 while there are dead letters.

Examples:
  spillway spool status
  spillway spool status --data /var/lib/spillway --json`
}

// Run prints what waits in the spool.
func (c *spoolStatusCmd) Run(env *environment) error {
	return c.exit(c.on(env).Status(env.ctx, c.JSON))
}

type spoolExportCmd struct {
	spoolFlags
	Stream string `help:"Of this stream only." placeholder:"PATH"`
	Dead   bool   `help:"The dead letters, each with the reason."`
}

// Help is shown below the flags.
func (spoolExportCmd) Help() string {
	return `A server may be running meanwhile. Each line is a record: {"stream","sequence","accepted_at","record"}, with --dead also "reason", and "in_doubt" if the database may have it. A payload that is not a record of a stream is base64.

Examples:
  spillway spool export > waiting.ndjson
  spillway spool export --dead --stream /positions`
}

// Run prints records.
func (c *spoolExportCmd) Run(env *environment) error {
	return c.exit(c.on(env).Export(env.ctx, c.Stream, c.Dead))
}

type spoolRetryCmd struct {
	spoolFlags
	Stream     string `help:"Of this stream only." placeholder:"PATH"`
	InDoubt    bool   `help:"Also the dead letters that the database may have."`
	GroupBytes int    `help:"Bytes per row of the file, as spool.group_bytes; a running server uses its own." default:"1048576"`
}

// Help is shown below the flags.
func (spoolRetryCmd) Help() string {
	return `A server may be running: it then puts them back itself, at the command's request. The dead letters go behind what waits, in their order and without their idempotency keys, and are drained once more. A record that the database refuses again becomes a dead letter again.

A dead letter in doubt may be in the database already: compare before you put it back with --in-doubt.

Exit codes: 0 all were put back; 1 some are left.

Examples:
  spillway spool retry --stream /positions
  spillway spool retry --in-doubt`
}

// Run puts dead letters back.
func (c *spoolRetryCmd) Run(env *environment) error {
	if c.GroupBytes < 1 {
		return exit.UsageError(errors.New("--group-bytes must be at least 1"))
	}
	command := c.on(env)
	command.GroupBytes = c.GroupBytes
	return c.exit(command.Retry(env.ctx, c.Stream, c.InDoubt))
}

type spoolDiscardCmd struct {
	spoolFlags
	Stream string `help:"Of this stream only." placeholder:"PATH"`
	Yes    bool   `help:"Delete them; without it they are only counted."`
}

// Help is shown below the flags.
func (spoolDiscardCmd) Help() string {
	return `A server may be running: it then deletes them itself, at the command's request. Export the dead letters before: they are acknowledged records, and this is their last copy.

Example:
  spillway spool export --dead > dead.ndjson && spillway spool discard --yes`
}

// Run deletes dead letters.
func (c *spoolDiscardCmd) Run(env *environment) error {
	return c.exit(c.on(env).Discard(env.ctx, c.Stream, c.Yes))
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
	return c.exit(c.on(env).Repair(env.ctx, c.Yes))
}
