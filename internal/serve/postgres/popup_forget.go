package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/popup"
)

// Forget deletes the states of a user, the events and the entries of lists, in batches, and
// returns how many rows it has deleted. It reads all events. The caller first makes sure that
// no event of the user is applied later, which would store a state again: nothing records
// events of the user any more, and those in spools and streams have been applied. After an
// error, call it again. Names of testers in campaigns and their history remain.
func (p *Popups) Forget(ctx context.Context, user string) (rows int64, err error) {
	deleted := func(sql string, args ...any) error {
		return p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			tag, err := conn.Exec(ctx, sql, append([]any{pgx.QueryExecModeExec, user}, args...)...)
			rows += tag.RowsAffected()
			return err
		})
	}
	err = deleted("DELETE FROM popup_state WHERE user_id = $1")
	if err == nil {
		err = popup.EventPages(func(after [16]byte) (upto [16]byte, found bool, err error) {
			err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
				end, err := inOrder(ctx, conn, "SELECT id FROM popup_events WHERE id > $1 ORDER BY id LIMIT 1 OFFSET $2", uuid(after).String(), strconv.Itoa(popup.ForgetPage-1))
				if err != nil || len(end.Rows) == 0 {
					return err
				}
				var id pgtype.UUID
				err = id.Scan(string(end.Rows[0][0]))
				upto, found = id.Bytes, true
				return err
			})
			return upto, found, err
		}, func(after, upto [16]byte) error {
			return deleted("DELETE FROM popup_events WHERE user_id = $1 AND id > $2 AND id <= $3", uuid(after), uuid(upto))
		})
	}
	if err == nil {
		n := int64(0)
		n, err = p.removeFromLists(ctx, user)
		rows += n
	}
	if err != nil {
		return rows, fmt.Errorf("forget a user: %w", err)
	}
	return rows, nil
}

// removeFromLists removes a user from all lists, and makes replicas read the lists again.
func (p *Popups) removeFromLists(ctx context.Context, user string) (n int64, err error) {
	const entries = "popup_list_users WHERE user_id = $1 AND list_id = ANY (ARRAY(SELECT id FROM popup_lists))"
	listed := false
	err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+entries+")", pgx.QueryExecModeExec, user).Scan(&listed)
	})
	if err != nil || !listed {
		return 0, err
	}
	err = p.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
		version, err := nextVersion(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT FROM popup_lists ORDER BY id FOR UPDATE", pgx.QueryExecModeExec); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "WITH gone AS (DELETE FROM "+entries+" RETURNING list_id) UPDATE popup_lists SET size = size - 1, version = $2 WHERE id IN (SELECT list_id FROM gone)",
			pgx.QueryExecModeExec, user, version)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// DeleteEvents deletes the oldest events whose campaign was shown before a time, at most limit
// of them, and returns how many. Counts and states remain. No event that old may be applied
// again: it would be counted again.
func (p *Popups) DeleteEvents(ctx context.Context, before time.Time, limit int) (deleted int, err error) {
	err = p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		result, err := inOrder(ctx, conn, "DELETE FROM popup_events WHERE id = ANY (ARRAY(SELECT id FROM popup_events WHERE id < $1 ORDER BY id LIMIT $2))",
			uuid(popup.FirstEventID(before)).String(), strconv.Itoa(limit))
		if err == nil {
			deleted = int(result.CommandTag.RowsAffected())
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete popup events: %w", err)
	}
	return deleted, nil
}
