package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

const deadAtOnce = 500 // dead letters read or retried at once

// deadLetters calls yield for each dead letter, oldest first, of one name or of all with "".
func (f *file) deadLetters(ctx context.Context, name string, yield func(queue.DeadLetter) error) error {
	last := int64(0)
	for {
		var letters []queue.DeadLetter
		err := f.query(ctx, func(conn *sqlite.Conn) error {
			return sqlitex.Execute(conn, "SELECT id, name, sequence, at, rows, reason, payload, raw FROM dead WHERE id > ? AND (? = '' OR name = ?) ORDER BY id LIMIT ?", &sqlitex.ExecOptions{
				Args: []any{last, name, name, deadAtOnce}, ResultFunc: func(stmt *sqlite.Stmt) error {
					letters = append(letters, queue.DeadLetter{
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

// Retry puts the dead letters of a name, or of all with "", behind the groups that wait in
// a spool's file, without their idempotency keys. It returns how many, and how many cannot
// be retried because they are damaged groups. Errors wrap ErrInUse.
func Retry(ctx context.Context, path, name string) (retried, left int, err error) {
	f, err := openFile(ctx, path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	return f.retry(ctx, name)
}

func (f *file) retry(ctx context.Context, name string) (retried, left int, err error) {
	for {
		heads, err := f.heads(ctx)
		if err != nil {
			return retried, left, err
		}
		c, skipped, err := f.retryChange(ctx, name, heads)
		left = skipped
		if err != nil || len(c.retried) == 0 {
			return retried, left, err
		}
		if _, err := f.write(c); err != nil {
			return retried, left, fmt.Errorf("retry dead letters: %w", err)
		}
		retried += len(c.retried)
	}
}

// retryChange makes groups of up to deadAtOnce dead letters.
func (f *file) retryChange(ctx context.Context, name string, heads []head) (c change, skipped int, err error) {
	errEnough := errors.New("enough")
	entries := make(map[string][]queue.Entry)
	err = f.deadLetters(ctx, name, func(l queue.DeadLetter) error {
		switch {
		case l.Raw:
			skipped++
			return nil
		case len(c.retried) == deadAtOnce:
			return errEnough
		}
		entries[l.Name] = append(entries[l.Name], queue.Entry{Payload: l.Payload, Rows: l.Rows, At: l.At})
		c.retried = append(c.retried, l.ID)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	for _, h := range heads {
		if e := entries[h.name]; len(e) > 0 {
			c.groups = append(c.groups, seal(h.name, h.last+1, e))
			delete(entries, h.name)
		}
	}
	for unknown := range entries {
		return c, skipped, errors.Join(err, fmt.Errorf("the spool has dead letters of %s, but no such name", unknown))
	}
	return c, skipped, err
}

// discard deletes the dead letters of a name, or of all with "", and returns how many.
func (f *file) discard(name string) (int, error) {
	err := sqlitex.Execute(f.writer, "DELETE FROM dead WHERE ? = '' OR name = ?", &sqlitex.ExecOptions{Args: []any{name, name}})
	if err != nil {
		return 0, fmt.Errorf("delete dead letters: %w", damaged(err))
	}
	return f.writer.Changes(), nil
}
