package spool

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// sealedGroup is a group as the file holds it.
type sealedGroup struct {
	name     string
	sequence uint64
	at       time.Time // of its first entry
	rows     int
	sum      uint32 // CRC-32C of name, sequence and payload
	payload  []byte // the version, the place, the number of entries, and the entries
}

const (
	payloadVersion = 1 // the first byte of a payload
	entryBytes     = 4 // of an entry at least: time, records, key and payload
)

// seal encodes the entries of a group.
func seal(name string, sequence uint64, at place, entries []queue.Entry) sealedGroup {
	g := sealedGroup{name: name, sequence: sequence}
	size := 48
	for _, e := range entries {
		size += len(e.Payload) + len(e.Key) + 64
	}
	b := append(make([]byte, 0, size), payloadVersion)
	b = append(b, at.epoch[:]...)
	b = binary.AppendUvarint(b, at.number)
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for i, e := range entries {
		if i == 0 {
			g.at = e.At
		}
		g.rows += e.Rows
		b = binary.AppendVarint(b, e.At.UnixMicro())
		b = binary.AppendUvarint(b, uint64(e.Rows))
		b = queue.AppendBytes(b, e.Key)
		if e.Key != "" {
			b = append(b, e.Fingerprint[:]...)
			b = binary.AppendVarint(b, e.Expires.UnixMicro())
		}
		b = queue.AppendBytes(b, e.Payload)
	}
	g.payload = b
	g.sum = g.checksum()
	return g
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (g *sealedGroup) checksum() uint32 {
	sum := crc32.Update(0, castagnoli, append([]byte(g.name), 0))
	sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint64(nil, g.sequence))
	return crc32.Update(sum, castagnoli, g.payload)
}

// identity tells the group from others that have its place in another copy of the file.
func (g *sealedGroup) identity(number uint64) (sum [16]byte) {
	h := sha256.New()
	h.Write(append([]byte(g.name), 0))
	h.Write(binary.LittleEndian.AppendUint64(nil, number))
	h.Write(g.payload)
	copy(sum[:], h.Sum(nil))
	return sum
}

// open verifies the checksum of a group and decodes it. Errors wrap ErrDamaged.
func (g *sealedGroup) open() (queue.Group, error) {
	group := queue.Group{Name: g.name, Sequence: g.sequence, Bytes: len(g.payload)}
	if sum := g.checksum(); sum != g.sum {
		return group, fmt.Errorf("%w: group %d of %s has the checksum %08x, not %08x", ErrDamaged, g.sequence, g.name, sum, g.sum)
	}
	d := queue.Decoder{Rest: g.payload}
	if first := d.Take(1); first == nil || first[0] != payloadVersion {
		return group, fmt.Errorf("%w: group %d of %s has a version that this program does not know", ErrDamaged, g.sequence, g.name)
	}
	copy(group.Epoch[:], d.Take(len(group.Epoch)))
	group.Number = d.Uvarint()
	group.Sum = g.identity(group.Number)
	n := d.Uvarint()
	group.Entries = slices.Grow(group.Entries, int(min(n, uint64(len(d.Rest))/entryBytes)))
	for range n {
		e := queue.Entry{At: time.UnixMicro(d.Varint()), Rows: int(d.Uvarint()), Key: string(d.Bytes())}
		if e.Key != "" {
			copy(e.Fingerprint[:], d.Take(len(e.Fingerprint)))
			e.Expires = time.UnixMicro(d.Varint())
		}
		e.Payload = d.Bytes()
		if d.Bad {
			break
		}
		group.Entries = append(group.Entries, e)
		group.Rows += e.Rows
	}
	if d.Bad || len(d.Rest) > 0 {
		return group, fmt.Errorf("%w: group %d of %s cannot be decoded", ErrDamaged, g.sequence, g.name)
	}
	return group, nil
}

// groupKey is an idempotency key of a group that waits.
type groupKey struct {
	name, key   string
	fingerprint [32]byte
	accepted    time.Time
	expires     time.Time
	sequence    uint64
}

// is reports whether a request with the key, the name and the fingerprint is the one that
// was stored: their acceptance times differ by less than the time that the key is kept, or the
// stored one's lies in the future, because a clock was wrong. now is the time of the database.
func (k *groupKey) is(e *queue.Entry, now time.Time) bool {
	return e.At.Sub(k.accepted).Abs() < e.Expires.Sub(e.At) || k.accepted.After(now)
}

// appendKeys appends the idempotency keys of a group's entries.
func appendKeys(keys []groupKey, name string, sequence uint64, entries []queue.Entry) []groupKey {
	for _, e := range entries {
		if e.Key != "" {
			keys = append(keys, groupKey{name: name, key: e.Key, fingerprint: e.Fingerprint, accepted: e.At, expires: e.Expires, sequence: sequence})
		}
	}
	return keys
}
