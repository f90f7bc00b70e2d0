package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"spillway/internal/serve/popup"
)

// Lists returns the lists by name.
func (p *Popups) Lists(ctx context.Context) (all []popup.ListVersion, err error) {
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		all = nil
		rows, err := se.texts(ctx, "SELECT name, version, size FROM popup_lists WHERE state = ? ORDER BY name", int64(popup.ListCurrent))
		if err != nil {
			return err
		}
		for _, row := range rows {
			version, err := strconv.ParseInt(row[1], 10, 64)
			size, bad := strconv.ParseInt(row[2], 10, 64)
			if err := errors.Join(err, bad); err != nil {
				return err
			}
			all = append(all, popup.ListVersion{Name: row[0], Version: version, Size: size})
		}
		return nil
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
		err = p.withSession(ctx, func(ctx context.Context, se *session) error {
			rows, err := se.texts(ctx, "SELECT id, version FROM popup_lists WHERE name = ? AND state = ?", name, int64(popup.ListCurrent))
			if list = (popup.StoredList{}); err != nil || len(rows) == 0 {
				return err
			}
			list.ID, err = strconv.ParseInt(rows[0][0], 10, 64)
			if err == nil {
				list.Version, err = strconv.ParseInt(rows[0][1], 10, 64)
			}
			return err
		})
		return list, err
	}, func(id int64, after string, limit int) (users []string, err error) {
		err = p.withSession(ctx, func(ctx context.Context, se *session) error {
			rows, err := se.texts(ctx, "SELECT user_id FROM popup_list_users WHERE list_id = ? AND user_id > ? ORDER BY user_id LIMIT ?", id, []byte(after), int64(limit))
			users = nil
			for _, row := range rows {
				users = append(users, row[0])
			}
			return err
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
		list, err = p.useList(ctx, id, name)
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
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		if _, err := se.exec(ctx, "INSERT INTO popup_lists (name, touched_at) VALUES (?, UTC_TIMESTAMP())", namedValues([]any{name})); err != nil {
			return err
		}
		rows, err := se.Query(ctx, "SELECT LAST_INSERT_ID()")
		if err == nil {
			id, err = strconv.ParseInt(rows[0][0], 10, 64)
		}
		return err
	})
	return id, err
}

func (p *Popups) addToList(ctx context.Context, id int64, users []string) error {
	sql := []byte("INSERT IGNORE INTO popup_list_users (list_id, user_id) VALUES ")
	for i, user := range users {
		if i > 0 {
			sql = append(sql, ',')
		}
		sql = append(appendInts(append(sql, '('), id), ',')
		sql = append(appendHex(sql, []byte(user)), ')')
	}
	return p.transactionWithin(ctx, func(ctx context.Context, se *session) error {
		loading, err := se.texts(ctx, "SELECT id FROM popup_lists WHERE id = ? AND state = ? FOR UPDATE", id, int64(popup.ListLoading))
		if err != nil {
			return err
		}
		if len(loading) == 0 {
			return popup.ErrListAbandoned
		}
		result, err := se.Conn.(driver.ExecerContext).ExecContext(ctx, string(sql), nil)
		if err != nil {
			return err
		}
		added, err := result.RowsAffected()
		if err != nil {
			return err
		}
		_, err = se.exec(ctx, "UPDATE popup_lists SET size = size + ?, touched_at = UTC_TIMESTAMP() WHERE id = ?", namedValues([]any{added, id}))
		return err
	})
}

// dropUpload has the rows of a failed upload deleted with the next change of a list.
func (p *Popups) dropUpload(ctx context.Context, id int64) {
	err := p.withSession(context.WithoutCancel(ctx), func(ctx context.Context, se *session) error {
		_, err := se.exec(ctx, "UPDATE popup_lists SET state = ? WHERE id = ? AND state = ?", namedValues([]any{int64(popup.ListDropped), id, int64(popup.ListLoading)}))
		return err
	})
	if err != nil {
		p.db.log.Warn("rows of a failed upload of a list stay for an hour", "error", err)
	}
}

// useList replaces the list of a name by one that was written.
func (p *Popups) useList(ctx context.Context, id int64, name string) (popup.ListVersion, error) {
	var list popup.ListVersion // read only after transactionWithin has returned nil
	err := p.transactionWithin(ctx, func(ctx context.Context, se *session) error {
		version, err := nextVersion(ctx, se)
		if err != nil {
			return err
		}
		_, err = se.exec(ctx, "UPDATE popup_lists SET state = ? WHERE name = ? AND state = ?", namedValues([]any{int64(popup.ListDropped), name, int64(popup.ListCurrent)}))
		if err != nil {
			return err
		}
		n, err := se.exec(ctx, "UPDATE popup_lists SET state = ?, version = ? WHERE id = ? AND state = ?",
			namedValues([]any{int64(popup.ListCurrent), version, id, int64(popup.ListLoading)}))
		if err != nil {
			return err
		}
		if n == 0 {
			return popup.ErrListAbandoned
		}
		rows, err := se.texts(ctx, "SELECT size FROM popup_lists WHERE id = ?", id)
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(rows[0][0], 10, 64)
		list = popup.ListVersion{Name: name, Version: version, Size: size}
		return err
	})
	if err != nil {
		return popup.ListVersion{}, err
	}
	return list, nil
}

// DeleteList deletes a list. The error wraps popup.ErrNoList if there is none. After any other
// error it may be deleted.
func (p *Popups) DeleteList(ctx context.Context, name string) error {
	err := p.transactionWithin(ctx, func(ctx context.Context, se *session) error {
		if _, err := nextVersion(ctx, se); err != nil {
			return err
		}
		n, err := se.exec(ctx, "UPDATE popup_lists SET state = ? WHERE name = ? AND state = ?", namedValues([]any{int64(popup.ListDropped), name, int64(popup.ListCurrent)}))
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
	var dropped [][]string
	err := p.withSession(ctx, func(ctx context.Context, se *session) error {
		_, err := se.exec(ctx, "UPDATE popup_lists SET state = ? WHERE state = ? AND touched_at < UTC_TIMESTAMP() - INTERVAL ? SECOND",
			namedValues([]any{int64(popup.ListDropped), int64(popup.ListLoading), int64(popup.ListAbandonedAfter)}))
		if err == nil {
			dropped, err = se.texts(ctx, "SELECT id FROM popup_lists WHERE state = ?", int64(popup.ListDropped))
		}
		return err
	})
	for _, row := range dropped {
		for n := int64(1); n > 0 && err == nil; {
			err = p.withSession(ctx, func(ctx context.Context, se *session) error {
				n, err = se.exec(ctx, "DELETE FROM popup_list_users WHERE list_id = ? ORDER BY user_id LIMIT 5000", namedValues([]any{row[0]}))
				return err
			})
		}
		if err == nil {
			err = p.withSession(ctx, func(ctx context.Context, se *session) error {
				_, err := se.exec(ctx, "DELETE FROM popup_lists WHERE id = ? AND state = ?", namedValues([]any{row[0], int64(popup.ListDropped)}))
				return err
			})
		}
	}
	if err != nil {
		p.db.log.Warn("rows of replaced lists stay until the next change of a list", "error", err)
	}
}
