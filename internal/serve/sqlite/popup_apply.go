package sqlite

import (
	"context"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/popup"
)

const (
	insertEvent = "INSERT INTO popup_events (id, user_id, placement, sequence, kind, campaign_id, shown_at, at, next_at, variant, first) " +
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"

	upsertState = `INSERT INTO popup_state AS s (event_id, user_id, placement, sequence, kind, campaign_id, at, next_at, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (user_id, placement) DO UPDATE SET event_id = excluded.event_id, sequence = excluded.sequence, kind = excluded.kind,
	campaign_id = excluded.campaign_id, at = excluded.at, next_at = excluded.next_at, state = excluded.state
WHERE (s.sequence, s.at, s.event_id) < (excluded.sequence, excluded.at, excluded.event_id)`

	upsertCount = "INSERT INTO popup_counts AS c (campaign_id, kind, slot, events) VALUES (?, ?, 0, ?) ON CONFLICT (campaign_id, kind, " +
		"slot) DO UPDATE SET events = c.events + excluded.events"

	upsertHour = `INSERT INTO popup_hours AS h (campaign_id, hour, variant, kind, slot, events, users) VALUES (?, ?, ?, ?, 0, ?, ?)
ON CONFLICT (campaign_id, hour, variant, kind, slot) DO UPDATE SET events = h.events + excluded.events, users = h.users + excluded.users`
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
		insert.BindInt64(7, e.ShownAt.UnixMicro())
		insert.BindInt64(8, e.At.UnixMicro())
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
		upsert.BindInt64(7, e.At.UnixMicro())
		bindNext(upsert, 8, e)
		upsert.BindBytes(9, popup.AppendState(nil, e.State))
		if err := stepOnce(upsert); err != nil {
			return err
		}
	}
	return count(tableSession{conn}, added)
}

// count adds events to the counts of their campaigns.
func count(s tableSession, events []*popup.Event) error {
	hours := popup.Tally(events)
	for _, c := range popup.Totals(hours) {
		if _, err := s.Exec(context.Background(), upsertCount, int64(c.Campaign), int64(c.Kind), int64(c.Events)); err != nil {
			return err
		}
	}
	for _, h := range hours {
		_, err := s.Exec(context.Background(), upsertHour, int64(h.Campaign), h.Hour.Hour, int64(h.Variant), int64(h.Kind), int64(h.Events),
			int64(h.Users))
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
	stmt.BindInt64(param, e.NextAt.UnixMicro())
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
