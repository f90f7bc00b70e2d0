package popup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// knower is a Store that can tell a state without waiting.
type knower interface {
	// Known returns a state, and whether it is known.
	Known(key Key) (State, bool)
}

// beginner is a Store in this process whose Swap waits only for the event.
type beginner interface {
	begin(key Key, version uint64, next State, event Event, guards []Guard, ready func() (wake func())) (s *swapping, ok bool, err error)
	// patience returns for how long an event may be waited for; 0: begin must not be called.
	patience() time.Duration
}

// errWaits: the decision must be waited for.
var errWaits = errors.New("the decision must be waited for")

// Showing is a popup whose show is being recorded.
type Showing struct {
	queue.Appending
	Limit time.Duration // of the wait
	end   func(ctx context.Context, err error) (Answer, error)
}

// Begin is Ask for callers that do not wait. If ok is false, nothing has happened: the answer must be waited for. Otherwise showing is
// nil, and the answer is that of Ask; or Showing.Answer returns it, which uses a. ready is called then: see queue.Ticket. If ready is
// nil, Showing.wait follows.
func (p *Popup) Begin(ctx context.Context, key Key, a *Attributes, now time.Time, ready func() (wake func())) (answer Answer,
	showing *Showing, ok bool,
) {
	place := p.set.Load().Placement(key.Placement)
	if place == nil || key.check() != nil {
		return Answer{}, nil, false
	}
	for range attemptsMax {
		state, hits, known := p.known(key)
		if !known {
			return Answer{}, nil, false
		}
		p.begin(a, key.User)
		answer, guards, err := p.decide(ctx, place, key, state, a, now, false)
		if err != nil || answer.Reason == Unavailable {
			return Answer{}, nil, false
		}
		if answer.Known = true; answer.Campaign == nil {
			if hits != nil {
				hits.Add(1)
			}
			p.counters.nothingShown(answer.Reason <= WaitLimit)
			return answer, nil, true
		}
		store, begins := p.cfg.Store.(beginner)
		if !begins || p.cfg.Cache != nil || store.patience() == 0 || p.cfg.ShowAnyway && p.cfg.UserRow != nil {
			return Answer{}, nil, false
		}
		own := Key{User: strings.Clone(key.User), Placement: place.name}
		next, event := place.show(own, state, place.byID[answer.Campaign.ID], answer.Decision, now, p.keep)
		swap, ok, err := store.begin(own, state.Version, next, event, guards, ready)
		if err != nil {
			answer, err = p.without(ctx, place, own, a, now, err)
			return answer, nil, err == nil
		}
		if ok {
			answer.Token = p.cfg.Signer.Sign(event.token())
			return Answer{}, &Showing{swap, store.patience(), func(ctx context.Context, err error) (Answer, error) {
				if err := swap.end(described(err), event.Kind); err != nil {
					return p.without(ctx, place, own, a, now, err)
				}
				p.counters.given(answer.Reason)
				return answer, nil
			}}, true
		}
		p.counters.conflicts.Add(1)
	}
	return Answer{}, nil, false
}

// known returns a state if that needs no waiting, and what counts its use; nil: nothing does.
func (p *Popup) known(key Key) (state State, hits *atomic.Uint64, known bool) {
	if p.cfg.Cache != nil {
		return p.cfg.Cache.Known(key)
	}
	if store, ok := p.cfg.Store.(knower); ok {
		state, known = store.Known(key)
	}
	return state, nil, known
}

// Answer returns what Ask does, after ready was called. If over is true, Limit has passed before.
func (s *Showing) Answer(ctx context.Context, over bool) (Answer, error) {
	if over {
		return s.end(ctx, fmt.Errorf("%w: the event log has not answered within %s", queue.ErrUnknown, s.Limit))
	}
	_, err := s.Appended(ctx)
	return s.end(ctx, err)
}

// wait returns the answer.
func (s *Showing) wait(ctx context.Context) (Answer, error) {
	limited, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	_, err := s.Appended(limited)
	return s.end(ctx, err)
}
