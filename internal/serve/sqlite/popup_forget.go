package sqlite

import (
	"context"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/popup"
)

// Forget deletes the states of a user, the events and the entries of lists, in batches, and
// returns how many rows it has deleted. It reads all events. The caller first makes sure that
// no event of the user is applied later, which would store a state again: nothing records
// events of the user any more, and those in spools and streams have been applied. After an
// error, call it again. Names of testers in campaigns and their history remain.
func (p *Popups) Forget(ctx context.Context, user string) (rows int64, err error) {
	deleted := func(sql string, args ...any) error {
		return p.transaction(ctx, func(conn *sqlite.Conn) error {
			n, err := execute(conn, sql, args...)
			rows += int64(n)
			return err
		})
	}
	err = deleted("DELETE FROM popup_state WHERE user_id = ?", user)
	if err == nil {
		err = popup.EventPages(func(after [16]byte) (upto [16]byte, found bool, err error) {
			err = p.db.read(ctx, func(conn *sqlite.Conn) error {
				return sqlitex.Execute(conn, "SELECT id FROM popup_events WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", &sqlitex.ExecOptions{
					Args: []any{after[:], popup.ForgetPage - 1}, ResultFunc: func(stmt *sqlite.Stmt) error {
						upto, found = [16]byte(columnBytes(stmt, 0)), true
						return nil
					},
				})
			})
			return upto, found, err
		}, func(after, upto [16]byte) error {
			return deleted("DELETE FROM popup_events WHERE user_id = ? AND id > ? AND id <= ?", user, after[:], upto[:])
		})
	}
	if err == nil {
		err = p.transaction(ctx, func(conn *sqlite.Conn) error {
			n, err := removeFromLists(conn, user)
			rows += int64(n)
			return err
		})
	}
	if err != nil {
		return rows, fmt.Errorf("forget a user: %w", err)
	}
	return rows, nil
}

// removeFromLists removes a user from all lists, and makes replicas read the lists again.
func removeFromLists(conn *sqlite.Conn, user string) (int, error) {
	const lists = "(SELECT list_id FROM popup_list_users WHERE user_id = ?1 AND list_id IN (SELECT id FROM popup_lists))"
	n, err := execute(conn, "UPDATE popup_lists SET size = size - 1, version = (SELECT version + 1 FROM popup_version) WHERE id IN "+lists, user)
	if err != nil || n == 0 {
		return 0, err
	}
	if _, err := nextVersion(conn); err != nil {
		return 0, err
	}
	return execute(conn, "DELETE FROM popup_list_users WHERE user_id = ?1 AND list_id IN "+lists, user)
}

// DeleteEvents deletes the oldest events whose campaign was shown before a time, at most limit
// of them, and returns how many. Counts and states remain. No event that old may be applied
// again: it would be counted again.
func (p *Popups) DeleteEvents(ctx context.Context, before time.Time, limit int) (deleted int, err error) {
	first := popup.FirstEventID(before)
	err = p.transaction(ctx, func(conn *sqlite.Conn) error {
		deleted, err = execute(conn, "DELETE FROM popup_events WHERE rowid IN (SELECT rowid FROM popup_events WHERE id < ? ORDER BY id LIMIT ?)", first[:], limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete popup events: %w", err)
	}
	return deleted, nil
}
