package sqlite

import (
	"context"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/popup"
)

const (
	insertEvent = "INSERT INTO popup_events (id, user_id, placement, sequence, kind, campaign_id, shown_at, at, next_at, variant, first) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"

	upsertState = `INSERT INTO popup_state AS s (event_id, user_id, placement, sequence, kind, campaign_id, at, next_at, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (user_id, placement) DO UPDATE SET event_id = excluded.event_id, sequence = excluded.sequence, kind = excluded.kind,
	campaign_id = excluded.campaign_id, at = excluded.at, next_at = excluded.next_at, state = excluded.state
WHERE (s.sequence, s.at, s.event_id) < (excluded.sequence, excluded.at, excluded.event_id)`

	upsertCount = "INSERT INTO popup_counts AS c (campaign_id, kind, events) VALUES (?, ?, ?) ON CONFLICT (campaign_id, kind) DO UPDATE SET events = c.events + excluded.events"

	upsertHour = `INSERT INTO popup_hours AS h (campaign_id, hour, variant, kind, events, users) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (campaign_id, hour, variant, kind) DO UPDATE SET events = h.events + excluded.events, users = h.users + excluded.users`
)

// Apply stores events. Each event counts once, however often it is applied, and the newest
// event decides a user's state, whatever the order. More than popup.ApplyMax events take
// several transactions. After an error some of the events may be stored: apply all of them
// again.
func (p *Popups) Apply(ctx context.Context, events []popup.Event) error {
	return popup.InTransactions(events, func(events []popup.Event) error {
		return p.transaction(ctx, func(conn *sqlite.Conn) error { return applyEvents(conn, events) })
	})
}

// applyEvents runs one prepared statement per row. There are no round trips to save.
func applyEvents(conn *sqlite.Conn, events []popup.Event) error {
	var added []*popup.Event
	insert, err := conn.Prepare(insertEvent)
	if err != nil {
		return err
	}
	for _, e := range popup.Distinct(events) {
		bindEvent(insert, e)
		insert.BindInt64(7, e.ShownAt.UnixMilli())
		insert.BindInt64(8, e.At.UnixMilli())
		bindNext(insert, 9, e)
		insert.BindInt64(10, int64(e.Variant))
		insert.BindBool(11, e.First)
		if err := stepOnce(insert); err != nil {
			return err
		}
		if conn.Changes() > 0 {
			added = append(added, e)
		}
	}
	upsert, err := conn.Prepare(upsertState)
	if err != nil {
		return err
	}
	for _, e := range popup.Newest(events) {
		bindEvent(upsert, e)
		upsert.BindInt64(7, e.At.UnixMilli())
		bindNext(upsert, 8, e)
		upsert.BindBytes(9, popup.AppendState(nil, e.State))
		if err := stepOnce(upsert); err != nil {
			return err
		}
	}
	return count(conn, added)
}

// count adds events to the counts of their campaigns.
func count(conn *sqlite.Conn, events []*popup.Event) error {
	hours := popup.Tally(events)
	for _, c := range popup.Totals(hours) {
		if err := sqlitex.Execute(conn, upsertCount, &sqlitex.ExecOptions{Args: []any{int64(c.Campaign), int64(c.Kind), int64(c.Events)}}); err != nil {
			return err
		}
	}
	for _, h := range hours {
		err := sqlitex.Execute(conn, upsertHour, &sqlitex.ExecOptions{Args: []any{
			int64(h.Campaign), h.Hour.Hour.UnixMilli(), int64(h.Variant), int64(h.Kind), int64(h.Events), int64(h.Users),
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// bindEvent binds the first columns of both statements.
func bindEvent(stmt *sqlite.Stmt, e *popup.Event) {
	stmt.BindBytes(1, e.ID[:])
	stmt.BindText(2, e.Key.User)
	stmt.BindText(3, e.Key.Placement)
	stmt.BindInt64(4, int64(e.Sequence))
	stmt.BindInt64(5, int64(e.Kind))
	stmt.BindInt64(6, int64(e.Campaign))
}

func bindNext(stmt *sqlite.Stmt, param int, e *popup.Event) {
	if e.NextAt.IsZero() {
		stmt.BindNull(param)
		return
	}
	stmt.BindInt64(param, e.NextAt.UnixMilli())
}

// stepOnce runs a statement that returns no rows.
func stepOnce(stmt *sqlite.Stmt) error {
	_, err := stmt.Step()
	// Reset returns the error of a failed step again.
	if resetErr := stmt.Reset(); err == nil {
		err = resetErr
	}
	return err
}

// Restore calls yield for the state of each user and placement, in no set order, until
// yield returns an error. It may miss what is applied meanwhile. yield may keep its
// arguments.
func (p *Popups) Restore(ctx context.Context, yield func(popup.Key, popup.State) error) error {
	return popup.Restore(func(after popup.Key, limit int) (rows []popup.Row, err error) {
		err = p.db.read(ctx, func(conn *sqlite.Conn) error {
			rows, err = readStates(conn, nil, "(user_id, placement) > (?, ?) ORDER BY user_id, placement LIMIT ?", after.User, after.Placement, limit)
			return err
		})
		return rows, err
	}, yield)
}

// readStates appends the rows of popup_state that a condition selects.
func readStates(conn *sqlite.Conn, rows []popup.Row, where string, args ...any) ([]popup.Row, error) {
	err := sqlitex.Execute(conn, "SELECT user_id, placement, state FROM popup_state WHERE "+where, &sqlitex.ExecOptions{
		Args: args, ResultFunc: func(stmt *sqlite.Stmt) error {
			rows = append(rows, popup.Row{Key: popup.Key{User: stmt.ColumnText(0), Placement: stmt.ColumnText(1)}, State: columnBytes(stmt, 2)})
			return nil
		},
	})
	return rows, err
}

// States returns the states of keys in their order; the zero State for an unknown key.
func (p *Popups) States(ctx context.Context, keys []popup.Key) ([]popup.State, error) {
	var rows []popup.Row
	err := p.db.read(ctx, func(conn *sqlite.Conn) (err error) {
		for _, key := range keys {
			if rows, err = readStates(conn, rows, "user_id = ? AND placement = ?", key.User, key.Placement); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read popup states: %w", err)
	}
	return popup.States(keys, rows)
}

// Counts returns how many events of each kind each campaign had.
func (p *Popups) Counts(ctx context.Context) (map[popup.CampaignID]popup.Counts, error) {
	all := make(map[popup.CampaignID]popup.Counts)
	err := p.db.read(ctx, func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT campaign_id, kind, events FROM popup_counts", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
			id := popup.CampaignID(stmt.ColumnInt64(0))
			c := all[id]
			c.Add(popup.Kind(stmt.ColumnInt64(1)), uint64(stmt.ColumnInt64(2)))
			all[id] = c
			return nil
		}})
	})
	if err != nil {
		return nil, fmt.Errorf("read popup counts: %w", err)
	}
	return all, nil
}

// Hours returns what happened with a campaign in the hours that begin from from on and before
// to, by ascending hour, variant and kind.
func (p *Popups) Hours(ctx context.Context, campaign popup.CampaignID, from, to time.Time) (all []popup.Hour, err error) {
	err = p.db.read(ctx, func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT hour, variant, kind, events, users FROM popup_hours WHERE campaign_id = ? AND hour >= ? AND hour < ? ORDER BY hour, variant, kind", &sqlitex.ExecOptions{
			Args: []any{int64(campaign), from.UnixMilli(), to.UnixMilli()}, ResultFunc: func(stmt *sqlite.Stmt) error {
				all = append(all, popup.Hour{
					Hour: time.UnixMilli(stmt.ColumnInt64(0)).UTC(), Variant: uint8(stmt.ColumnInt64(1)), Kind: popup.Kind(stmt.ColumnInt64(2)),
					Events: uint64(stmt.ColumnInt64(3)), Users: uint64(stmt.ColumnInt64(4)),
				})
				return nil
			},
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the hours of a campaign: %w", err)
	}
	return all, nil
}
