package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"spillway/internal/serve/queue"
)

// Command is the subcommands of spillway spool on one file. Each prints its result to Out
// and returns an error that wraps fs.ErrNotExist if there is no spool, and a Remaining if
// something is left to do. Status and Export may run while a server has the spool open; the
// others then return ErrInUse. They are about one name of the spool, or all with "".
type Command struct {
	Path   string
	Flags  string // that the user must repeat to reach this spool
	Out    io.Writer
	Decode func(payload []byte) ([]json.RawMessage, error) // returns the records of an entry
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
				Drained: h.drained, Last: h.last, DeadLetters: h.dead,
			}
			if h.groups > 0 && !h.oldest.IsZero() {
				s.OldestSeconds = time.Since(h.oldest).Seconds()
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
				return write(line{Stream: l.Name, Sequence: l.Sequence, AcceptedAt: l.At.UTC(), Reason: l.Reason}, l.Payload)
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

// Retry puts dead letters behind what waits. Damaged groups remain.
func (c Command) Retry(ctx context.Context, name string) error {
	if err := c.exists(); err != nil {
		return err
	}
	retried, left, err := Retry(ctx, c.Path, name)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "%s put back\n", counted(retried, "dead letter"))
	return remaining(left, "dead letter", " cannot be retried, because the groups are damaged")
}

// Discard deletes dead letters. Unless confirmed they are only counted, and remain.
func (c Command) Discard(ctx context.Context, name string, confirmed bool) (err error) {
	if err := c.exists(); err != nil {
		return err
	}
	f, err := openFile(ctx, c.Path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if confirmed {
		deleted, err := f.discard(name)
		if err == nil {
			fmt.Fprintf(c.Out, "%s deleted\n", counted(deleted, "dead letter"))
		}
		return err
	}
	left := 0
	err = f.deadLetters(ctx, name, func(queue.DeadLetter) error {
		left++
		return nil
	})
	if err != nil {
		return err
	}
	return remaining(left, "dead letter", " would be deleted: export them, then say --yes")
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

// exists returns an error unless there is a spool, for the methods that would create one.
func (c Command) exists() error {
	return c.inspect(func(*file) error { return nil })
}

// counted returns "1 flaw" or "2 flaws".
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
