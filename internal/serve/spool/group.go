package stream

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"
)

// SpoolEntry is what one Append keeps. The spool does not look into the payload.
type SpoolEntry struct {
	Payload []byte
	Rows    int       // records in it, for the figures
	At      time.Time // when it was accepted; zero: now
	// Key is an idempotency key: while an entry with it waits to be drained and has
	// not expired, another one is not kept. Empty: none. At most KeyMax bytes.
	Key         string
	Fingerprint [32]byte // with a key
	Expires     time.Time
}

// Group is the entries of a name that were made durable together.
type Group struct {
	Spool    [16]byte // the id of the name in this spool
	Name     string
	Sequence uint64 // 1, 2, 3... without a gap
	Entries  []SpoolEntry
	Rows     int // in all entries
	Bytes    int
}

// groupVersion is the first byte of a group.
const groupVersion = 1

// Seal encodes the entries of a group.
func Seal(name string, sequence uint64, entries []SpoolEntry) SealedGroup {
	g := SealedGroup{Name: name, Sequence: sequence}
	size := 16
	for _, e := range entries {
		size += len(e.Payload) + len(e.Key) + 64
	}
	b := append(make([]byte, 0, size), groupVersion)
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for i, e := range entries {
		if i == 0 {
			g.At = e.At
		}
		g.Rows += e.Rows
		b = binary.AppendVarint(b, e.At.UnixMicro())
		b = binary.AppendUvarint(b, uint64(e.Rows))
		b = appendBytes(b, e.Key)
		if e.Key != "" {
			b = append(b, e.Fingerprint[:]...)
			b = binary.AppendVarint(b, e.Expires.UnixMicro())
		}
		b = appendBytes(b, e.Payload)
	}
	g.Payload = b
	g.Sum = g.sum()
	return g
}

func appendBytes[T string | []byte](b []byte, data T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (g *SealedGroup) sum() uint32 {
	sum := crc32.Update(0, castagnoli, append([]byte(g.Name), 0))
	sum = crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint64(nil, g.Sequence))
	return crc32.Update(sum, castagnoli, g.Payload)
}

// Open checks the sum of a group and decodes it. Errors wrap ErrSpoolDamaged.
func (g *SealedGroup) Open() (Group, error) {
	group := Group{Name: g.Name, Sequence: g.Sequence, Bytes: len(g.Payload)}
	if sum := g.sum(); sum != g.Sum {
		return group, fmt.Errorf("%w: group %d of %s has the checksum %08x, not %08x", ErrSpoolDamaged, g.Sequence, g.Name, sum, g.Sum)
	}
	r := reader{data: g.Payload}
	if version := r.take(1); version == nil || version[0] != groupVersion {
		return group, fmt.Errorf("%w: group %d of %s is of a version that this program does not know", ErrSpoolDamaged, g.Sequence, g.Name)
	}
	n := r.uvarint()
	for range n {
		e := SpoolEntry{At: time.UnixMicro(r.varint()), Rows: int(r.uvarint()), Key: string(r.bytes())}
		if e.Key != "" {
			copy(e.Fingerprint[:], r.take(len(e.Fingerprint)))
			e.Expires = time.UnixMicro(r.varint())
		}
		e.Payload = r.bytes()
		if r.bad {
			break
		}
		group.Entries = append(group.Entries, e)
		group.Rows += e.Rows
	}
	if r.bad || len(r.data) > 0 {
		return group, fmt.Errorf("%w: group %d of %s cannot be read", ErrSpoolDamaged, g.Sequence, g.Name)
	}
	return group, nil
}

// reader reads what the append functions of package binary wrote. bad is set, for
// good, when the data ends early.
type reader struct {
	data []byte
	bad  bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.data) {
		r.bad = true
		return nil
	}
	taken := r.data[:n:n]
	r.data = r.data[n:]
	return taken
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.data)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.data = r.data[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.data)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.data = r.data[n:]
	return v
}

func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.data)) {
		r.bad = true
		return nil
	}
	return r.take(int(n))
}
