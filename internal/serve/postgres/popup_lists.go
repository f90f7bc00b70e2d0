package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/popup"
)

// Statements of lists. addListUsers adds users and counts those that are new. dropListUsers
// deletes some of the rows of a list behind a user, and returns the last; "" if there was none.
const (
	addListUsers = `WITH list AS (SELECT id FROM popup_lists WHERE id = $1 AND state = 0 FOR UPDATE),
added AS (INSERT INTO popup_list_users (list_id, user_id) SELECT list.id, u FROM list CROSS JOIN unnest($2::text[]) AS u ON CONFLICT DO NOTHING RETURNING 1)
UPDATE popup_lists SET size = size + (SELECT count(*) FROM added), touched_at = now() WHERE id = (SELECT id FROM list)`

	dropListUsers = `WITH page AS (SELECT user_id FROM popup_list_users WHERE list_id = $1 AND user_id > $2 ORDER BY user_id LIMIT 5000),
dropped AS (DELETE FROM popup_list_users AS u USING page WHERE u.list_id = $1 AND u.user_id = page.user_id)
SELECT COALESCE(max(user_id), '') FROM page`
)

// inOrder runs a statement that reads an index in its order. Without statistics, as after many
// new rows, the server would rather sort all rows, each time. Parameters are in text form.
func inOrder(ctx context.Context, conn *pgx.Conn, sql string, args ...string) (*pgconn.Result, error) {
	values := make([][]byte, len(args))
	for i, arg := range args {
		values[i] = []byte(arg)
	}
	var batch pgconn.Batch // a batch without BEGIN is one transaction
	batch.ExecParams("SELECT set_config('enable_sort', 'off', true)", nil, nil, nil, nil)
	batch.ExecParams(sql, values, nil, nil, nil)
	results, err := conn.PgConn().ExecBatch(ctx, &batch).ReadAll()
	if err != nil {
		return nil, err
	}
	return results[1], nil
}

// Lists returns the lists by name.
func (p *Popups) Lists(ctx context.Context) (all []popup.ListVersion, err error) {
	err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT name, version, size FROM popup_lists WHERE state = $1 ORDER BY name", pgx.QueryExecModeExec, popup.ListCurrent)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l popup.ListVersion, err error) {
			err = row.Scan(&l.Name, &l.Version, &l.Size)
			return l, err
		})
		return err
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
		err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			list = popup.StoredList{}
			err := conn.QueryRow(ctx, "SELECT id, version FROM popup_lists WHERE name = $1 AND state = $2", pgx.QueryExecModeExec, name, popup.ListCurrent).Scan(&list.ID, &list.Version)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		})
		return list, err
	}, func(id int64, after string, limit int) (users []string, err error) {
		err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			page, err := inOrder(ctx, conn, "SELECT user_id FROM popup_list_users WHERE list_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3",
				strconv.FormatInt(id, 10), after, strconv.Itoa(limit))
			if err != nil {
				return err
			}
			users = users[:0]
			for _, row := range page.Rows {
				users = append(users, string(row[0]))
			}
			return nil
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
		err = p.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if list.Version, err = nextVersion(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE popup_lists SET state = $1 WHERE name = $2 AND state = $3", pgx.QueryExecModeExec, popup.ListDropped, name, popup.ListCurrent)
			if err != nil {
				return err
			}
			err = tx.QueryRow(ctx, "UPDATE popup_lists SET state = $1, version = $2 WHERE id = $3 AND state = $4 RETURNING size",
				pgx.QueryExecModeExec, popup.ListCurrent, list.Version, id, popup.ListLoading).Scan(&list.Size)
			if errors.Is(err, pgx.ErrNoRows) {
				err = popup.ErrListAbandoned
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
	err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "INSERT INTO popup_lists (name) VALUES ($1) RETURNING id", pgx.QueryExecModeExec, name).Scan(&id)
	})
	return id, err
}

func (p *Popups) addToList(ctx context.Context, id int64, users []string) error {
	return p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, addListUsers, pgx.QueryExecModeExec, id, users)
		if err == nil && tag.RowsAffected() == 0 {
			err = popup.ErrListAbandoned
		}
		return err
	})
}

// dropUpload has the rows of a failed upload deleted with the next change of a list.
func (p *Popups) dropUpload(ctx context.Context, id int64) {
	err := p.withConn(context.WithoutCancel(ctx), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "UPDATE popup_lists SET state = $1 WHERE id = $2 AND state = $3", pgx.QueryExecModeExec, popup.ListDropped, id, popup.ListLoading)
		return err
	})
	if err != nil {
		p.db.log.Warn("rows of a failed upload of a list stay for an hour", "error", err)
	}
}

// DeleteList deletes a list. The error wraps popup.ErrNoList if there is none. After any other
// error it may be deleted.
func (p *Popups) DeleteList(ctx context.Context, name string) error {
	err := p.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := nextVersion(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "UPDATE popup_lists SET state = $1 WHERE name = $2 AND state = $3", pgx.QueryExecModeExec, popup.ListDropped, name, popup.ListCurrent)
		if err == nil && tag.RowsAffected() == 0 {
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
	err := p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "UPDATE popup_lists SET state = $1 WHERE state = $2 AND touched_at < now() - $3 * interval '1 second'",
			pgx.QueryExecModeExec, popup.ListDropped, popup.ListLoading, popup.ListAbandonedAfter)
		if err != nil {
			return err
		}
		rows, err := conn.Query(ctx, "SELECT id FROM popup_lists WHERE state = $1", pgx.QueryExecModeExec, popup.ListDropped)
		if err == nil {
			dropped, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		return err
	})
	for _, id := range dropped {
		last := ""
		for more := true; more && err == nil; {
			err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
				page, err := inOrder(ctx, conn, dropListUsers, strconv.FormatInt(id, 10), last)
				if err == nil {
					last = string(page.Rows[0][0])
					more = last != ""
				}
				return err
			})
		}
		if err == nil {
			err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "DELETE FROM popup_lists WHERE id = $1 AND state = $2", pgx.QueryExecModeExec, id, popup.ListDropped)
				return err
			})
		}
	}
	if err != nil {
		p.db.log.Warn("rows of replaced lists stay until the next change of a list", "error", err)
	}
}
