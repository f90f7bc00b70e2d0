package popup

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// SampleMax is the maximum of users in the sample of a dry run.
const SampleMax = 1000

// sampleOneIn: of so many requests of users who are due, one is sampled, after the first
// SampleMax.
const sampleOneIn = 16

// dryRunRows is how long a dry run reads rows of users.
const dryRunRows = 10 * time.Second

// sample holds the attributes of recent requests of users who were due. Its methods may be
// called concurrently.
type sample struct {
	seen atomic.Uint64

	mu    sync.Mutex
	ring  []sampled
	next  int // the oldest, once the ring is full
	index map[Key]int
}

// sampled is the last sampled request of a user at a placement.
type sampled struct {
	key   Key
	slots []slot
	at    time.Time
}

// add may add a request. It copies what it keeps.
func (s *sample) add(place *Placement, a *Attributes, now time.Time) {
	if n := s.seen.Add(1); n > SampleMax && n%sampleOneIn != 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, known := s.index[Key{User: a.user, Placement: place.name}]
	if known && slices.EqualFunc(s.ring[i].slots, a.slots, slot.equal) {
		s.ring[i].at = now
		return
	}
	one := sampled{Key{User: strings.Clone(a.user), Placement: place.name}, cloneSlots(a.slots), now}
	switch {
	case known:
	case len(s.ring) < SampleMax:
		i, s.ring = len(s.ring), append(s.ring, sampled{})
	default:
		i = s.next
		s.next = (s.next + 1) % SampleMax
		delete(s.index, s.ring[i].key)
	}
	if s.index == nil {
		s.index = make(map[Key]int)
	}
	s.ring[i], s.index[one.key] = one, i
}

// cloneSlots returns a copy that shares no memory.
func cloneSlots(slots []slot) []slot {
	all := slices.Clone(slots)
	for i := range all {
		v := &all[i]
		v.s, v.list = strings.Clone(v.s), slices.Clone(v.list)
		for j := range v.list {
			v.list[j] = strings.Clone(v.list[j])
		}
	}
	return all
}

// equal reports whether two slots have the same value.
func (v slot) equal(other slot) bool {
	return v.set == other.set && v.n == other.n && v.r == other.r && v.s == other.s && slices.Equal(v.list, other.list)
}

// of returns the requests at a placement.
func (s *sample) of(placement string) []sampled {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.ring), func(one sampled) bool { return one.key.Placement != placement })
}

// forget removes a user.
func (s *sample) forget(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.ring {
		if s.ring[i].key.User == user {
			delete(s.index, s.ring[i].key)
			s.ring[i] = sampled{}
		}
	}
}

// Forget removes a user from the sample of dry runs.
func (p *Popup) Forget(user string) { p.sample.forget(user) }

// dryRunFailures is how many rows in a row may fail in a dry run before no more are read.
const dryRunFailures = 3

// DryRun is how many recent users a campaign would match.
type DryRun struct {
	Users     int       // users who were due at the placement, in this process
	Matched   int       // those whom the target and the rollout admit
	Undecided int       // those whose row, or a list, could not be read, or not in time
	Since     time.Time // of the oldest request; zero without users
}

// DryRun returns how many recent users a campaign would match, whatever its status. Only its
// Placement, Target, Zone and Rollout matter. The error is a TargetError, or ctx's.
func (p *Popup) DryRun(ctx context.Context, c Campaign) (DryRun, error) {
	k, problem := p.alone(Campaign{ID: 1, Name: "dry run", Placement: c.Placement, Payload: []byte("null"), Target: c.Target, Zone: c.Zone, Rollout: cmp.Or(c.Rollout, 100)})
	if problem != nil {
		return DryRun{}, problem
	}
	var d DryRun
	failures := 0
	a := p.Attributes()
	defer p.Release(a)
	limited, cancel := context.WithTimeout(ctx, dryRunRows)
	defer cancel()
	for _, one := range p.sample.of(c.Placement) {
		if ctx.Err() != nil {
			return d, ctx.Err()
		}
		a.Reset()
		for i, v := range one.slots {
			a.slots[i], a.slots[i].list = v, slices.Clone(v.list)
		}
		p.begin(a, one.key.User)
		a.At(p.Now())
		d.Users++
		if d.Since.IsZero() || one.at.Before(d.Since) {
			d.Since = one.at
		}
		switch {
		case !a.lacksRow(k):
		case failures >= dryRunFailures || limited.Err() != nil:
			a.row = rowFailed
		case p.fill(limited, one.key.User, a) != nil: // those without a row are counted
			failures++
		default:
			failures = 0
		}
		switch {
		case a.skips(k):
			d.Undecided++
		case k.admits(xxhash.Sum64String(one.key.User)) && k.matches(a):
			d.Matched++
		}
	}
	return d, nil
}
