package popuptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/tables"
)

const (
	restoreRows = 5000 // states that Restore reads at once
	keysMax     = 512  // values of one IN, a power of two
)

// readState reads user, placement and state.
func readState(row tables.Row) (popup.Key, popup.State, error) {
	key := popup.Key{User: row[0], Placement: row[1]}
	state, err := popup.DecodeState([]byte(row[2]))
	if err != nil {
		return key, state, fmt.Errorf("read the popup state of user %q at %s: %w", key.User, key.Placement, err)
	}
	return key, state, nil
}

// Restore calls yield for the state of each user and placement, in no set order, until yield
// returns an error. It may miss what is applied meanwhile. yield may keep its arguments.
func (t *Tables) Restore(ctx context.Context, yield func(popup.Key, popup.State) error) error {
	var last popup.Key
	for {
		after, args := t.dialect.After([2]string{"user_id", "placement"}, [2]any{last.User, last.Placement})
		rows, err := t.rows(ctx, "SELECT user_id, placement, state FROM popup_state WHERE "+after+
			" ORDER BY user_id, placement LIMIT ?", append(args, int64(restoreRows))...)
		if err != nil {
			return fmt.Errorf("read popup states: %w", err)
		}
		for _, row := range rows {
			key, state, err := readState(row)
			if err == nil {
				err = yield(key, state)
			}
			if err != nil {
				return err
			}
			last = key
		}
		if len(rows) < restoreRows {
			return nil
		}
	}
}

// States returns the states of keys in their order; the zero State for an unknown key.
func (t *Tables) States(ctx context.Context, keys []popup.Key) ([]popup.State, error) {
	found := make(map[popup.Key]popup.State, len(keys))
	for some := range slices.Chunk(keys, keysMax) {
		users := make([]any, len(some))
		for i, key := range some {
			users[i] = key.User
		}
		in, users := t.dialect.In(users)
		// A user has few placements: those that are not asked for cost little.
		rows, err := t.rows(ctx, "SELECT user_id, placement, state FROM popup_state WHERE user_id "+in, users...)
		if err != nil {
			return nil, fmt.Errorf("read popup states: %w", err)
		}
		for _, row := range rows {
			key, state, err := readState(row)
			if err != nil {
				return nil, err
			}
			found[key] = state
		}
	}
	states := make([]popup.State, len(keys))
	for i, key := range keys {
		states[i] = found[key]
	}
	return states, nil
}

// Counts returns how many events of each kind each campaign had.
func (t *Tables) Counts(ctx context.Context) (map[popup.CampaignID]popup.Counts, error) {
	rows, err := t.rows(ctx, "SELECT campaign_id, kind, "+t.sum("events")+
		" FROM popup_counts WHERE campaign_id > 0 GROUP BY campaign_id, kind")
	all := make(map[popup.CampaignID]popup.Counts)
	for _, row := range rows {
		var numbers []int64
		if numbers, err = integers(row); err != nil {
			break
		}
		id := popup.CampaignID(numbers[0])
		c := all[id]
		c.Add(popup.Kind(numbers[1]), uint64(numbers[2]))
		all[id] = c
	}
	if err != nil {
		return nil, fmt.Errorf("read popup counts: %w", err)
	}
	return all, nil
}

// integers returns the values of a row of integers.
func integers(row tables.Row) ([]int64, error) {
	numbers := make([]int64, len(row))
	for i := range row {
		n, err := row.Integer(i)
		if err != nil {
			return nil, err
		}
		numbers[i] = n
	}
	return numbers, nil
}

// Hours returns what happened with a campaign in the hours that begin from from on and before
// to, by ascending hour, variant and kind.
func (t *Tables) Hours(ctx context.Context, campaign popup.CampaignID, from, to time.Time) ([]popup.Hour, error) {
	rows, err := t.rows(ctx, "SELECT hour, variant, kind, "+t.sum("events")+", "+t.sum("users")+" FROM popup_hours "+
		"WHERE campaign_id = ? AND hour >= ? AND hour < ? GROUP BY hour, variant, kind ORDER BY hour, variant, kind", int64(campaign), from, to)
	return collect(rows, err, "the hours of a campaign", func(row tables.Row) (popup.Hour, error) {
		hour, timeErr := row.Time(0)
		numbers, numberErr := integers(row[1:])
		if err := errors.Join(timeErr, numberErr); err != nil {
			return popup.Hour{}, err
		}
		return popup.Hour{
			Hour: hour, Variant: uint8(numbers[0]), Kind: popup.Kind(numbers[1]), Events: uint64(numbers[2]), Users: uint64(numbers[3]),
		}, nil
	})
}

// collect returns what read makes of rows, which are those of what.
func collect[T any](rows []tables.Row, err error, what string, read func(tables.Row) (T, error)) (all []T, failed error) {
	for _, row := range rows {
		var one T
		if one, err = read(row); err != nil {
			break
		}
		all = append(all, one)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return all, nil
}
