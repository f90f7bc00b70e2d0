package mysql

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/popup"
)

// The columns in the order of appendEvent and appendNewest.
const (
	eventColumns = "id, user_id, placement, sequence, kind, campaign_id, shown_at, at, next_at, variant, first"
	stateColumns = "event_id, user_id, placement, sequence, kind, campaign_id, at, next_at, state"
)

// upsertStates returns the end of the statement that stores states, which replaces an older row.
func upsertStates() string {
	const isNewer = "(sequence < VALUES(sequence) OR sequence = VALUES(sequence) AND (at < VALUES(at) OR at = VALUES(at) AND event_id < " +
		"VALUES(event_id)))"
	// The server assigns columns from left to right, and later conditions see the new values.
	// Those that isNewer reads are therefore last, the most significant one at the very end.
	columns := []string{"state", "next_at", "kind", "campaign_id", "event_id", "at", "sequence"}
	var set []string
	for _, column := range columns {
		set = append(set, fmt.Sprintf("%s = IF(%s, VALUES(%s), %s)", column, isNewer, column, column))
	}
	return " ON DUPLICATE KEY UPDATE " + strings.Join(set, ", ")
}

// Apply stores events. Each event counts once, however often it is applied, and the newest event decides a user's state, whatever the
// order. More than popup.ApplyMax events take several transactions. After an error some of the events may be stored: apply all of them
// again.
//
// The commit is durable only if the server has innodb_flush_log_at_trx_commit = 1. Without the lock that
// this process took, nothing is stored.
func (p *Popups) Apply(ctx context.Context, events []popup.Event) error {
	return popup.InTransactions(events, func(events []popup.Event) error {
		a := applier{slot: p.slot, events: popup.Distinct(events), newest: popup.Newest(events)}
		return popupDatabase{p.db}.transaction(ctx, func(ctx context.Context, se *session) error {
			if err := a.apply(ctx, se); err != nil {
				return err
			}
			return p.checkHolder(ctx, se)
		})
	})
}

// applier stores some events in one transaction.
type applier struct {
	slot   int64
	events []*popup.Event // by id
	newest []*popup.Event // ordered by user and placement
}

func (a *applier) apply(ctx context.Context, se *session) error {
	added := a.events
	err := insertEvents(ctx, se, added)
	if isRefusal(err, numDuplicate) { // some are stored already: begin again without them
		added, err = a.unknown(ctx, se)
		if err == nil {
			err = insertEvents(ctx, se, added)
		}
	}
	if err != nil {
		return err
	}
	if err := a.count(ctx, se, added); err != nil {
		return err
	}
	err = insertRows(ctx, se, "INSERT INTO popup_state ("+stateColumns+") VALUES ", upsertStates(), a.newest, appendNewest)
	if err == nil && len(added) == 0 {
		err = a.writeSomething(ctx, se)
	}
	return err
}

func insertEvents(ctx context.Context, se *session, events []*popup.Event) error {
	return insertRows(ctx, se, "INSERT INTO popup_events ("+eventColumns+") VALUES ", "", events, appendEvent)
}

// unknown begins a new transaction and returns the events that are not stored.
func (a *applier) unknown(ctx context.Context, se *session) ([]*popup.Event, error) {
	for _, sql := range []string{"ROLLBACK", "START TRANSACTION"} {
		if err := se.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	known, err := knownEvents(ctx, se, a.events)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(a.events), func(e *popup.Event) bool { return known[e.ID] }), nil
}

// writeSomething makes a transaction that may change nothing reach the server's logs. What earlier transactions have stored is durable,
// and replicated, once a later one is. It counts for campaign 0, which there is not.
func (a *applier) writeSomething(ctx context.Context, se *session) error {
	_, err := se.exec(ctx, "INSERT INTO popup_counts (campaign_id, kind, slot, events) VALUES (0, 0, ?, 1) ON DUPLICATE KEY UPDATE "+
		"events = events + 1", namedValues([]any{a.slot}))
	return err
}

// count adds events to the counts of their campaigns.
func (a *applier) count(ctx context.Context, se *session, events []*popup.Event) error {
	hours := popup.Tally(events)
	err := insertRows(ctx, se, "INSERT INTO popup_counts (campaign_id, kind, slot, events) VALUES ",
		" ON DUPLICATE KEY UPDATE events = events + VALUES(events)", popup.Totals(hours),
		func(b []byte, c popup.CampaignCount) []byte {
			return appendInts(b, int64(c.Campaign), int64(c.Kind), a.slot, int64(c.Events))
		})
	if err != nil {
		return err
	}
	return insertRows(ctx, se, "INSERT INTO popup_hours (campaign_id, hour, variant, kind, slot, events, users) VALUES ",
		" ON DUPLICATE KEY UPDATE events = events + VALUES(events), users = users + VALUES(users)", hours,
		func(b []byte, h popup.CampaignHour) []byte {
			b = append(appendInts(b, int64(h.Campaign)), ',')
			b = append(appendMoment(b, h.Hour.Hour), ',')
			return appendInts(b, int64(h.Variant), int64(h.Kind), a.slot, int64(h.Events), int64(h.Users))
		})
}

// statementBytes is the approximate length of a statement.
const statementBytes = 128 << 10

// insertRows inserts one row per item. values appends its values, separated by commas, as
// literals, which cost this process less than parameters and the server no more.
func insertRows[T any](ctx context.Context, se *session, head, tail string, items []T, values func([]byte, T) []byte) error {
	var b []byte
	for i, item := range items {
		if len(b) == 0 {
			b = append(b, head...)
		} else {
			b = append(b, ',')
		}
		b = append(values(append(b, '('), item), ')')
		if len(b) < statementBytes && i+1 < len(items) {
			continue
		}
		if err := se.Exec(ctx, string(append(b, tail...))); err != nil {
			return err
		}
		b = b[:0]
	}
	return nil
}

func appendEvent(b []byte, e *popup.Event) []byte {
	b = append(appendKey(b, e), ',')
	b = append(appendMoment(b, e.ShownAt), ',')
	b = append(appendMoment(b, e.At), ',')
	b = append(appendMoment(b, e.NextAt), ',')
	first := int64(0)
	if e.First {
		first = 1
	}
	return appendInts(b, int64(e.Variant), first)
}

func appendNewest(b []byte, e *popup.Event) []byte {
	b = append(appendKey(b, e), ',')
	b = append(appendMoment(b, e.At), ',')
	b = append(appendMoment(b, e.NextAt), ',')
	return appendHex(b, popup.AppendState(nil, e.State))
}

// appendKey appends the first columns of both statements.
func appendKey(b []byte, e *popup.Event) []byte {
	b = append(appendHex(b, e.ID[:]), ',')
	b = append(appendHex(b, []byte(e.Key.User)), ',')
	b = append(appendHex(b, []byte(e.Key.Placement)), ',')
	return appendInts(b, int64(e.Sequence), int64(e.Kind), int64(e.Campaign))
}

// appendHex appends a literal that every setting of the server reads in the same way.
func appendHex(b, data []byte) []byte {
	return append(hex.AppendEncode(append(b, "X'"...), data), '\'')
}

func appendInts(b []byte, values ...int64) []byte {
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return b
}

// appendMoment appends a time; NULL for the zero time.
func appendMoment(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, "NULL"...)
	}
	return append(appendDatetime(append(b, '\''), t), '\'')
}

// knownEvents returns the ids of the events that are already stored.
func knownEvents(ctx context.Context, se *session, events []*popup.Event) (map[[16]byte]bool, error) {
	known := make(map[[16]byte]bool)
	for len(events) > 0 {
		n := min(powerBelow(len(events)), rowsMax)
		var args []any
		for _, e := range events[:n] {
			args = append(args, e.ID[:])
		}
		rows, err := se.texts(ctx, "SELECT id FROM popup_events WHERE id IN "+tuples(1, n), args...)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			known[[16]byte([]byte(row[0]))] = true
		}
		events = events[n:]
	}
	return known, nil
}
