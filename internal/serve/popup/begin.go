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

// errWaits: the decision must be waited for.
var errWaits = errors.New("the decision must be waited for")

// Showing is a popup whose show is being recorded.
type Showing struct {
	queue.Appending
	Limit time.Duration // of the wait
	end   func(ctx context.Context, err error) (Answer, error)
}

// Begin is Ask for callers that do not wait. If ok is false, nothing has happened: the answer must be waited for. Otherwise showing is
// nil, and the answer is that of Ask; or Showing.Answer returns it, which uses a. ready is called then: see queue.Ticket. Without
// ready, no show is recorded.
func (p *Popup) Begin(ctx context.Context, key Key, a *Attributes, now time.Time, ready func() (wake func())) (answer Answer,
	showing *Showing, ok bool,
) {
	place := p.set.Load().Placement(key.Placement)
	if place == nil || key.check() != nil {
		return Answer{}, nil, false
	}
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
	if memory, log := p.memory(); log != nil && ready != nil {
		return p.start(ctx, memory, log, place, key, state, a, now, answer, guards, ready)
	}
	return Answer{}, nil, false
}

// start begins to record the show of an answer.
func (p *Popup) start(ctx context.Context, memory *Memory, log *EventLog, place *Placement, key Key, state State, a *Attributes,
	now time.Time, answer Answer, guards []Guard, ready func() (wake func()),
) (Answer, *Showing, bool) {
	own := Key{User: strings.Clone(key.User), Placement: place.name}
	next, event := place.show(own, state, place.byID[answer.Campaign.ID], answer.Decision, now, p.keep)
	swap, ok, err := memory.replace(own, state.Version, next, guards)
	if err == nil && !ok { // a lost race
		p.counters.conflicts.Add(1)
		return Answer{}, nil, false
	}
	s := &Showing{Limit: log.timeout, end: func(ctx context.Context, err error) (Answer, error) {
		if err := swap.end(described(err), event.Kind); err != nil {
			return p.without(ctx, place, own, a, now, err)
		}
		p.counters.given(answer.Reason)
		return answer, nil
	}}
	if err == nil {
		if s.Appending, err = log.begin(ctx, event, ready); err != nil {
			err = swap.end(err, event.Kind)
		}
	}
	if err != nil {
		answer, err = p.without(ctx, place, own, a, now, err)
		return answer, nil, err == nil
	}
	answer.Token = p.cfg.Signer.Sign(event.token())
	return Answer{}, s, true
}

// memory returns the states of this process and their log, if a show waits only for that.
func (p *Popup) memory() (m *Memory, log *EventLog) {
	switch store := p.cfg.Store.(type) {
	case *Memory:
		m = store
	case *Local:
		m = store.Memory
	}
	if m != nil && p.cfg.Cache == nil && (!p.cfg.ShowAnyway || p.cfg.UserRow == nil) {
		log, _ = m.recorder.(*EventLog)
	}
	return m, log
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
