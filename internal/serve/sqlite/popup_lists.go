package sqlite

import (
	"context"
	"fmt"
	"iter"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/popup"
)

// execute runs a statement and returns how many rows it changed.
func execute(conn *sqlite.Conn, sql string, args ...any) (int, error) {
	if err := sqlitex.Execute(conn, sql, &sqlitex.ExecOptions{Args: args}); err != nil {
		return 0, err
	}
	return conn.Changes(), nil
}

// Lists returns the lists by name.
func (p *Popups) Lists(ctx context.Context) (all []popup.ListVersion, err error) {
	err = p.db.read(ctx, func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT name, version, size FROM popup_lists WHERE state = ? ORDER BY name", &sqlitex.ExecOptions{
			Args: []any{popup.ListCurrent}, ResultFunc: func(stmt *sqlite.Stmt) error {
				all = append(all, popup.ListVersion{Name: stmt.ColumnText(0), Version: stmt.ColumnInt64(1), Size: stmt.ColumnInt64(2)})
				return nil
			},
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the lists: %w", err)
	}
	return all, nil
}

// ListUsers calls yield for each user of a list. Errors are yield's, or wrap popup.ErrNoList or
// popup.ErrListChanged. After an error what was yielded is not a list.
func (p *Popups) ListUsers(ctx context.Context, name string, yield func(user string) error) error {
	return popup.ListUsers(func() (list popup.StoredList, err error) {
		err = p.db.read(ctx, func(conn *sqlite.Conn) error {
			return sqlitex.Execute(conn, "SELECT id, version FROM popup_lists WHERE name = ? AND state = ?", &sqlitex.ExecOptions{
				Args: []any{name, popup.ListCurrent}, ResultFunc: func(stmt *sqlite.Stmt) error {
					list = popup.StoredList{ID: stmt.ColumnInt64(0), Version: stmt.ColumnInt64(1)}
					return nil
				},
			})
		})
		return list, err
	}, func(id int64, after string, limit int) (users []string, err error) {
		err = p.db.read(ctx, func(conn *sqlite.Conn) error {
			return sqlitex.Execute(conn, "SELECT user_id FROM popup_list_users WHERE list_id = ? AND user_id > ? ORDER BY user_id LIMIT ?", &sqlitex.ExecOptions{
				Args: []any{id, after, limit}, ResultFunc: func(stmt *sqlite.Stmt) error {
					users = append(users, stmt.ColumnText(0))
					return nil
				},
			})
		})
		return users, err
	}, yield)
}

// ReplaceList makes a list have exactly these users, in any order and repeated or not, or
// creates it. Readers see the old list or the new one. Errors are those of users, or wrap
// popup.ErrList or popup.ErrListAbandoned. After any other error the list may be replaced.
func (p *Popups) ReplaceList(ctx context.Context, name string, users iter.Seq2[string, error]) (popup.ListVersion, error) {
	list := popup.ListVersion{Name: name}
	id, err := p.beginList(ctx, name)
	if err == nil {
		if err = popup.ListBatches(users, func(batch []string) error { return p.addToList(ctx, id, batch) }); err != nil {
			p.dropUpload(ctx, id)
		}
	}
	if err == nil {
		err = p.transaction(ctx, func(conn *sqlite.Conn) (err error) {
			if list.Version, err = nextVersion(conn); err != nil {
				return err
			}
			if _, err := execute(conn, "UPDATE popup_lists SET state = ? WHERE name = ? AND state = ?", popup.ListDropped, name, popup.ListCurrent); err != nil {
				return err
			}
			n, err := execute(conn, "UPDATE popup_lists SET state = ?, version = ? WHERE id = ? AND state = ?", popup.ListCurrent, list.Version, id, popup.ListLoading)
			if err == nil && n == 0 {
				err = popup.ErrListAbandoned
			}
			if err == nil {
				list.Size, err = integer(conn, fmt.Sprintf("SELECT size FROM popup_lists WHERE id = %d", id))
			}
			return err
		})
	}
	if err != nil {
		return popup.ListVersion{}, fmt.Errorf("replace the list %s: %w", name, err)
	}
	p.sweepLists(ctx)
	return list, nil
}

// beginList creates a list that nobody reads.
func (p *Popups) beginList(ctx context.Context, name string) (id int64, err error) {
	all, err := p.Lists(ctx)
	if err == nil {
		err = popup.CheckNewList(name, all)
	}
	if err != nil {
		return 0, err
	}
	err = p.transaction(ctx, func(conn *sqlite.Conn) error {
		_, err := execute(conn, "INSERT INTO popup_lists (name, touched_at) VALUES (?, ?)", name, time.Now().UnixMilli())
		id = conn.LastInsertRowID()
		return err
	})
	return id, err
}

func (p *Popups) addToList(ctx context.Context, id int64, users []string) error {
	return p.transaction(ctx, func(conn *sqlite.Conn) error {
		n, err := execute(conn, "UPDATE popup_lists SET touched_at = ? WHERE id = ? AND state = ?", time.Now().UnixMilli(), id, popup.ListLoading)
		if err == nil && n == 0 {
			err = popup.ErrListAbandoned
		}
		added := 0
		for _, user := range users {
			if err != nil {
				return err
			}
			n, err = execute(conn, "INSERT INTO popup_list_users (list_id, user_id) VALUES (?, ?) ON CONFLICT DO NOTHING", id, user)
			added += n
		}
		if err == nil {
			_, err = execute(conn, "UPDATE popup_lists SET size = size + ? WHERE id = ?", added, id)
		}
		return err
	})
}

// dropUpload has the rows of a failed upload deleted with the next change of a list.
func (p *Popups) dropUpload(ctx context.Context, id int64) {
	err := p.transaction(context.WithoutCancel(ctx), func(conn *sqlite.Conn) error {
		_, err := execute(conn, "UPDATE popup_lists SET state = ? WHERE id = ? AND state = ?", popup.ListDropped, id, popup.ListLoading)
		return err
	})
	if err != nil {
		p.db.log.Warn("rows of a failed upload of a list stay for an hour", "error", err)
	}
}

// DeleteList deletes a list. The error wraps popup.ErrNoList if there is none. After any other
// error it may be deleted.
func (p *Popups) DeleteList(ctx context.Context, name string) error {
	err := p.transaction(ctx, func(conn *sqlite.Conn) error {
		if _, err := nextVersion(conn); err != nil {
			return err
		}
		n, err := execute(conn, "UPDATE popup_lists SET state = ? WHERE name = ? AND state = ?", popup.ListDropped, name, popup.ListCurrent)
		if err == nil && n == 0 {
			err = popup.ErrNoList
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete the list %s: %w", name, err)
	}
	p.sweepLists(ctx)
	return nil
}

// sweepLists deletes the rows of lists that were replaced, deleted or abandoned, in batches.
// What it leaves after an error is deleted with the next change of a list.
func (p *Popups) sweepLists(ctx context.Context) {
	var dropped []int64
	err := p.transaction(ctx, func(conn *sqlite.Conn) error {
		late := time.Now().Add(-popup.ListAbandonedAfter * time.Second).UnixMilli()
		if _, err := execute(conn, "UPDATE popup_lists SET state = ? WHERE state = ? AND touched_at < ?", popup.ListDropped, popup.ListLoading, late); err != nil {
			return err
		}
		return sqlitex.Execute(conn, "SELECT id FROM popup_lists WHERE state = ?", &sqlitex.ExecOptions{
			Args: []any{popup.ListDropped}, ResultFunc: func(stmt *sqlite.Stmt) error {
				dropped = append(dropped, stmt.ColumnInt64(0))
				return nil
			},
		})
	})
	for _, id := range dropped {
		for n := 1; n > 0 && err == nil; {
			err = p.transaction(ctx, func(conn *sqlite.Conn) (err error) {
				n, err = execute(conn, "DELETE FROM popup_list_users WHERE list_id = ?1 AND user_id IN (SELECT user_id FROM popup_list_users WHERE list_id = ?1 ORDER BY user_id LIMIT 5000)", id)
				if err == nil && n == 0 {
					_, err = execute(conn, "DELETE FROM popup_lists WHERE id = ? AND state = ?", id, popup.ListDropped)
				}
				return err
			})
		}
	}
	if err != nil {
		p.db.log.Warn("rows of replaced lists stay until the next change of a list", "error", err)
	}
}
