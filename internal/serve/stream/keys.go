package stream

import (
	"slices"
	"time"
)

// Keyed appends to dst the requests with a key that was not found.
func (b *Batch) Keyed(dst []*Entry) []*Entry {
	for _, e := range b.Requests {
		if e.Key != "" && !e.KeyFound() {
			dst = append(dst, e)
		}
	}
	return dst
}

// KeyFound reports whether the request's key was found: nothing of it is stored now.
func (e *Entry) KeyFound() bool { return e.Result.Stored != nil || e.Result.Reused }

// Found sets the Result of a request whose key is in spillway_requests.
func (e *Entry) Found(fingerprint, outcome []byte) {
	if string(fingerprint) != string(e.Fingerprint[:]) {
		e.Result = Result{Reused: true}
		return
	}
	e.Result = Result{Stored: slices.Clone(outcome)}
}

// StoredKey is a request with an idempotency key that the database has.
type StoredKey struct {
	Accepted    time.Time `json:"accepted"`
	Fingerprint []byte    `json:"fingerprint"`
	Outcome     []byte    `json:"outcome"`
}

// FindKey looks for a request among those that spillway_requests has under its key: the newest
// one, and the earlier ones that its column earlier holds. Two requests with one key are the
// same if their acceptance times differ by less than KeyTTL, whichever was stored first, or if the
// stored one's lies in the future, because the clock was wrong. now is the time of the database.
// If the request is found, FindKey sets its Result and returns true.
//
// A key that belongs to keyUsesMax requests that are still kept takes no other: the request is
// refused like one with another body, because an earlier one cannot be forgotten.
func (b *Batch) FindKey(e *Entry, stored []StoredKey, now time.Time) bool {
	at, kept := e.acceptedAt(now), 0
	for _, k := range stored {
		if at.Sub(k.Accepted).Abs() < b.KeyTTL || k.Accepted.After(now) {
			e.Found(k.Fingerprint, k.Outcome)
			return true
		}
		if b.keeps(k, now) {
			kept++
		}
	}
	if kept >= keyUsesMax {
		e.Result = Result{Reused: true}
		return true
	}
	return false
}

// AddKey adds a request to those that spillway_requests has under its key, which FindKey has
// not found it among. It returns the one that was accepted last, and the others for the column
// earlier, without those that are no longer kept.
func (b *Batch) AddKey(e *Entry, stored []StoredKey, now time.Time) (newest StoredKey, earlier []StoredKey, err error) {
	outcome, err := e.OutcomeNow()
	if err != nil {
		return StoredKey{}, nil, err
	}
	all := append([]StoredKey{{Accepted: e.acceptedAt(now).UTC(), Fingerprint: e.Fingerprint[:], Outcome: outcome}}, stored...)
	slices.SortStableFunc(all, func(a, b StoredKey) int { return b.Accepted.Compare(a.Accepted) })
	earlier = slices.DeleteFunc(all[1:], func(k StoredKey) bool { return !b.keeps(k, now) })
	return all[0], earlier, nil
}

// keeps reports whether a request that is the same as a stored one may still come.
func (b *Batch) keeps(k StoredKey, now time.Time) bool {
	return b.KeyKeep == 0 || now.Sub(k.Accepted) <= b.KeyTTL+b.KeyKeep
}

func (e *Entry) acceptedAt(now time.Time) time.Time {
	if e.Accepted.IsZero() {
		return now
	}
	return e.Accepted
}

// keyUsesMax bounds the row of an idempotency key.
const keyUsesMax = 1000
