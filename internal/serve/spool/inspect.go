package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/queue"
)

// head is where a name of a spool stands.
type head struct {
	name    string
	id      [16]byte // random: queue.Group.Spool
	drained uint64   // the last group that was drained
	last    uint64   // the last group that was added
	epochs  []epoch  // of the groups behind drained, and of the next one
	groups  int64    // that wait
	rows    int64    // in them
	bytes   int64    // in them
	oldest  time.Time
	keys    int64  // bytes of the idempotency keys of these groups, with their rows
	dead    int64  // dead letters
	inDoubt int64  // of these
	deadIn  int64  // bytes in the dead letters
	movedTo string // the name that the groups were given to; "": none
}

// holds returns the bytes of the rows of a name, without those of pages that are not full.
func (h *head) holds() int64 {
	return max(0, h.bytes) + max(0, h.deadIn) + max(0, h.keys) + groupBytes*(max(0, h.groups)+max(0, h.dead))
}

// heads returns where the names of the spool stand, in alphabetical order.
func (f *file) heads(ctx context.Context) ([]head, error) {
	var heads []head
	err := f.query(ctx, func(conn *sqlite.Conn) error {
		err := each(conn, "SELECT name, id, drained, last, moved_to FROM names ORDER BY name", nil, func(stmt *sqlite.Stmt) {
			h := head{
				name: stmt.ColumnText(0), drained: uint64(stmt.ColumnInt64(2)), last: uint64(stmt.ColumnInt64(3)), movedTo: stmt.ColumnText(4),
			}
			stmt.ColumnBytes(1, h.id[:])
			heads = append(heads, h)
		})
		for i := range heads {
			h := &heads[i]
			if err == nil {
				err = h.details(conn)
			}
			if errors.Is(damaged(err), ErrDamaged) { // groups say themselves where they are
				err = nil
			}
			if err == nil {
				err = h.count(conn)
			}
			if errors.Is(damaged(err), ErrDamaged) { // in a group: the drain reports it
				h.groups, err = int64(h.last-h.drained), nil
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the names of the spool: %w", damaged(err))
	}
	return heads, nil
}

// count counts what waits under the name.
func (h *head) count(conn *sqlite.Conn) error {
	const waiting = " FROM groups WHERE id > " + ofGroup + " AND id < (" + ofName + " + 1) << 44"
	args := []any{h.name, int64(h.drained)}
	err := each(conn, "SELECT count(*), total(rows), total(length(payload))"+waiting, args,
		func(stmt *sqlite.Stmt) {
			h.groups, h.rows, h.bytes = stmt.ColumnInt64(0), stmt.ColumnInt64(1), stmt.ColumnInt64(2)
		})
	if err != nil {
		return err
	}
	return each(conn, "SELECT at"+waiting+" ORDER BY id LIMIT 1", args, func(stmt *sqlite.Stmt) {
		h.oldest = time.UnixMicro(stmt.ColumnInt64(0))
	})
}

// details reads what else the file has of the name.
func (h *head) details(conn *sqlite.Conn) error {
	if err := h.readEpochs(conn); err != nil {
		return err
	}
	err := each(conn, "SELECT count(*), total(length(payload)), total(in_doubt) FROM dead WHERE name = ?", []any{h.name},
		func(stmt *sqlite.Stmt) {
			h.dead, h.deadIn, h.inDoubt = stmt.ColumnInt64(0), stmt.ColumnInt64(1), stmt.ColumnInt64(2)
		})
	if err != nil {
		return err
	}
	return each(conn, "SELECT count(*), total(length(CAST(key AS BLOB))) FROM keys WHERE number = "+ofName, []any{h.name},
		func(stmt *sqlite.Stmt) {
			h.keys = stmt.ColumnInt64(0)*keyBytes + stmt.ColumnInt64(1)
		})
}

// waiting calls yield for each group that waits, of one name or of all with "". At a group
// that is missing or damaged it ends with an error that wraps ErrDamaged.
func (f *file) waiting(ctx context.Context, name string, yield func(queue.Group) error) error {
	heads, err := f.heads(ctx)
	if err != nil {
		return err
	}
	for _, h := range heads {
		if name != "" && name != h.name {
			continue
		}
		err := f.survey(ctx, h, func(_ sealedGroup, g queue.Group) error { return yield(g) }, func(flaw Flaw) error {
			return fmt.Errorf("%w: groups %d to %d of %s: %s", ErrDamaged, flaw.First, flaw.Last, flaw.Name, flaw.Reason)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Flaw is what a drain cannot pass: groups that are missing, or a damaged one.
type Flaw struct {
	Name        string
	First, Last uint64 // the groups
	Reason      string
	After       time.Time // when the group before them was accepted; zero: unknown
	Before      time.Time // when the group behind them was accepted; zero: unknown
	Kept        []byte    // what is left of a damaged group
}

// flaws reads every group that waits, and returns what is missing or damaged.
func (f *file) flaws(ctx context.Context) ([]Flaw, error) {
	heads, err := f.heads(ctx)
	if err != nil {
		return nil, err
	}
	var flaws []Flaw
	for _, h := range heads {
		err := f.survey(ctx, h, func(sealedGroup, queue.Group) error { return nil }, func(flaw Flaw) error {
			flaws = append(flaws, flaw)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return flaws, nil
}

const surveyBytes = 8 << 20 // of groups read at once

// survey calls good or flawed for each group of a name that waits, in order.
func (f *file) survey(ctx context.Context, h head, good func(sealedGroup, queue.Group) error, flawed func(Flaw) error) error {
	at, before := h.drained, time.Time{}
	for at < h.last {
		groups, err := f.read(ctx, h.name, at, surveyBytes)
		if errors.Is(err, ErrDamaged) {
			groups, err = f.readable(ctx, h, at)
		}
		if err != nil {
			return err
		}
		next := h.last + 1
		if len(groups) > 0 {
			next = groups[0].sequence
		}
		if next > at+1 {
			flaw := Flaw{Name: h.name, First: at + 1, Last: next - 1, Reason: "missing", After: before}
			if len(groups) > 0 {
				flaw.Before = groups[0].at
			}
			if err := flawed(flaw); err != nil {
				return err
			}
		}
		at = next - 1
		for _, g := range groups {
			if g.sequence != at+1 {
				break // another gap: read again from here
			}
			at = g.sequence
			group, err := g.open()
			if err != nil {
				err = flawed(Flaw{Name: h.name, First: at, Last: at, Reason: "bad checksum", After: before, Before: g.at, Kept: g.payload})
				if err != nil {
					return err
				}
				continue
			}
			before = g.at
			group.Spool, group.EpochLast = h.id, h.epochLast(place{group.Epoch, group.Number})
			if err := good(g, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// readable returns the first group behind a sequence that SQLite can read; none if there
// is none. It reads one group at a time.
func (f *file) readable(ctx context.Context, h head, at uint64) ([]sealedGroup, error) {
	for ; at < h.last && ctx.Err() == nil; at++ {
		groups, err := f.read(ctx, h.name, at, 1)
		if err == nil {
			return groups, nil
		}
		if !errors.Is(err, ErrDamaged) {
			return nil, err
		}
	}
	return nil, ctx.Err()
}
