package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	"spillway/internal/serve/queue"
)

// Command is the subcommands of spillway spool on one file. Each prints its result to Out
// and returns an error that wraps fs.ErrNotExist if there is no spool, and a Remaining if
// something is left to do. While a process has the spool open, Remote does what changes it, but
// for Repair, which then returns ErrInUse.
type Command struct {
	Path   string // "": only Remote knows the file
	Flags  string // that the user must repeat to reach this spool
	Out    io.Writer
	Decode func(payload []byte) ([]json.RawMessage, error) // returns the records of an entry
	Remote Remote                                          // nil: no process has the spool open
}

// Remote is the process that has a spool open.
type Remote interface {
	Status(ctx context.Context) ([]NameStats, error)
	Export(ctx context.Context, filter Filter, dead bool, out io.Writer) error
	Do(ctx context.Context, o Order) (Done, error)
}

// Remaining is the error of a subcommand that did its work and found more to do.
type Remaining string

// Error says what is left.
func (r Remaining) Error() string { return string(r) }

// remaining returns a Remaining about n things; nil if n is 0.
func remaining(n int, noun, text string) error {
	if n == 0 {
		return nil
	}
	return Remaining(counted(n, noun) + text)
}

// Status prints what waits under each name, as a table or as one JSON document. Dead letters
// remain to do.
func (c Command) Status(ctx context.Context, asJSON bool) error {
	names, dead := []NameStats{}, 0
	err := errors.ErrUnsupported
	if c.Remote != nil {
		names, err = c.Remote.Status(ctx)
	}
	if err != nil && (c.Path != "" || c.Remote == nil) { // the process may require a token: the file tells nearly as much
		err = c.inspect(func(f *file) error {
			heads, err := f.heads(ctx)
			names = []NameStats{}
			for _, h := range heads {
				names = append(names, h.stats())
			}
			return err
		})
	}
	if err != nil {
		return err
	}
	for _, s := range names {
		dead += int(s.Dead)
	}
	if err := c.printStatus(names, asJSON); err != nil {
		return err
	}
	return remaining(dead, "dead letter", fmt.Sprintf(": spillway spool export%s --dead shows them", c.Flags))
}

func (c Command) printStatus(names []NameStats, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(c.Out)
		out.SetIndent("", "  ")
		return out.Encode(map[string]any{"streams": names})
	}
	fmt.Fprintf(c.Out, "%-24s %10s %10s %12s %12s %8s %8s %s\n", "stream", "groups", "records", "bytes", "oldest", "dead", "in doubt", "drain")
	for _, s := range names {
		oldest := "-"
		if s.Groups > 0 {
			oldest = time.Duration(s.OldestSeconds * float64(time.Second)).Round(time.Millisecond).String()
		}
		drain := string(s.State)
		switch {
		case s.MovedTo != "":
			drain = "moved to " + s.MovedTo + " " + drain
		case s.State == DrainNone && (s.Groups > 0 || s.Dead > 0):
			drain = "none: spillway spool move " + s.Name + " /PATH gives it to a stream"
		}
		fmt.Fprintf(c.Out, "%-24s %10d %10d %12d %12s %8d %8d %s\n", s.Name, s.Groups, s.Rows, s.Bytes, oldest, s.Dead, s.InDoubt, drain)
	}
	return nil
}

// line is one line of an export.
type line struct {
	ID         int64           `json:"id,omitempty"` // of a dead letter
	Stream     string          `json:"stream"`
	Sequence   uint64          `json:"sequence"`
	AcceptedAt time.Time       `json:"accepted_at"`
	Reason     string          `json:"reason,omitempty"`
	InDoubt    bool            `json:"in_doubt,omitempty"`
	Record     json.RawMessage `json:"record"`
}

// Export prints one JSON object per record that waits, or per dead letter.
func (c Command) Export(ctx context.Context, filter Filter, dead bool) error {
	if c.Path == "" {
		return c.Remote.Export(ctx, filter, dead, c.Out)
	}
	return c.inspect(func(f *file) error { return f.export(ctx, filter, dead, c.Decode, c.Out) })
}

// Export writes one JSON object per record that waits under filter.Stream, or per dead letter.
func (s *Spool) Export(ctx context.Context, filter Filter, dead bool, decode func([]byte) ([]json.RawMessage, error), to io.Writer) error {
	return s.file.export(ctx, filter, dead, decode, to)
}

func (f *file) export(ctx context.Context, filter Filter, dead bool, decode func([]byte) ([]json.RawMessage, error), to io.Writer) error {
	out := json.NewEncoder(to)
	out.SetEscapeHTML(false)
	write := func(l line, payload []byte) error {
		records, err := decode(payload)
		for _, l.Record = range records {
			if err == nil {
				err = out.Encode(l)
			}
		}
		return err
	}
	if dead {
		return f.deadLetters(ctx, filter, func(l queue.DeadLetter) error {
			return write(line{l.ID, l.Name, l.Sequence, l.At, l.Reason, l.InDoubt, nil}, l.Payload)
		})
	}
	return f.waiting(ctx, filter.Stream, func(g queue.Group) error {
		for _, e := range g.Entries {
			if err := write(line{Stream: g.Name, Sequence: g.Sequence, AcceptedAt: e.At.UTC()}, e.Payload); err != nil {
				return err
			}
		}
		return nil
	})
}

// Retry puts dead letters behind what waits, without their idempotency keys. Damaged groups
// remain, and unless inDoubt is set, what the database may have.
func (c Command) Retry(ctx context.Context, filter Filter, inDoubt bool) error {
	done, err := c.do(ctx, Order{Work: WorkRetry, Filter: filter})
	if err == nil && inDoubt {
		before := done.Letters
		filter.InDoubt = &inDoubt
		done, err = c.do(ctx, Order{Work: WorkRetry, Filter: filter})
		done.Letters += before
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "%s put back\n", counted(done.Letters, "dead letter"))
	err = errors.Join(
		remaining(done.Damaged, "dead letter", " cannot be retried, because the groups are damaged"),
		remaining(done.InDoubt, "dead letter", " may be in the database: compare, then discard them or say --in-doubt"))
	if err != nil {
		return Remaining(err.Error())
	}
	return nil
}

// Discard deletes dead letters. Unless confirmed they are only counted, and remain.
func (c Command) Discard(ctx context.Context, filter Filter, confirmed bool) error {
	done, err := c.do(ctx, Order{Work: WorkDiscard, Filter: filter, DryRun: !confirmed})
	switch {
	case err != nil:
		return err
	case !confirmed:
		return remaining(done.Letters, "dead letter", " would be deleted: export them, then say --yes")
	}
	_, err = fmt.Fprintf(c.Out, "%s deleted\n", counted(done.Letters, "dead letter"))
	return err
}

// Move gives what waits under a name, and its dead letters, to another stream.
func (c Command) Move(ctx context.Context, from, to string) error {
	done, err := c.do(ctx, Order{Work: WorkMove, Filter: Filter{Stream: from}, To: to, Waiting: true})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.Out, "%s and %s of %s belong to %s\n",
		counted(int(done.Records), "record"), counted(done.Letters, "dead letter"), from, to)
	return err
}

// do executes an order: Remote does it, or this process.
func (c Command) do(ctx context.Context, o Order) (done Done, err error) {
	if c.Remote != nil {
		return c.Remote.Do(ctx, o)
	}
	if err := c.inspect(func(*file) error { return nil }); err != nil { // Open would make the file
		return done, err
	}
	const group = 1 << 20 // as in the configuration
	s, err := Open(ctx, c.Path, Config{Bytes: math.MaxInt64, QueueBytes: group, GroupBytes: group, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return done, err
	}
	done, err = s.Do(ctx, o)
	return done, errors.Join(err, s.Close())
}

// Repair prints what is missing or damaged. Unless confirmed it stays so, and remains.
func (c Command) Repair(ctx context.Context, confirmed bool) error {
	var flaws []Flaw
	err := c.inspect(func(f *file) (err error) {
		flaws, err = f.flaws(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, f := range flaws {
		fmt.Fprintln(c.Out, f.text())
	}
	switch {
	case len(flaws) == 0:
		_, err := fmt.Fprintln(c.Out, "nothing is missing or damaged")
		return err
	case !confirmed:
		return Remaining(fmt.Sprintf("the drain stops at %s: say --yes to give them up and let it continue", counted(len(flaws), "flaw")))
	}
	kept, flaws, err := Repair(ctx, c.Path, time.Now())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.Out, "repaired, %s given up; the old file is %s\n", counted(len(flaws), "flaw"), kept)
	return err
}

// text says what is lost.
func (f Flaw) text() string {
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

// inspect runs work on the file, opened for reading.
func (c Command) inspect(work func(*file) error) error {
	f, err := inspectFile(c.Path)
	if err != nil {
		return err
	}
	return errors.Join(work(f), f.close())
}

// counted returns "1 flaw" or "2 flaws".
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
