package popuptables

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/tables"
)

// partUsers is the number of users in each part of a list but the last, of 8 bytes each, in
// ascending order. A part from which users were removed has fewer. MySQL takes no more than 1 MiB
// with max_allowed_packet of that size.
const partUsers = 1 << 17

// Lists returns the lists by name.
func (t *Tables) Lists(ctx context.Context) ([]popup.ListVersion, error) {
	rows, err := t.rows(ctx, "SELECT name, version, size, at FROM popup_lists ORDER BY name")
	return collect(rows, err, "the lists", readList)
}

func readList(row tables.Row) (list popup.ListVersion, err error) {
	list.Name = row[0]
	if list.Version, err = row.Integer(1); err != nil {
		return list, err
	}
	if list.Size, err = row.Integer(2); err != nil {
		return list, err
	}
	list.At.Time, err = row.Time(3)
	return list, err
}

// ListUsers returns the hashes of a list's users, in ascending order. Errors wrap
// popup.ErrNoList or popup.ErrListChanged.
func (t *Tables) ListUsers(ctx context.Context, name string) (list popup.ListVersion, hashes []uint64, err error) {
	for part := int64(0); part == 0 || int64(len(hashes)) < list.Size; part++ {
		var more []uint64
		if list, more, err = t.readPart(ctx, name, part, list); err != nil {
			return list, nil, fmt.Errorf("read the users of a list: %w", err)
		}
		if part == 0 {
			hashes = make([]uint64, 0, list.Size)
		}
		hashes = append(hashes, more...)
	}
	return list, hashes, nil
}

// readPart reads one part of a list. before is the list as it was read with the parts before.
func (t *Tables) readPart(ctx context.Context, name string, part int64, before popup.ListVersion) (list popup.ListVersion, hashes []uint64,
	err error,
) {
	rows, err := t.rows(ctx, "SELECT l.name, l.version, l.size, l.at, p.hashes, p.part FROM popup_lists AS l "+
		"LEFT JOIN popup_list_parts AS p ON p.name = l.name AND p.part = ? WHERE l.name = ?", part, name)
	if err != nil {
		return list, nil, err
	}
	if len(rows) == 0 {
		return list, nil, popup.ErrNoList
	}
	if list, err = readList(rows[0]); err != nil {
		return list, nil, err
	}
	if part > 0 && list != before {
		return list, nil, popup.ErrListChanged
	}
	if rows[0][5] == "" && list.Size > 0 { // a part may be empty, because users were removed
		return list, nil, fmt.Errorf("part %d of the list %s is missing", part, name)
	}
	return list, decodePart(rows[0][4]), nil
}

// decodePart returns the hashes of a part.
func decodePart(part string) []uint64 {
	hashes := make([]uint64, 0, len(part)/8)
	for ; len(part) >= 8; part = part[8:] {
		hashes = append(hashes, binary.BigEndian.Uint64([]byte(part[:8])))
	}
	return hashes
}

// encodePart returns the hashes of a part as the database has them.
func encodePart(hashes []uint64) []byte {
	part := make([]byte, 0, 8*len(hashes))
	for _, hash := range hashes {
		part = binary.BigEndian.AppendUint64(part, hash)
	}
	return part
}

// ReplaceList makes a list have the users with these hashes, which are in ascending order and
// not repeated, or creates it. Readers see the old list or the new one. After an error the list
// may be replaced.
func (t *Tables) ReplaceList(ctx context.Context, name string, hashes []uint64, by audit.Author) (popup.ListVersion, error) {
	var saved popup.ListVersion // read only after Change has returned nil
	err := t.db.Change(ctx, 1+len(hashes)/partUsers, func(ctx context.Context, s tables.Session) error {
		version, err := t.nextVersion(ctx, s)
		if err != nil {
			return err
		}
		if _, err := deleteList(ctx, s, name); err != nil {
			return err
		}
		part := int64(0)
		for some := range slices.Chunk(hashes, partUsers) {
			if _, err := s.Exec(ctx, "INSERT INTO popup_list_parts (name, part, hashes) VALUES (?, ?, ?)", name, part,
				encodePart(some)); err != nil {
				return err
			}
			part++
		}
		if _, err := s.Exec(ctx, "INSERT INTO popup_lists (name, version, size, at) VALUES (?, ?, ?, "+t.dialect.Now+")", name, version,
			int64(len(hashes))); err != nil {
			return err
		}
		rows, err := s.Rows(ctx, "SELECT name, version, size, at FROM popup_lists WHERE name = ?", name)
		if err != nil {
			return err
		}
		if saved, err = readList(rows[0]); err != nil {
			return err
		}
		return t.addChange(ctx, s, by, fmt.Sprintf("%d users", len(hashes)))
	})
	if err != nil {
		return popup.ListVersion{}, fmt.Errorf("replace the list %s: %w", name, err)
	}
	return saved, nil
}

// deleteList deletes the rows of a list, and returns how many lists it has deleted.
func deleteList(ctx context.Context, s tables.Session, name string) (int64, error) {
	if _, err := s.Exec(ctx, "DELETE FROM popup_list_parts WHERE name = ?", name); err != nil {
		return 0, err
	}
	return s.Exec(ctx, "DELETE FROM popup_lists WHERE name = ?", name)
}

// DeleteList deletes a list. The error wraps popup.ErrNoList if there is none. After any other
// error it may be deleted.
func (t *Tables) DeleteList(ctx context.Context, name string, by audit.Author) error {
	err := t.db.Change(ctx, 1, func(ctx context.Context, s tables.Session) error {
		if _, err := t.nextVersion(ctx, s); err != nil {
			return err
		}
		deleted, err := deleteList(ctx, s, name)
		if err == nil && deleted == 0 {
			err = popup.ErrNoList
		}
		if err != nil {
			return err
		}
		return t.addChange(ctx, s, by, "")
	})
	if err != nil {
		return fmt.Errorf("delete the list %s: %w", name, err)
	}
	return nil
}
