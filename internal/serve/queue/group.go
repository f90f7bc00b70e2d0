package queue

import (
	"context"
	"fmt"
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
}

// DeadLetter is an entry, or one record of it, that the database refused when it was
// drained.
type DeadLetter struct {
	ID       int64 // in the spool's file; set when it is read
	Name     string
	Sequence uint64    // of its group
	At       time.Time // when it was accepted
	Rows     int
	Reason   string
	Payload  []byte // as in an Entry, or of a whole damaged group
	Raw      bool   // it is a damaged group, which cannot be retried
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
	// by Spool and Sequence, or store them twice harmlessly.
	//
	// After an error it is called again, at first with one group. After a *Moved it is
	// called again at once, with the groups up to Moved.Last.
	StoreGroups(ctx context.Context, groups []Group) (Stored, error)
}

// Mark says which groups of a spool a batch contains. It is committed with the batch, so
// that no group is stored twice.
type Mark struct {
	Spool [16]byte // Group.Spool
	Name  string   // for people
	After uint64   // the group before the batch's first
	Last  uint64   // the batch's last group

	// Found is set if the database is behind After. It lacks groups that were stored: it is
	// an older copy, or it lost an acknowledged commit.
	Found *uint64
}

// Moved is the error of a batch that was not stored because the database already has
// groups of it. The last batch that was stored had the groups behind After, up to Last.
type Moved struct{ After, Last uint64 }

// Error says where the database stands.
func (m *Moved) Error() string {
	return fmt.Sprintf("the database already has the groups up to %d; its last batch is groups %d to %d", m.Last, m.After+1, m.Last)
}

// Compare compares a mark with the one in the database. stored reports that the batch has
// been stored already. The error is a *Moved.
func (m *Mark) Compare(after, last uint64) (stored bool, err error) {
	switch {
	case last < m.After:
		m.Found = &last
		return false, nil
	case last == m.After:
		return false, nil
	case last == m.Last && after == m.After:
		return true, nil
	}
	return false, &Moved{After: after, Last: last}
}
