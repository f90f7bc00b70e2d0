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

// forgetPage is the number of events that are searched for those of one user at once.
const forgetPage = 4000

// Forget deletes the states of a user, the events and the entries of lists, in batches, and
// returns how many rows and entries it has deleted. It reads all events and lists. The caller
// first makes sure that no event of the user is applied later, which would store a state again:
// nothing records events of the user any more, and those in spools and streams have been
// applied. After an error, call it again. Names of testers in campaigns and their history remain.
func (t *Tables) Forget(ctx context.Context, user string) (rows int64, err error) {
	err = t.db.Change(ctx, 1, func(ctx context.Context, s tables.Session) error {
		rows, err = s.Exec(ctx, "DELETE FROM popup_state WHERE user_id = ?", user)
		return err
	})
	for after, more := [16]byte{}, true; more && err == nil; {
		var deleted int64
		after, more, deleted, err = t.forgetEvents(ctx, user, after)
		rows += deleted
	}
	if err == nil {
		var removed int64
		removed, err = t.removeFromLists(ctx, user)
		rows += removed
	}
	if err != nil {
		return rows, fmt.Errorf("forget a user: %w", err)
	}
	return rows, nil
}

// forgetEvents deletes the events of a user among the next ones after an id. It returns the id
// of the last of these, and whether there may be more.
func (t *Tables) forgetEvents(ctx context.Context, user string, after [16]byte) (last [16]byte, more bool, deleted int64, err error) {
	err = t.db.Change(ctx, 1, func(ctx context.Context, s tables.Session) error {
		end, err := s.Rows(ctx, "SELECT id FROM popup_events WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", after, int64(forgetPage-1))
		if err != nil {
			return err
		}
		last = [16]byte(slices.Repeat([]byte{0xff}, 16))
		if more = len(end) > 0; more {
			last = [16]byte([]byte(end[0][0]))
		}
		// A DELETE by user would lock all events of the page.
		ids, err := s.Rows(ctx, "SELECT id FROM popup_events WHERE user_id = ? AND id > ? AND id <= ?", user, after, last)
		if err != nil {
			return err
		}
		deleted, err = t.deleteEvents(ctx, s, ids)
		return err
	})
	return last, more, deleted, err
}

// deleteEvents deletes the events with these ids.
func (t *Tables) deleteEvents(ctx context.Context, s tables.Session, ids []tables.Row) (deleted int64, err error) {
	for some := range slices.Chunk(ids, keysMax) {
		args := make([]any, len(some))
		for i, row := range some {
			args[i] = [16]byte([]byte(row[0]))
		}
		in, args := t.dialect.In(args)
		n, err := s.Exec(ctx, "DELETE FROM popup_events WHERE id "+in, args...)
		if err != nil {
			return deleted, err
		}
		deleted += n
	}
	return deleted, nil
}

// DeleteEvents deletes the oldest events whose campaign was shown before a time, at most limit
// of them, and returns how many. Counts and states remain. No event that old may be applied
// again: it would be counted again.
func (t *Tables) DeleteEvents(ctx context.Context, before time.Time, limit int) (int, error) {
	var deleted int64
	err := t.db.Change(ctx, 1, func(ctx context.Context, s tables.Session) error {
		ids, err := s.Rows(ctx, "SELECT id FROM popup_events WHERE id < ? ORDER BY id LIMIT ?", popup.FirstEventID(before), int64(limit))
		if err != nil {
			return err
		}
		deleted, err = t.deleteEvents(ctx, s, ids)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete popup events: %w", err)
	}
	return int(deleted), nil
}

// listPart is a part of a list.
type listPart struct {
	list popup.ListVersion
	part int64
}

// removeFromLists removes a user from all lists, which makes processes read these again, and
// returns from how many. It reads all lists.
func (t *Tables) removeFromLists(ctx context.Context, user string) (int64, error) {
	lists, err := t.Lists(ctx)
	if err != nil {
		return 0, err
	}
	hash := popup.UserHash(user)
	var found []listPart
	for _, list := range lists {
		part, listed, err := t.findPart(ctx, list.Name, hash)
		if err != nil {
			return 0, err
		}
		if listed {
			found = append(found, part)
		}
	}
	if len(found) == 0 {
		return 0, nil
	}
	err = t.db.Change(ctx, 1, func(ctx context.Context, s tables.Session) error {
		version, err := t.nextVersion(ctx, s)
		if err != nil {
			return err
		}
		for _, p := range found {
			if err := removeFromPart(ctx, s, p, hash, version); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return int64(len(found)), nil
}

// findPart returns the part of a list that has a user.
func (t *Tables) findPart(ctx context.Context, name string, hash uint64) (found listPart, listed bool, err error) {
	var size int64
	for part := int64(0); part == 0 || size < found.list.Size; part++ {
		list, hashes, err := t.readPart(ctx, name, part, found.list)
		switch {
		case errors.Is(err, popup.ErrNoList): // deleted meanwhile, and the user with it
			return found, false, nil
		case err != nil:
			return found, false, err
		}
		found, size = listPart{list, part}, size+int64(len(hashes))
		if _, listed = slices.BinarySearch(hashes, hash); listed {
			return found, true, nil
		}
	}
	return found, false, nil
}

// removeFromPart removes a user from a part of a list, unless the list has changed since.
func removeFromPart(ctx context.Context, s tables.Session, p listPart, hash uint64, version int64) error {
	changed, err := s.Exec(ctx, "UPDATE popup_lists SET version = ?, size = size - 1 WHERE name = ? AND version = ?", version, p.list.Name,
		p.list.Version)
	if err == nil && changed == 0 {
		err = popup.ErrListChanged
	}
	if err != nil {
		return err
	}
	rows, err := s.Rows(ctx, "SELECT hashes FROM popup_list_parts WHERE name = ? AND part = ?", p.list.Name, p.part)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fmt.Errorf("part %d of the list %s is missing", p.part, p.list.Name)
	}
	hashes := decodePart(rows[0][0])
	i, listed := slices.BinarySearch(hashes, hash)
	if !listed {
		return fmt.Errorf("part %d of the list %s has another content than its version %d", p.part, p.list.Name, p.list.Version)
	}
	hashes = slices.Delete(hashes, i, i+1)
	_, err = s.Exec(ctx, "UPDATE popup_list_parts SET hashes = ? WHERE name = ? AND part = ?", encodePart(hashes), p.list.Name, p.part)
	return err
}
