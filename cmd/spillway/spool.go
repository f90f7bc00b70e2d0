package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"spillway/internal/serve/app"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/stream"
)

type spoolCmd struct {
	Status  spoolStatusCmd  `cmd:"" help:"Show what waits in the spool, and its dead letters."`
	Export  spoolExportCmd  `cmd:"" help:"Print what waits, or the dead letters, a JSON object a line."`
	Retry   spoolRetryCmd   `cmd:"" help:"Put dead letters back, to be drained once more."`
	Discard spoolDiscardCmd `cmd:"" help:"Delete dead letters."`
	Repair  spoolRepairCmd  `cmd:"" help:"Show what is missing or damaged in the spool, and let the drain go on behind it."`
}

// spoolFlags say which spool a verb is about.
type spoolFlags struct {
	Data   string `help:"Data directory, as of serve." default:"spillway-data"`
	Popups bool   `help:"The popups' event log, popups.spool, instead of the streams' spool."`
}

// path is the spool's file.
func (f spoolFlags) path() string {
	if f.Popups {
		return app.PopupSpoolPath(f.Data)
	}
	return app.SpoolPath(f.Data)
}

// inspect opens the spool to be looked at.
func (f spoolFlags) inspect() (*sqlite.SpoolFile, error) {
	file, err := sqlite.InspectSpool(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usageError{fmt.Errorf("there is no spool in %s: name the data directory of serve with --data", f.Data)}
	}
	return file, err
}

// open opens the spool to be changed, which a running server does not allow.
func (f spoolFlags) open(env *environment) (*sqlite.SpoolFile, error) {
	look, err := f.inspect()
	if err == nil {
		err = look.Close()
	}
	if err != nil {
		return nil, err
	}
	return sqlite.OpenSpool(env.ctx, f.path())
}

type spoolStatusCmd struct {
	spoolFlags
	JSON bool `help:"Print one JSON document."`
}

// Help is shown below the flags.
func (spoolStatusCmd) Help() string {
	return `A server may be running meanwhile. Each stream: the groups and records that wait to be drained, their bytes, the age of the oldest, and its dead letters: records that the database refused. The exit code is 1 while there are dead letters.

Examples:
  spillway spool status
  spillway spool status --data /var/lib/spillway --json`
}

// spoolStatus is one name of the spool.
type spoolStatus struct {
	Stream        string  `json:"stream"`
	ID            string  `json:"id"`
	Groups        int64   `json:"groups"`
	Records       int64   `json:"records"`
	Bytes         int64   `json:"bytes"`
	OldestSeconds float64 `json:"oldest_seconds"`
	Drained       uint64  `json:"drained_sequence"`
	Last          uint64  `json:"last_sequence"`
	DeadLetters   int64   `json:"dead_letters"`
}

// Run prints where the spool stands.
func (c *spoolStatusCmd) Run(env *environment) (err error) {
	file, err := c.inspect()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	heads, err := file.Heads(env.ctx)
	if err != nil {
		return err
	}
	all, dead := []spoolStatus{}, int64(0)
	for _, h := range heads {
		s := spoolStatus{
			Stream: h.Name, ID: fmt.Sprintf("%x", h.ID), Groups: h.Groups, Records: h.Rows, Bytes: h.Bytes,
			Drained: h.Drained, Last: h.Last, DeadLetters: h.Dead,
		}
		if h.Groups > 0 && !h.Oldest.IsZero() {
			s.OldestSeconds = time.Since(h.Oldest).Seconds()
		}
		dead += h.Dead
		all = append(all, s)
	}
	if err := c.print(env, all); err != nil {
		return err
	}
	if dead > 0 {
		which := ""
		if c.Popups {
			which = " --popups"
		}
		return failedError{fmt.Errorf("%s: spillway spool export%s --dead shows them", counted(int(dead), "dead letter"), which)}
	}
	return nil
}

func (c *spoolStatusCmd) print(env *environment, all []spoolStatus) error {
	if c.JSON {
		out := json.NewEncoder(env.stdout)
		out.SetIndent("", "  ")
		return out.Encode(map[string]any{"streams": all})
	}
	fmt.Fprintf(env.stdout, "%-24s %10s %10s %12s %12s %8s\n", "stream", "groups", "records", "bytes", "oldest", "dead")
	for _, s := range all {
		oldest := "-"
		if s.Groups > 0 {
			oldest = time.Duration(s.OldestSeconds * float64(time.Second)).Round(time.Millisecond).String()
		}
		fmt.Fprintf(env.stdout, "%-24s %10d %10d %12d %12s %8d\n", s.Stream, s.Groups, s.Records, s.Bytes, oldest, s.DeadLetters)
	}
	return nil
}

type spoolExportCmd struct {
	spoolFlags
	Stream string `help:"Of this stream only." placeholder:"PATH"`
	Dead   bool   `help:"The dead letters, each with the reason."`
}

// Help is shown below the flags.
func (spoolExportCmd) Help() string {
	return `A server may be running meanwhile. A line is a record: {"stream","sequence","accepted_at","record"}, and "reason" with --dead. What is no record of a stream is base64.

Examples:
  spillway spool export > waiting.ndjson
  spillway spool export --dead --stream /positions`
}

// spoolLine is one line of an export.
type spoolLine struct {
	Stream     string          `json:"stream"`
	Sequence   uint64          `json:"sequence"`
	AcceptedAt time.Time       `json:"accepted_at"`
	Reason     string          `json:"reason,omitempty"`
	Record     json.RawMessage `json:"record"`
}

// Run prints records.
func (c *spoolExportCmd) Run(env *environment) (err error) {
	file, err := c.inspect()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	out := json.NewEncoder(env.stdout)
	out.SetEscapeHTML(false)
	records := stream.SpooledJSON
	if c.Popups {
		records = app.PopupEventJSON
	}
	lines := func(l spoolLine, payload []byte) error {
		records, err := records(payload)
		for _, l.Record = range records {
			if err == nil {
				err = out.Encode(l)
			}
		}
		return err
	}
	if c.Dead {
		return file.Dead(env.ctx, c.Stream, func(l stream.DeadLetter) error {
			return lines(spoolLine{Stream: l.Name, Sequence: l.Sequence, AcceptedAt: l.At.UTC(), Reason: l.Reason}, l.Payload)
		})
	}
	return file.Waiting(env.ctx, c.Stream, func(g stream.Group) error {
		for _, e := range g.Entries {
			if err := lines(spoolLine{Stream: g.Name, Sequence: g.Sequence, AcceptedAt: e.At.UTC()}, e.Payload); err != nil {
				return err
			}
		}
		return nil
	})
}

type spoolRetryCmd struct {
	spoolFlags
	Stream string `help:"Of this stream only." placeholder:"PATH"`
}

// Help is shown below the flags.
func (spoolRetryCmd) Help() string {
	return `Stop the server first. The dead letters go behind what waits, in their order and without their idempotency keys; the next start drains them. What the database refuses again becomes a dead letter again.

Example:
  spillway spool retry --stream /positions`
}

// Run puts dead letters back.
func (c *spoolRetryCmd) Run(env *environment) (err error) {
	file, err := c.open(env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	requeued, left, err := file.Retry(env.ctx, c.Stream)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.stdout, "%s put back\n", counted(requeued, "dead letter"))
	if left > 0 {
		return failedError{fmt.Errorf("%s cannot be tried again, being damaged", counted(left, "dead letter"))}
	}
	return nil
}

type spoolDiscardCmd struct {
	spoolFlags
	Stream string `help:"Of this stream only." placeholder:"PATH"`
	Yes    bool   `help:"Delete them; without it they are only counted."`
}

// Help is shown below the flags.
func (spoolDiscardCmd) Help() string {
	return `Stop the server first. Export them before: they are acknowledged records, and this is their last copy.

Example:
  spillway spool export --dead > dead.ndjson && spillway spool discard --yes`
}

// Run deletes dead letters.
func (c *spoolDiscardCmd) Run(env *environment) (err error) {
	file, err := c.open(env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if c.Yes {
		n, err := file.Discard(c.Stream)
		if err == nil {
			fmt.Fprintf(env.stdout, "%s deleted\n", counted(n, "dead letter"))
		}
		return err
	}
	n := 0
	err = file.Dead(env.ctx, c.Stream, func(stream.DeadLetter) error {
		n++
		return nil
	})
	if err != nil || n == 0 {
		return err
	}
	return failedError{fmt.Errorf("%s would be deleted: export them, then say --yes", counted(n, "dead letter"))}
}

type spoolRepairCmd struct {
	spoolFlags
	Yes bool `help:"Repair; without it only show what is lost."`
}

// Help is shown below the flags.
func (spoolRepairCmd) Help() string {
	return `Stop the server first. Every group that waits is read. What can be read goes into a new file, with an empty group in the place of each one that cannot, so that the drain goes on; what is there of damaged groups becomes dead letters; the old file is kept beside. Nothing is changed without --yes.

Exit codes: 0 nothing is wrong, or it was repaired; 1 something is wrong and --yes was not given.

Examples:
  spillway spool repair
  spillway spool repair --yes
  spillway spool repair --popups --yes`
}

// Run shows what is damaged, and repairs it if told to.
func (c *spoolRepairCmd) Run(env *environment) error {
	file, err := c.inspect()
	if err != nil {
		return err
	}
	flaws, err := file.Flaws(env.ctx)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	for _, f := range flaws {
		fmt.Fprintln(env.stdout, flawText(f))
	}
	switch {
	case len(flaws) == 0:
		_, err := fmt.Fprintln(env.stdout, "nothing is missing or damaged")
		return err
	case !c.Yes:
		return failedError{fmt.Errorf("the drain stops at %s: say --yes to give them up and let it go on", counted(len(flaws), "flaw"))}
	}
	kept, flaws, err := sqlite.RepairSpool(env.ctx, c.path(), time.Now())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "repaired, %s given up; the old file is %s\n", counted(len(flaws), "flaw"), kept)
	return err
}

// flawText says what is lost.
func flawText(f sqlite.Flaw) string {
	groups := fmt.Sprintf("group %d", f.First)
	if f.Last > f.First {
		groups = fmt.Sprintf("groups %d to %d", f.First, f.Last)
	}
	text := fmt.Sprintf("%s: %s: %s", f.Name, groups, f.Reason)
	if len(f.Kept) > 0 {
		text += fmt.Sprintf(", %d bytes are kept as a dead letter", len(f.Kept))
	}
	if !f.After.IsZero() {
		text += ", accepted after " + f.After.UTC().Format(time.RFC3339Nano)
	}
	if !f.Before.IsZero() {
		text += ", not later than " + f.Before.UTC().Format(time.RFC3339Nano)
	}
	return text
}
