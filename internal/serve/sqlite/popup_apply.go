package sqlite

import (
	"context"
	"fmt"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/popup"
)

const (
	insertEvent = "INSERT INTO popup_events (id, user_id, placement, sequence, kind, campaign_id, shown_at, at, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"

	upsertState = `INSERT INTO popup_state AS s (event_id, user_id, placement, sequence, kind, campaign_id, at, next_at, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (user_id, placement) DO UPDATE SET event_id = excluded.event_id, sequence = excluded.sequence, kind = excluded.kind,
	campaign_id = excluded.campaign_id, at = excluded.at, next_at = excluded.next_at, state = excluded.state
WHERE (s.sequence, s.at, s.event_id) < (excluded.sequence, excluded.at, excluded.event_id)`

	upsertCount = "INSERT INTO popup_counts AS c (campaign_id, kind, events) VALUES (?, ?, ?) ON CONFLICT (campaign_id, kind) DO UPDATE SET events = c.events + excluded.events"

	upsertQueue = "INSERT INTO popup_queues AS q (queue, sequence) VALUES (?, ?) ON CONFLICT (queue) DO UPDATE SET sequence = max(q.sequence, excluded.sequence)"
)

// Apply stores events and their queue's position atomically. Each event counts once,
// however often it is applied, and the newest event decides a user's state, whatever the
// order. More than popup.ApplyMax events take several transactions, with the position in
// the last. After an error some of the events may be stored: apply all of them again.
func (p *Popups) Apply(ctx context.Context, mark popup.Mark, events []popup.Event) error {
	for first := true; first || len(events) > 0; first = false {
		part := events[:min(len(events), popup.ApplyMax)]
		events = events[len(part):]
		err := p.transaction(ctx, func(conn *sqlite.Conn) error {
			if err := applyEvents(conn, part); err != nil || len(events) > 0 || mark.Sequence == 0 {
				return err
			}
			return sqlitex.Execute(conn, upsertQueue, &sqlitex.ExecOptions{Args: []any{mark.Queue[:], int64(mark.Sequence)}})
		})
		if err != nil {
			return fmt.Errorf("apply %d popup events: %w", len(part), err)
		}
	}
	return nil
}

// applyEvents runs one prepared statement per row. There are no round trips to save.
func applyEvents(conn *sqlite.Conn, events []popup.Event) error {
	type row struct {
		campaign popup.CampaignID
		kind     popup.Kind
	}
	counts := make(map[row]int64)
	insert, err := conn.Prepare(insertEvent)
	if err != nil {
		return err
	}
	for _, e := range popup.Distinct(events) {
		bindEvent(insert, e)
		insert.BindInt64(7, e.ShownAt.UnixMilli())
		insert.BindInt64(8, e.At.UnixMilli())
		bindNext(insert, 9, e)
		if err := stepOnce(insert); err != nil {
			return err
		}
		if conn.Changes() > 0 {
			counts[row{e.Campaign, e.Kind}]++
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
	for r, n := range counts {
		if err := sqlitex.Execute(conn, upsertCount, &sqlitex.ExecOptions{Args: []any{int64(r.campaign), int64(r.kind), n}}); err != nil {
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

// Mark returns the position up to which a queue has been applied, 0 for an unknown queue.
func (p *Popups) Mark(ctx context.Context, queue [16]byte) (uint64, error) {
	sequence := uint64(0)
	err := p.db.read(ctx, func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT sequence FROM popup_queues WHERE queue = ?", &sqlitex.ExecOptions{
			Args: []any{queue[:]}, ResultFunc: func(stmt *sqlite.Stmt) error {
				sequence = uint64(stmt.ColumnInt64(0))
				return nil
			},
		})
	})
	if err != nil {
		return 0, fmt.Errorf("read the position of a queue: %w", err)
	}
	return sequence, nil
}

// restoreRows is the number of states that one statement of Restore reads.
const restoreRows = 5000

// Restore calls yield for the state of each user and placement, in no set order, until
// yield returns an error. It may miss what is applied meanwhile. yield may keep its
// arguments.
func (p *Popups) Restore(ctx context.Context, yield func(popup.Key, popup.State) error) error {
	var last popup.Key
	for {
		var keys []popup.Key
		var states []popup.State
		err := p.db.read(ctx, func(conn *sqlite.Conn) error {
			return sqlitex.Execute(conn, "SELECT user_id, placement, state FROM popup_state WHERE (user_id, placement) > (?, ?) ORDER BY user_id, placement LIMIT ?",
				&sqlitex.ExecOptions{Args: []any{last.User, last.Placement, restoreRows}, ResultFunc: func(stmt *sqlite.Stmt) error {
					key, state, err := readState(stmt)
					keys, states = append(keys, key), append(states, state)
					return err
				}})
		})
		if err != nil {
			return fmt.Errorf("read popup states: %w", err)
		}
		for i, key := range keys {
			if err := yield(key, states[i]); err != nil {
				return err
			}
		}
		if len(keys) < restoreRows {
			return nil
		}
		last = keys[len(keys)-1]
	}
}

func readState(stmt *sqlite.Stmt) (popup.Key, popup.State, error) {
	key := popup.Key{User: stmt.ColumnText(0), Placement: stmt.ColumnText(1)}
	state, err := popup.DecodeState(columnBytes(stmt, 2))
	if err != nil {
		return key, state, fmt.Errorf("user %q at %s: %w", key.User, key.Placement, err)
	}
	return key, state, nil
}

// States returns the states of keys in their order; the zero State for an unknown key.
func (p *Popups) States(ctx context.Context, keys []popup.Key) ([]popup.State, error) {
	out := make([]popup.State, len(keys))
	err := p.db.read(ctx, func(conn *sqlite.Conn) error {
		for i, key := range keys {
			err := sqlitex.Execute(conn, "SELECT user_id, placement, state FROM popup_state WHERE user_id = ? AND placement = ?",
				&sqlitex.ExecOptions{Args: []any{key.User, key.Placement}, ResultFunc: func(stmt *sqlite.Stmt) (err error) {
					_, out[i], err = readState(stmt)
					return err
				}})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read popup states: %w", err)
	}
	return out, nil
}

// Counts returns how often each campaign was shown, clicked and dismissed.
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
