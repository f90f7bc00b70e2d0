package feed

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A cursor is the key of the last row of a page, encoded for a URL. It contains no position
// and no state of the server, so it is valid on every replica and after a restart:
//
//	base64url( version:1 | feed:4 | key:n | crc32c of all before:4 )
//
// feed is a fingerprint of the feed's name and key columns, so that the cursor of another
// feed is rejected. The checksum detects damage; it is not a signature. A forged key is
// harmless: its values are checked against the column types and bound as parameters.
const (
	cursorVersion = 1
	cursorFixed   = 1 + 4 + 4
)

// CursorMax is the length of the longest cursor in characters. Longer ones are rejected
// unread.
const CursorMax = 4096

// ErrLongKeys means that a page cannot name the next one, because the key of its last row is
// too long for a cursor.
var ErrLongKeys = errors.New("the key of the page's last row is too long for a cursor")

// fingerprint identifies d in cursors.
func (d *Definition) fingerprint() uint32 {
	sum := crc32.MakeTable(crc32.Castagnoli)
	h := crc32.Checksum([]byte(d.Name), sum)
	for _, k := range d.Key {
		h = crc32.Update(h, sum, fmt.Appendf(nil, "\x00%s\x00%t", k.Name, k.Ascending))
	}
	return h
}

// appendCursor appends the cursor of key to dst.
func appendCursor(dst []byte, fingerprint uint32, key Key) []byte {
	plain := make([]byte, 0, cursorFixed+len(key))
	plain = append(plain, cursorVersion)
	plain = binary.BigEndian.AppendUint32(plain, fingerprint)
	plain = append(plain, key...)
	plain = binary.BigEndian.AppendUint32(plain, crc32.Checksum(plain, crc32.MakeTable(crc32.Castagnoli)))
	return base64.RawURLEncoding.AppendEncode(dst, plain)
}

// cursorFits reports whether the cursor of a key has up to longest characters.
func cursorFits(key Key, longest int) bool {
	return base64.RawURLEncoding.EncodedLen(cursorFixed+len(key)) <= longest
}

// parseCursor returns the key in a cursor of the feed with that fingerprint and number of
// key columns. Every error wraps ErrCursor.
func parseCursor(cursor string, fingerprint uint32, columns int) (Key, error) {
	if len(cursor) > CursorMax {
		return "", fmt.Errorf("cursor of %d characters, at most %d: %w", len(cursor), CursorMax, ErrCursor)
	}
	plain, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(plain) < cursorFixed {
		return "", fmt.Errorf("cursor is damaged: %w", ErrCursor)
	}
	body, sum := plain[:len(plain)-4], binary.BigEndian.Uint32(plain[len(plain)-4:])
	switch {
	case crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != sum:
		return "", fmt.Errorf("cursor is damaged: %w", ErrCursor)
	case body[0] != cursorVersion:
		return "", fmt.Errorf("cursor of version %d, the newest is %d: %w", body[0], cursorVersion, ErrCursor)
	case binary.BigEndian.Uint32(body[1:5]) != fingerprint:
		return "", fmt.Errorf("cursor of another feed: %w", ErrCursor)
	}
	key := Key(body[5:])
	if _, err := key.Values(columns); err != nil {
		return "", err
	}
	return key, nil
}
