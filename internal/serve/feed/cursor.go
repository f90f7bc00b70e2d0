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
//	base64url( version:1 | feed:4 | skip:2 | key:n | crc32c of all before:4 )
//
// A key that would make the cursor too long is replaced by that of an earlier row, or by
// none for the start of the feed, and the number of rows to skip behind it.
//
// feed is a fingerprint of the feed's name and key columns, so that the cursor of another
// feed is rejected. The checksum detects damage; it is not a signature. A forged key is
// harmless: its values are checked against the column types and bound as parameters.
const (
	cursorVersion     = 1
	cursorSkipVersion = 2
	cursorFixed       = 1 + 4 + 4
	cursorSkipMax     = 1000 // rows; the database reads them
)

// CursorMax is the length of the longest cursor in characters. Longer ones are rejected
// unread.
const CursorMax = 4096

// ErrLongKeys means that a page cannot name the next one, because the keys of all its rows
// are too long for a cursor.
var ErrLongKeys = errors.New("the keys of these rows are too long for a cursor")

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

// appendSkip appends the cursor of the row that many rows behind key. An empty key is the
// start of the feed. It appends nothing if they are too many.
func appendSkip(dst []byte, fingerprint uint32, key Key, skip int) []byte {
	switch {
	case skip == 0:
		return appendCursor(dst, fingerprint, key)
	case skip > cursorSkipMax:
		return dst
	}
	plain := make([]byte, 0, cursorFixed+2+len(key))
	plain = append(plain, cursorSkipVersion)
	plain = binary.BigEndian.AppendUint32(plain, fingerprint)
	plain = binary.BigEndian.AppendUint16(plain, uint16(skip))
	plain = append(plain, key...)
	plain = binary.BigEndian.AppendUint32(plain, crc32.Checksum(plain, crc32.MakeTable(crc32.Castagnoli)))
	return base64.RawURLEncoding.AppendEncode(dst, plain)
}

// cursorFits reports whether the cursors of a key have up to longest characters.
func cursorFits(key Key, longest int) bool {
	return base64.RawURLEncoding.EncodedLen(cursorFixed+2+len(key)) <= longest
}

// parseCursor returns the key in a cursor of the feed with that fingerprint and number of
// key columns, and how many rows to skip behind it. Every error wraps ErrCursor.
func parseCursor(cursor string, fingerprint uint32, columns int) (key Key, skip int, err error) {
	if len(cursor) > CursorMax {
		return "", 0, fmt.Errorf("cursor of %d characters, at most %d: %w", len(cursor), CursorMax, ErrCursor)
	}
	plain, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(plain) < cursorFixed {
		return "", 0, fmt.Errorf("cursor is damaged: %w", ErrCursor)
	}
	body, sum := plain[:len(plain)-4], binary.BigEndian.Uint32(plain[len(plain)-4:])
	switch {
	case crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != sum:
		return "", 0, fmt.Errorf("cursor is damaged: %w", ErrCursor)
	case body[0] != cursorVersion && body[0] != cursorSkipVersion:
		return "", 0, fmt.Errorf("cursor of version %d, the newest is %d: %w", body[0], cursorSkipVersion, ErrCursor)
	case binary.BigEndian.Uint32(body[1:5]) != fingerprint:
		return "", 0, fmt.Errorf("cursor of another feed: %w", ErrCursor)
	}
	body = body[5:]
	if plain[0] == cursorSkipVersion {
		if len(body) < 2 {
			return "", 0, fmt.Errorf("cursor is damaged: %w", ErrCursor)
		}
		skip, body = int(binary.BigEndian.Uint16(body)), body[2:]
		if skip == 0 || skip > cursorSkipMax {
			return "", 0, fmt.Errorf("cursor behind %d rows, 1 to %d: %w", skip, cursorSkipMax, ErrCursor)
		}
	}
	if key = Key(body); key == "" && skip > 0 {
		return "", skip, nil
	}
	if _, err := key.Values(columns); err != nil {
		return "", 0, err
	}
	return key, skip, nil
}
