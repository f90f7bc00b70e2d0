package mysql

import (
	"context"
	"fmt"
	"time"

	"spillway/internal/serve/popup"
)

// Forget deletes the states of a user, the events and the entries of lists, in batches, and
// returns how many rows it has deleted. It reads all events. The caller first makes sure that
// no event of the user is applied later, which would store a state again: nothing records
// events of the user any more, and those in spools and streams have been applied. After an
// error, call it again. Names of testers in campaigns and their history remain.
func (p *Popups) Forget(ctx context.Context, user string) (rows int64, err error) {
	id := []byte(user)
	deleted := func(sql string, args ...any) error {
		return p.withSession(ctx, func(ctx context.Context, se *session) error {
			n, err := se.exec(ctx, sql, namedValues(args))
			rows += n
			return err
		})
	}
	err = deleted("DELETE FROM popup_state WHERE user_id = ?", id)
	if err == nil {
		err = popup.EventPages(func(after [16]byte) (upto [16]byte, found bool, err error) {
			err = p.withSession(ctx, func(ctx context.Context, se *session) error {
				ends, err := se.texts(ctx, "SELECT id FROM popup_events WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", after[:], int64(popup.ForgetPage-1))
				if found = len(ends) > 0; found {
					upto = [16]byte([]byte(ends[0][0]))
				}
				return err
			})
			return upto, found, err
		}, func(after, upto [16]byte) error {
			const events = "FROM popup_events WHERE user_id = ? AND id > ? AND id <= ?"
			var some [][]string // a DELETE would lock all rows of the page
			err := p.withSession(ctx, func(ctx context.Context, se *session) (err error) {
				some, err = se.texts(ctx, "SELECT id "+events+" LIMIT 1", id, after[:], upto[:])
				return err
			})
			if err != nil || len(some) == 0 {
				return err
			}
			return deleted("DELETE "+events, id, after[:], upto[:])
		})
	}
	if err == nil {
		n := int64(0)
		n, err = p.removeFromLists(ctx, id)
		rows += n
	}
	if err != nil {
		return rows, fmt.Errorf("forget a user: %w", err)
	}
	return rows, nil
}

// removeFromLists removes a user from all lists, and makes replicas read the lists again.
func (p *Popups) removeFromLists(ctx context.Context, user []byte) (int64, error) {
	var lists [][]string
	err := p.withSession(ctx, func(ctx context.Context, se *session) (err error) {
		lists, err = se.texts(ctx, "SELECT l.id FROM popup_lists AS l JOIN popup_list_users AS u ON u.list_id = l.id AND u.user_id = ? ORDER BY l.id", user)
		return err
	})
	if err != nil || len(lists) == 0 {
		return 0, err
	}
	removed := int64(0) // read only after transactionWithin has returned nil
	err = p.transactionWithin(ctx, func(ctx context.Context, se *session) error {
		n := int64(0)
		version, err := nextVersion(ctx, se)
		if err != nil {
			return err
		}
		for _, list := range lists {
			if _, err := se.texts(ctx, "SELECT id FROM popup_lists WHERE id = ? FOR UPDATE", list[0]); err != nil {
				return err
			}
			gone, err := se.exec(ctx, "DELETE FROM popup_list_users WHERE list_id = ? AND user_id = ?", namedValues([]any{list[0], user}))
			if err != nil {
				return err
			}
			if n += gone; gone == 0 {
				continue
			}
			if _, err := se.exec(ctx, "UPDATE popup_lists SET size = size - 1, version = ? WHERE id = ?", namedValues([]any{version, list[0]})); err != nil {
				return err
			}
		}
		removed = n
		return nil
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// DeleteEvents deletes the oldest events whose campaign was shown before a time, at most limit
// of them, and returns how many. Counts and states remain. No event that old may be applied
// again: it would be counted again.
func (p *Popups) DeleteEvents(ctx context.Context, before time.Time, limit int) (deleted int, err error) {
	first := popup.FirstEventID(before)
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		n, err := se.exec(ctx, "DELETE FROM popup_events WHERE id < ? ORDER BY id LIMIT ?", namedValues([]any{first[:], int64(limit)}))
		deleted = int(n)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete popup events: %w", err)
	}
	return deleted, nil
}
