package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/stream"
)

// Heads returns where the names of the spool stand, in alphabetical order.
func (f *SpoolFile) Heads(ctx context.Context) ([]stream.SpoolHead, error) {
	var heads []stream.SpoolHead
	err := f.read(ctx, func(conn *sqlite.Conn) error {
		err := sqlitex.Execute(conn, "SELECT name, id, drained, last FROM names ORDER BY name", &sqlitex.ExecOptions{
			ResultFunc: func(stmt *sqlite.Stmt) error {
				h := stream.SpoolHead{Name: stmt.ColumnText(0), Drained: uint64(stmt.ColumnInt64(2)), Last: uint64(stmt.ColumnInt64(3))}
				stmt.ColumnBytes(1, h.ID[:])
				heads = append(heads, h)
				return nil
			},
		})
		for i := range heads {
			h := &heads[i]
			if err == nil {
				err = fillHead(conn, f.number(h.Name), h)
			}
			if errors.Is(damaged(err), stream.ErrSpoolDamaged) { // in a group: the drain tells
				h.Groups, err = int64(h.Last-h.Drained), nil
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read where the spool stands: %w", damaged(err))
	}
	return heads, nil
}

// fillHead counts what waits under a name.
func fillHead(conn *sqlite.Conn, number int64, h *stream.SpoolHead) error {
	err := sqlitex.Execute(conn, "SELECT count(*), total(rows), total(length(payload)) FROM groups WHERE id > ? AND id < ?", &sqlitex.ExecOptions{
		Args: []any{groupID(number, h.Drained), groupID(number+1, 0)}, ResultFunc: func(stmt *sqlite.Stmt) error {
			h.Groups, h.Rows, h.Bytes = stmt.ColumnInt64(0), stmt.ColumnInt64(1), stmt.ColumnInt64(2)
			return nil
		},
	})
	if err != nil {
		return err
	}
	err = sqlitex.Execute(conn, "SELECT at FROM groups WHERE id > ? AND id < ? ORDER BY id LIMIT 1", &sqlitex.ExecOptions{
		Args: []any{groupID(number, h.Drained), groupID(number+1, 0)}, ResultFunc: func(stmt *sqlite.Stmt) error {
			h.Oldest = time.UnixMicro(stmt.ColumnInt64(0))
			return nil
		},
	})
	if err != nil {
		return err
	}
	return sqlitex.Execute(conn, "SELECT count(*) FROM dead WHERE name = ?", &sqlitex.ExecOptions{
		Args: []any{h.Name}, ResultFunc: func(stmt *sqlite.Stmt) error {
			h.Dead = stmt.ColumnInt64(0)
			return nil
		},
	})
}

const deadAtOnce = 500 // dead letters read at once

// Dead calls yield for each dead letter, oldest first: of one name, or of all with "".
func (f *SpoolFile) Dead(ctx context.Context, name string, yield func(stream.DeadLetter) error) error {
	last := int64(0)
	for {
		var letters []stream.DeadLetter
		err := f.read(ctx, func(conn *sqlite.Conn) error {
			return sqlitex.Execute(conn, "SELECT id, name, sequence, at, rows, reason, payload, raw FROM dead WHERE id > ? AND (? = '' OR name = ?) ORDER BY id LIMIT ?", &sqlitex.ExecOptions{
				Args: []any{last, name, name, deadAtOnce}, ResultFunc: func(stmt *sqlite.Stmt) error {
					letters = append(letters, stream.DeadLetter{
						ID: stmt.ColumnInt64(0), Name: stmt.ColumnText(1), Sequence: uint64(stmt.ColumnInt64(2)), At: time.UnixMicro(stmt.ColumnInt64(3)),
						Rows: stmt.ColumnInt(4), Reason: stmt.ColumnText(5), Payload: columnBytes(stmt, 6), Raw: stmt.ColumnBool(7),
					})
					return nil
				},
			})
		})
		if err != nil {
			return fmt.Errorf("read the dead letters: %w", damaged(err))
		}
		for _, l := range letters {
			last = l.ID
			if err := yield(l); err != nil {
				return err
			}
		}
		if len(letters) < deadAtOnce {
			return nil
		}
	}
}

// Retry puts the dead letters of a name, or of all with "", behind the groups that
// wait, without their idempotency keys. It returns how many, and how many cannot be
// tried again. Nothing else may use the file meanwhile.
func (f *SpoolFile) Retry(ctx context.Context, name string) (requeued, left int, err error) {
	for {
		heads, err := f.Heads(ctx)
		if err != nil {
			return requeued, left, err
		}
		change, skipped, err := f.requeue(ctx, name, heads)
		left = skipped
		if err != nil || len(change.Requeued) == 0 {
			return requeued, left, err
		}
		if _, err := f.Write(change); err != nil {
			return requeued, left, fmt.Errorf("put dead letters back: %w", err)
		}
		requeued += len(change.Requeued)
	}
}

var errEnough = errors.New("enough")

// requeue makes groups of some dead letters.
func (f *SpoolFile) requeue(ctx context.Context, name string, heads []stream.SpoolHead) (change stream.SpoolChange, skipped int, err error) {
	entries := make(map[string][]stream.SpoolEntry)
	err = f.Dead(ctx, name, func(l stream.DeadLetter) error {
		switch {
		case l.Raw:
			skipped++
			return nil
		case len(change.Requeued) == deadAtOnce:
			return errEnough
		}
		entries[l.Name] = append(entries[l.Name], stream.SpoolEntry{Payload: l.Payload, Rows: l.Rows, At: l.At})
		change.Requeued = append(change.Requeued, l.ID)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	for _, h := range heads {
		if e := entries[h.Name]; len(e) > 0 {
			change.Groups = append(change.Groups, stream.Seal(h.Name, h.Last+1, e))
			delete(entries, h.Name)
		}
	}
	for lost := range entries {
		return change, skipped, errors.Join(err, fmt.Errorf("the dead letters of %s belong to no name of the spool", lost))
	}
	return change, skipped, err
}

// Discard deletes the dead letters of a name, or of all with "", and returns how
// many. Nothing else may use the file meanwhile.
func (f *SpoolFile) Discard(name string) (int, error) {
	err := sqlitex.Execute(f.writer, "DELETE FROM dead WHERE ? = '' OR name = ?", &sqlitex.ExecOptions{Args: []any{name, name}})
	if err != nil {
		return 0, fmt.Errorf("delete dead letters: %w", damaged(err))
	}
	return f.writer.Changes(), nil
}

// Waiting calls yield for each group that waits, of one name, or of all with "", in
// order. It ends with an error that wraps stream.ErrSpoolDamaged at one that is missing
// or damaged.
func (f *SpoolFile) Waiting(ctx context.Context, name string, yield func(stream.Group) error) error {
	good := func(g stream.SealedGroup) error {
		group, err := g.Open()
		if err != nil {
			return err
		}
		return yield(group)
	}
	flawed := func(flaw Flaw) error {
		return fmt.Errorf("%w: groups %d to %d of %s: %s", stream.ErrSpoolDamaged, flaw.First, flaw.Last, flaw.Name, flaw.Reason)
	}
	heads, err := f.Heads(ctx)
	if err != nil {
		return err
	}
	for _, h := range heads {
		if name != "" && name != h.Name {
			continue
		}
		if err := f.surveyName(ctx, h, good, flawed); err != nil {
			return err
		}
	}
	return nil
}
