// Package audit records who changed what, in a database or in a file.
//
// Who calls what: the admin listener records each change before it is answered, in the first store of a Log that takes it, and
// reads all stores. The tables of campaigns are a store, which also record changes of campaigns and lists with the changes
// themselves. File is the other one.
//
// What can fail: a store that cannot be written. Record then tries the next one, and returns an error if none takes the change.
package audit

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Kept is how long changes are kept at least, unless a File has too many of them.
const Kept = 90 * 24 * time.Hour

// Author is who changes something, and how.
type Author struct {
	By      string `json:"by"`      // the name of the token; "" without one
	Address string `json:"address"` // of the client; "": not known
	Request string `json:"request"` // method and path; "": not known
}

// Change is one change.
type Change struct {
	At time.Time `json:"at"`
	Author
	Campaign uint32 `json:"campaign,omitempty"` // 0: it is not of a campaign
	Detail   string `json:"detail,omitempty"`   // what the request does not say, such as the name of a campaign
}

// Store keeps changes. Its methods may be called concurrently.
type Store interface {
	// AddChange stores a change, durably. At may be set to the time of the store.
	AddChange(context.Context, Change) error
	// Changes returns the changes from one time on and before another one, the newest first, at most limit.
	Changes(ctx context.Context, from, before time.Time, limit int) ([]Change, error)
}

// Log is the stores of a process, the preferred one first.
type Log []Store

// storeTimeout bounds the wait for one store.
const storeTimeout = 5 * time.Second

// Record stores a change in the first store that takes it. It returns an error if none does.
func (l Log) Record(ctx context.Context, c Change) error {
	var all []error
	for _, s := range l {
		limited, cancel := context.WithTimeout(ctx, storeTimeout)
		err := s.AddChange(limited, c)
		cancel()
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// Changes returns the changes of all stores as Store.Changes does.
func (l Log) Changes(ctx context.Context, from, before time.Time, limit int) (all []Change, err error) {
	for _, s := range l {
		some, err := s.Changes(ctx, from, before, limit)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.SortStableFunc(all, func(a, b Change) int { return b.At.Compare(a.At) })
	return all[:min(limit, len(all))], nil
}
