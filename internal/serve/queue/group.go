package queue

import (
	"context"
	"encoding/binary"
	"errors"
	"time"
)

// Entry is what a spool stores for one request. The spool does not look into the payload.
type Entry struct {
	Payload []byte
	Rows    int       // records in the payload, for the metrics
	At      time.Time // when the request was accepted; zero: now
	// Key is an idempotency key; "" for none. While an entry with the same key waits to be
	// drained and has not expired, a second one is not stored. See CheckKey.
	Key         string
	Fingerprint [32]byte // of the body; needed with a key
	Expires     time.Time
}

// Group is the entries of one name that became durable together.
type Group struct {
	Spool    [16]byte // random id of the name in its spool
	Name     string
	Sequence uint64 // 1, 2, 3… without a gap
	Entries  []Entry
	Rows     int // in all entries
	Bytes    int

	// Epoch is drawn by each open of a spool: two copies of a file write in different epochs.
	// It is zero of an empty group with which a repair replaced one whose epoch it did not know.
	Epoch  [16]byte
	Number uint64   // 1, 2, 3… without a gap, of the name in the epoch
	Sum    [16]byte // of what the file holds: the beginning of a SHA-256
	// EpochLast is the last Number of the name and epoch that the file has, or had.
	EpochLast uint64
	// PreviousEpoch is the epoch before it in the file, and PreviousLast the last Number that
	// the file has, or had, of that one. 0: there is none, or it is forgotten.
	PreviousEpoch [16]byte
	PreviousLast  uint64
}

// DeadLetter is an entry, or one record of it, that the database refused when it was
// drained.
type DeadLetter struct {
	ID       int64     `json:"id"` // in the spool's file; set when it is read
	Name     string    `json:"stream"`
	Sequence uint64    `json:"sequence"`    // of its group
	At       time.Time `json:"accepted_at"` // when it was accepted
	Rows     int       `json:"-"`
	Reason   string    `json:"reason"`
	Payload  []byte    `json:"-"`        // as in an Entry, or of a whole damaged group
	InDoubt  bool      `json:"in_doubt"` // the database may have it: it is retried only on demand
	Raw      bool      `json:"damaged"`  // it is a damaged group, which cannot be retried
}

// Stored is what a Destination made of groups.
type Stored struct {
	Groups int          // stored, counted from the first: at least one
	Dead   []DeadLetter // entries of these groups that will never be stored
}

// Destination is where a spool's groups are drained to.
type Destination interface {
	// StoreGroups stores groups in order; all or none of those that it reports. After a
	// crash or an error it may get groups again that it has stored: it must recognize them
	// by Spool, Epoch, Number and Sum, or store them twice harmlessly.
	//
	// After an error it is called again after a pause, at first with one group. After an
	// error that wraps ErrHeld it is called with more groups than before, if there are more,
	// and when these are many also with a random later group and the newest, behind gaps.
	StoreGroups(ctx context.Context, groups []Group) (Stored, error)
}

// ErrHeld is the error of groups of which nothing was stored, because a record is refused
// for a reason that may be the database's, and no later record was stored.
var ErrHeld = errors.New("a record is refused, and no later one was stored")

// Mark says which groups of a spool a batch contains. All of them have one epoch. It is
// committed with the batch, so that no group is stored twice. A mark without groups, with First
// 0, stores nothing: it asks for Last.
type Mark struct {
	Spool [16]byte   // Group.Spool
	Name  string     // for people
	Epoch [16]byte   // Group.Epoch
	First uint64     // Group.Number of the first group
	Sums  [][16]byte // Group.Sum of each group

	// Behind is set if the database lacks numbers before First, which were stored: it is an
	// older copy, or it lost an acknowledged commit. It is the last number that it has.
	Behind *uint64
	// Last is the last number of the epoch that the database has, 0 for none. In a mark of
	// popup events it is the last group that the transaction stores.
	Last uint64
	// Known is set if the database has the first groups of the batch, or had them: nothing
	// of the batch was stored. It says of each of these groups what the database has.
	Known []Known
}

// Known is what the database has of a group.
type Known struct {
	Same bool // it has this group; else another one, or it no longer knows
	// Stored is the batch with which the group was stored; nil if the database no longer
	// knows.
	Stored *StoredBatch
}

// StoredBatch is a batch of a spool that the database has.
type StoredBatch struct {
	First   uint64     // number of the first group
	Sums    [][16]byte // of its groups
	Last    uint64     // number of the last group
	Results []byte     // as the stream encoded them
}

// Judge compares the batch with what the database has. last is the last number of the epoch
// that was stored, 0 for none. batches are the stored batches of the epoch that overlap with
// the batch, as far as the database keeps them. It returns true and sets Known if the
// database has groups of the batch, and false if the whole batch is to be stored.
func (m *Mark) Judge(last uint64, batches []StoredBatch) bool {
	m.Behind, m.Last, m.Known = nil, last, nil
	if last < m.First {
		if last+1 < m.First {
			m.Behind = &last
		}
		return false
	}
	for i, sum := range m.Sums {
		number := m.First + uint64(i)
		if number > last {
			break
		}
		m.Known = append(m.Known, judge(number, sum, batches))
	}
	return true
}

func judge(number uint64, sum [16]byte, batches []StoredBatch) Known {
	for i := range batches {
		b := &batches[i]
		if b.First <= number && number <= b.Last {
			offset := number - b.First
			return Known{Same: offset < uint64(len(b.Sums)) && b.Sums[offset] == sum, Stored: b}
		}
	}
	return Known{}
}

// AppendBytes appends data behind its length. Decoder.Bytes reads it.
func AppendBytes[T string | []byte](b []byte, data T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

// Decoder reads what AppendBytes and the append functions of encoding/binary wrote. After
// data that ends early, or a number that is not in its shortest form, Bad stays true and all values are zero.
type Decoder struct {
	Rest []byte // not read yet
	Bad  bool
}

// Take returns the next n bytes.
func (d *Decoder) Take(n int) []byte {
	if d.Bad || n < 0 || n > len(d.Rest) {
		d.Bad = true
		return nil
	}
	taken := d.Rest[:n:n]
	d.Rest = d.Rest[n:]
	return taken
}

// Uvarint reads an unsigned number.
func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(d.Rest)
	d.skip(n)
	if d.Bad {
		return 0
	}
	return v
}

// Varint reads a signed number.
func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(d.Rest)
	d.skip(n)
	if d.Bad {
		return 0
	}
	return v
}

func (d *Decoder) skip(n int) {
	if n <= 0 || n > 1 && d.Rest[n-1] == 0 {
		d.Bad = true
		return
	}
	d.Take(n)
}

// Bytes reads bytes behind their length.
func (d *Decoder) Bytes() []byte {
	n := d.Uvarint()
	if n > uint64(len(d.Rest)) {
		d.Bad = true
		return nil
	}
	return d.Take(int(n))
}
