package mysql

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/serve/popup"
)

const (
	eventColumns = "id, user_id, placement, sequence, kind, campaign_id, shown_at, at, next_at, variant, `first`"
	stateColumns = "event_id, user_id, placement, sequence, kind, campaign_id, at, next_at, state"

	// isNewer compares with the existing row. The server assigns columns from left to
	// right, and later conditions see the new values. The columns that isNewer reads are
	// therefore assigned last, the most significant one at the very end.
	isNewer = "(sequence < VALUES(sequence) OR sequence = VALUES(sequence) AND (at < VALUES(at) OR at = VALUES(at) AND event_id < VALUES(event_id)))"
)

// upsertStates returns the end of the statement that stores states.
func upsertStates() string {
	var set []string
	for _, column := range []string{"state", "next_at", "kind", "campaign_id", "event_id", "at", "sequence"} {
		set = append(set, fmt.Sprintf("%s = IF(%s, VALUES(%s), %s)", column, isNewer, column, column))
	}
	return " ON DUPLICATE KEY UPDATE " + strings.Join(set, ", ")
}

// Apply stores events. Each event counts once, however often it is applied, and the newest
// event decides a user's state, whatever the order. More than popup.ApplyMax events take
// several transactions. After an error some of the events may be stored: apply all of them
// again.
//
// The commit is durable only if the server has innodb_flush_log_at_trx_commit = 1.
func (p *Popups) Apply(ctx context.Context, events []popup.Event) error {
	return popup.InTransactions(events, func(events []popup.Event) error {
		a := applier{slot: p.slot, events: popup.Distinct(events), newest: popup.Newest(events)}
		return p.transaction(ctx, a.apply)
	})
}

// applier stores some events in one transaction.
type applier struct {
	slot   int64
	events []*popup.Event // by id
	newest []*popup.Event // ordered by user and placement

	repeated bool // some events are already stored
}

func (a *applier) apply(ctx context.Context, se *session) error {
	added := a.events
	if a.repeated {
		known, err := knownEvents(ctx, se, a.events)
		if err != nil {
			return err
		}
		added = slices.DeleteFunc(slices.Clone(a.events), func(e *popup.Event) bool { return known[e.ID] })
	}
	var refused *mysql.MySQLError
	err := insertRows(ctx, se, "INSERT INTO popup_events ("+eventColumns+") VALUES ", "", added, appendEvent)
	if errors.As(err, &refused) && refused.Number == numDuplicate {
		a.repeated = true
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

// writeSomething makes a transaction that may change nothing reach the server's logs. What
// earlier transactions have stored is durable, and replicated, once a later one is. It counts
// for campaign 0, which there is not.
func (a *applier) writeSomething(ctx context.Context, se *session) error {
	_, err := se.exec(ctx, "INSERT INTO popup_counts (campaign_id, kind, slot, events) VALUES (0, 0, ?, 1) ON DUPLICATE KEY UPDATE events = events + 1", namedValues([]any{a.slot}))
	return err
}

// count adds events to the counts of their campaigns.
func (a *applier) count(ctx context.Context, se *session, events []*popup.Event) error {
	hours := popup.Tally(events)
	err := insertRows(ctx, se, "INSERT INTO popup_counts (campaign_id, kind, slot, events) VALUES ", " ON DUPLICATE KEY UPDATE events = events + VALUES(events)", popup.Totals(hours),
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
	b = append(AppendKey(b, e), ',')
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
	b = append(AppendKey(b, e), ',')
	b = append(appendMoment(b, e.At), ',')
	b = append(appendMoment(b, e.NextAt), ',')
	return appendHex(b, popup.AppendState(nil, e.State))
}

// appendEventKey appends the first columns of both statements.
func AppendKey(b []byte, e *popup.Event) []byte {
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

// Restore calls yield for the state of each user and placement, in no set order, until
// yield returns an error. It may miss what is applied meanwhile. yield may keep its
// arguments.
func (p *Popups) Restore(ctx context.Context, yield func(popup.Key, popup.State) error) error {
	return popup.Restore(func(after popup.Key, limit int) ([]popup.Row, error) {
		user := []byte(after.User)
		return p.states(ctx, "WHERE user_id >= ? AND (user_id > ? OR placement > ?) ORDER BY user_id, placement LIMIT ?",
			user, user, after.Placement, int64(limit))
	}, yield)
}

// states reads the rows of popup_state that a condition selects.
func (p *Popups) states(ctx context.Context, where string, args ...any) (rows []popup.Row, err error) {
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		texts, err := se.texts(ctx, "SELECT user_id, placement, state FROM popup_state "+where, args...)
		rows = nil
		for _, t := range texts {
			rows = append(rows, popup.Row{Key: popup.Key{User: t[0], Placement: t[1]}, State: []byte(t[2])})
		}
		return err
	})
	return rows, err
}

// States returns the states of keys in their order; the zero State for an unknown key.
func (p *Popups) States(ctx context.Context, keys []popup.Key) ([]popup.State, error) {
	var rows []popup.Row
	for some := range slices.Chunk(keys, rowsMax) {
		// The last key is repeated up to a power of two, so that there are few different
		// statements.
		n := 1 << bits.Len(uint(len(some)-1))
		var args []any
		for i := range n {
			key := some[min(i, len(some)-1)]
			args = append(args, []byte(key.User), key.Placement)
		}
		read, err := p.states(ctx, "WHERE (user_id, placement) IN ("+tuples(n, 2)+")", args...)
		if err != nil {
			return nil, fmt.Errorf("read popup states: %w", err)
		}
		rows = append(rows, read...)
	}
	return popup.States(keys, rows)
}

// Counts returns how many events of each kind each campaign had.
func (p *Popups) Counts(ctx context.Context) (map[popup.CampaignID]popup.Counts, error) {
	all := make(map[popup.CampaignID]popup.Counts)
	err := p.withSession(ctx, func(ctx context.Context, se *session) error {
		clear(all)
		rows, err := se.texts(ctx, "SELECT campaign_id, kind, CAST(SUM(events) AS SIGNED) FROM popup_counts WHERE campaign_id > 0 GROUP BY campaign_id, kind")
		if err != nil {
			return err
		}
		for _, row := range rows {
			var numbers [3]uint64
			for i, text := range row {
				if numbers[i], err = strconv.ParseUint(text, 10, 64); err != nil {
					return err
				}
			}
			c := all[popup.CampaignID(numbers[0])]
			c.Add(popup.Kind(numbers[1]), numbers[2])
			all[popup.CampaignID(numbers[0])] = c
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read popup counts: %w", err)
	}
	return all, nil
}

// Hours returns what happened with a campaign in the hours that begin from from on and before
// to, by ascending hour, variant and kind.
func (p *Popups) Hours(ctx context.Context, campaign popup.CampaignID, from, to time.Time) (all []popup.Hour, err error) {
	err = p.withSession(ctx, func(ctx context.Context, se *session) error {
		all = nil
		rows, err := se.texts(ctx, "SELECT hour, variant, kind, CAST(SUM(events) AS SIGNED), CAST(SUM(users) AS SIGNED) FROM popup_hours "+
			"WHERE campaign_id = ? AND hour >= ? AND hour < ? GROUP BY hour, variant, kind ORDER BY hour, variant, kind",
			int64(campaign), appendDatetime(nil, from), appendDatetime(nil, to))
		if err != nil {
			return err
		}
		for _, row := range rows {
			h := popup.Hour{}
			if h.Hour, err = parseDatetime(row[0]); err != nil {
				return err
			}
			var numbers [4]uint64
			for i, text := range row[1:] {
				if numbers[i], err = strconv.ParseUint(text, 10, 64); err != nil {
					return err
				}
			}
			h.Variant, h.Kind, h.Events, h.Users = uint8(numbers[0]), popup.Kind(numbers[1]), numbers[2], numbers[3]
			all = append(all, h)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the hours of a campaign: %w", err)
	}
	return all, nil
}
