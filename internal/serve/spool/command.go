package spool

import (
	"cmp"
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
// something is left to do. They may run while a server has the spool open, but for Repair,
// which then returns ErrInUse. They are about one name of the spool, or all with "".
type Command struct {
	Path       string
	GroupBytes int    // of one group that Retry makes, unless one dead letter has more; 0: 1 MiB
	Flags      string // that the user must repeat to reach this spool
	Out        io.Writer
	Decode     func(payload []byte) ([]json.RawMessage, error) // returns the records of an entry
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

// NameStatus is one name of a spool in the output of Status.
type NameStatus struct {
	Stream        string  `json:"stream"`
	ID            string  `json:"id"`
	Groups        int64   `json:"groups"`
	Records       int64   `json:"records"`
	Bytes         int64   `json:"bytes"`
	OldestSeconds float64 `json:"oldest_seconds"`
	Drained       uint64  `json:"drained_sequence"`
	Last          uint64  `json:"last_sequence"`
	DeadLetters   int64   `json:"dead_letters"`
	InDoubt       int64   `json:"dead_letters_in_doubt"` // of these
}

// Status prints what waits under each name, as a table or as one JSON document. Dead letters
// remain to do.
func (c Command) Status(ctx context.Context, asJSON bool) error {
	names, dead := []NameStatus{}, 0
	err := c.inspect(func(f *file) error {
		heads, err := f.heads(ctx)
		for _, h := range heads {
			s := NameStatus{
				Stream: h.name, ID: fmt.Sprintf("%x", h.id), Groups: h.groups, Records: h.rows, Bytes: h.bytes,
				Drained: h.drained, Last: h.last, DeadLetters: h.dead, InDoubt: h.inDoubt,
			}
			if h.groups > 0 && !h.oldest.IsZero() {
				s.OldestSeconds = max(0, time.Since(h.oldest).Seconds()) // the database's clock may be ahead
			}
			dead += int(h.dead)
			names = append(names, s)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := c.printStatus(names, asJSON); err != nil {
		return err
	}
	return remaining(dead, "dead letter", fmt.Sprintf(": spillway spool export%s --dead shows them", c.Flags))
}

func (c Command) printStatus(names []NameStatus, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(c.Out)
		out.SetIndent("", "  ")
		return out.Encode(map[string]any{"streams": names})
	}
	fmt.Fprintf(c.Out, "%-24s %10s %10s %12s %12s %8s\n", "stream", "groups", "records", "bytes", "oldest", "dead")
	for _, s := range names {
		oldest := "-"
		if s.Groups > 0 {
			oldest = time.Duration(s.OldestSeconds * float64(time.Second)).Round(time.Millisecond).String()
		}
		fmt.Fprintf(c.Out, "%-24s %10d %10d %12d %12s %8d\n", s.Stream, s.Groups, s.Records, s.Bytes, oldest, s.DeadLetters)
	}
	return nil
}

// line is one line of an export.
type line struct {
	Stream     string          `json:"stream"`
	Sequence   uint64          `json:"sequence"`
	AcceptedAt time.Time       `json:"accepted_at"`
	Reason     string          `json:"reason,omitempty"`
	InDoubt    bool            `json:"in_doubt,omitempty"`
	Record     json.RawMessage `json:"record"`
}

// Export prints one JSON object per record that waits, or per dead letter.
func (c Command) Export(ctx context.Context, name string, dead bool) error {
	out := json.NewEncoder(c.Out)
	out.SetEscapeHTML(false)
	write := func(l line, payload []byte) error {
		records, err := c.Decode(payload)
		for _, l.Record = range records {
			if err == nil {
				err = out.Encode(l)
			}
		}
		return err
	}
	return c.inspect(func(f *file) error {
		if dead {
			return f.deadLetters(ctx, name, func(l queue.DeadLetter) error {
				return write(line{Stream: l.Name, Sequence: l.Sequence, AcceptedAt: l.At.UTC(), Reason: l.Reason, InDoubt: l.InDoubt}, l.Payload)
			})
		}
		return f.waiting(ctx, name, func(g queue.Group) error {
			for _, e := range g.Entries {
				if err := write(line{Stream: g.Name, Sequence: g.Sequence, AcceptedAt: e.At.UTC()}, e.Payload); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Retry puts dead letters behind what waits, without their idempotency keys. Damaged groups
// remain, and unless inDoubt is set, what the database may have.
func (c Command) Retry(ctx context.Context, name string, inDoubt bool) error {
	retried, left, err := c.retry(ctx, name, inDoubt)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "%s put back\n", counted(retried, "dead letter"))
	var remains []error
	if left.raw > 0 {
		remains = append(remains, remaining(left.raw, "dead letter", " cannot be retried, because the groups are damaged"))
	}
	if left.inDoubt > 0 {
		remains = append(remains, remaining(left.inDoubt, "dead letter", " may be in the database: compare, then discard them or say --in-doubt"))
	}
	if len(remains) == 0 {
		return nil
	}
	return Remaining(errors.Join(remains...).Error())
}

// Retry puts the dead letters of a name, or of all with "", behind the groups that wait in
// a spool's file. It returns how many, and how many it left because they are damaged groups
// or the database may have them.
func Retry(ctx context.Context, path, name string) (retried, left int, err error) {
	retried, l, err := Command{Path: path}.retry(ctx, name, false)
	return retried, l.raw + l.inDoubt, err
}

// leftLetters are dead letters that were not retried.
type leftLetters struct{ raw, inDoubt int }

func (c Command) retry(ctx context.Context, name string, inDoubt bool) (retried int, left leftLetters, err error) {
	var all selection
	err = c.inspect(func(f *file) (err error) {
		all, err = f.everything(ctx, name)
		return err
	})
	if err != nil {
		return 0, left, err
	}
	what := all
	what.Raw, what.InDoubt = false, inDoubt
	if retried, err = c.perform(ctx, workRetry, what); err != nil {
		return 0, left, err
	}
	err = c.inspect(func(f *file) error {
		total, err := f.count(ctx, all)
		all.Raw = false
		doubtful, errDoubtful := f.count(ctx, all)
		left = leftLetters{raw: total - doubtful, inDoubt: doubtful}
		return errors.Join(err, errDoubtful)
	})
	return retried, left, err
}

// Discard deletes dead letters. Unless confirmed they are only counted, and remain.
func (c Command) Discard(ctx context.Context, name string, confirmed bool) error {
	var what selection
	count := 0
	err := c.inspect(func(f *file) (err error) {
		if what, err = f.everything(ctx, name); err == nil {
			count, err = f.count(ctx, what)
		}
		return err
	})
	if err != nil {
		return err
	}
	if !confirmed {
		return remaining(count, "dead letter", " would be deleted: export them, then say --yes")
	}
	deleted, err := c.perform(ctx, workDiscard, what)
	if err == nil {
		fmt.Fprintf(c.Out, "%s deleted\n", counted(deleted, "dead letter"))
	}
	return err
}

// perform does work on dead letters, and returns how many there were.
func (c Command) perform(ctx context.Context, work string, what selection) (int, error) {
	count := func() (n int, err error) {
		err = c.inspect(func(f *file) (err error) {
			n, err = f.count(ctx, what)
			return err
		})
		return n, err
	}
	before, err := count()
	if err != nil || before == 0 {
		return 0, err
	}
	if err := perform(ctx, c.Path, cmp.Or(c.GroupBytes, defaultGroupBytes), work, what, count); err != nil {
		return 0, err
	}
	after, err := count()
	return before - after, err
}

const defaultGroupBytes = 1 << 20 // as in the configuration

// commandConfig is the configuration of a spool that a command opens.
func commandConfig(groupBytes int) Config {
	return Config{Bytes: math.MaxInt64, QueueBytes: groupBytes, GroupBytes: groupBytes, Log: slog.New(slog.DiscardHandler)}
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
