package stream

import (
	"context"
	"errors"
	"time"
)

// SpoolFile is where a Spool keeps its groups: a file of package sqlite. Write and Key
// are called by one goroutine, Read by others at the same time.
type SpoolFile interface {
	// Write makes all changes in one transaction, and returns when that is on disk,
	// with the bytes that are in use then. An error wraps ErrSpoolFull or another
	// cause when nothing has changed, and ErrUnconfirmed when nobody knows.
	Write(c SpoolChange) (used int64, err error)
	// Read returns the groups of a name behind a sequence, in order: one at least
	// where there are any, and no more than have that many bytes together. An error
	// wraps ErrSpoolDamaged when the file is not what was written.
	Read(ctx context.Context, name string, after uint64, bytes int) ([]SealedGroup, error)
	// Key returns what is known of an idempotency key: nil when it is in no group.
	Key(name, key string) (*SpoolKey, error)
}

// Errors of a spool.
var (
	// ErrSpoolFull: nothing was stored, there is no room on the disk.
	ErrSpoolFull = errors.New("the disk is full")
	// ErrSpoolDamaged: groups are missing, or are not what was written.
	ErrSpoolDamaged = errors.New("the spool is damaged")
	// ErrSpoolInUse: another process has the spool open for writing.
	ErrSpoolInUse = errors.New("the spool is in use by another process")
)

// SpoolChange is what one transaction changes in a spool's file.
type SpoolChange struct {
	Names    []SpoolHead   // that are new: Name and ID
	Groups   []SealedGroup // to be added
	Keys     []SpoolKey    // of those
	Drained  []Drained     // to be deleted
	Requeued []int64       // ids of dead letters to be deleted
}

// SealedGroup is a group as the file keeps it.
type SealedGroup struct {
	Name     string
	Sequence uint64
	At       time.Time // of its first entry
	Rows     int
	Sum      uint32 // CRC-32C of the name, the sequence and the payload
	Payload  []byte
}

// SpoolKey is an idempotency key in a group that has not been drained.
type SpoolKey struct {
	Name, Key   string
	Fingerprint [32]byte
	Expires     time.Time
	Sequence    uint64
}

// Drained are the groups of a name up to a sequence, which are no longer needed.
type Drained struct {
	Name string
	Upto uint64
	Keys []string // of these groups
	Dead []DeadLetter
}

// DeadLetter is what the database refused at the drain.
type DeadLetter struct {
	ID       int64 // in the file; of one that was read
	Name     string
	Sequence uint64    // of its group
	At       time.Time // when it was accepted
	Rows     int
	Reason   string
	Payload  []byte // an entry's, or a whole damaged group's
	Raw      bool   // it is a damaged group: it cannot be tried again
}

// SpoolHead is where a name of a spool stands.
type SpoolHead struct {
	Name    string
	ID      [16]byte // random: what Mark.Spool is
	Drained uint64   // the last group that was drained
	Last    uint64   // the last group that was added
	Groups  int64    // that are waiting
	Rows    int64    // in them
	Bytes   int64    // in them
	Oldest  time.Time
	Dead    int64 // dead letters
}
