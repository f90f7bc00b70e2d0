package popup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of Ask, Click and Dismiss, beside those of tokens and of Click.
var (
	// ErrRequest: the request is not valid; the text says why.
	ErrRequest = errors.New("bad request")
	// ErrUnavailable: the store did not answer. The event may have been recorded; it is
	// safe to retry.
	ErrUnavailable = errors.New("popup state is not available")
)

// attemptsMax is how often a request is decided after lost races.
const attemptsMax = 16

// Store keeps states and events. Its methods may be called concurrently. They return
// within a bounded time.
type Store interface {
	// Get returns a state; the zero State if there is none. It must not keep key, which
	// may point into a request's memory.
	Get(ctx context.Context, key Key) (State, error)
	// Swap replaces a state and records the event that led to the new one, if the state
	// still has this version. It reports whether it did. After an error the event may
	// have been recorded. The store may keep key and event.
	Swap(ctx context.Context, key Key, version uint64, next State, event Event) (bool, error)
}

// Config is what a Popup works with.
type Config struct {
	Store  Store
	Signer *Signer

	// Cache, if set, holds states of the Store. Ask reads it first. The Store removes
	// the states that other processes swap.
	Cache *Cache

	// UserRow, if set, returns the user's row as a JSON object; nil if there is none. Its
	// columns replace attributes of the same names. It is called for users who are due.
	UserRow func(ctx context.Context, user string) ([]byte, error)

	ShowAnyway bool // if the store is not available, show without recording; else show nothing
	Log        *slog.Logger
}

// Popup answers requests. Use Open. Its methods may be called concurrently.
type Popup struct {
	cfg        Config
	set        atomic.Pointer[Set]
	attributes sync.Pool
	rows       userRows
	counters   counters
}

// Open returns a Popup that shows the campaigns of a set. It needs no closing.
func Open(cfg Config, set *Set) (*Popup, error) {
	if cfg.Store == nil || cfg.Signer == nil || cfg.Log == nil || set == nil {
		return nil, errors.New("open popup: a store, a signer, a log and a set are required")
	}
	p := &Popup{cfg: cfg, rows: userRows{log: cfg.Log, last: map[string]string{}}}
	p.set.Store(set)
	p.attributes.New = func() any { return set.schema.New() }
	return p, nil
}

// Set returns the campaigns in force.
func (p *Popup) Set() *Set { return p.set.Load() }

// Replace puts a set in force for later requests. It must have the same schema.
func (p *Popup) Replace(set *Set) error {
	if set == nil || set.schema != p.set.Load().schema {
		return errors.New("replace campaigns: they are compiled for other attributes")
	}
	p.set.Store(set)
	return nil
}

// Attributes returns empty attributes for one request. The caller returns them with
// Release.
func (p *Popup) Attributes() *Attributes { return p.attributes.Get().(*Attributes) }

// Release takes attributes back. The caller must not use them any more.
func (p *Popup) Release(a *Attributes) {
	a.Reset()
	p.attributes.Put(a)
}

// Answer is what a request gets.
type Answer struct {
	Decision
	Token string // of the show, for Click and Dismiss; "" if it was not recorded
}

// Ask decides for one request and records the show. a is used until Ask returns; key is
// copied if it is kept. Errors wrap ErrRequest, or are ctx's. If the store is not
// available, the reason is Unavailable and the campaign is as Config.ShowAnyway says.
func (p *Popup) Ask(ctx context.Context, key Key, a *Attributes, now time.Time) (Answer, error) {
	if err := key.check(); err != nil {
		return Answer{}, err
	}
	place := p.set.Load().Placement(key.Placement)
	if place == nil {
		p.counters.waits.Add(1)
		return Answer{Decision: Decision{Reason: NoneLeft}}, nil
	}
	filled := p.cfg.UserRow == nil
	for range attemptsMax {
		state, remember, err := p.read(ctx, key)
		if err != nil {
			return p.without(ctx, place, key, a, now, filled, fmt.Errorf("read popup state: %w", err))
		}
		d, waits := Wait(place, state, now)
		if !waits {
			if err := p.fill(ctx, key.User, a, &filled); err != nil {
				return p.nothing(ctx, err)
			}
			d = Decide(place, state, a, now)
		}
		if d.Campaign == nil {
			remember.put(key, state)
			p.counters.nothingShown(waits)
			return Answer{Decision: d}, nil
		}
		own := Key{User: strings.Clone(key.User), Placement: place.name}
		next, event := place.show(own, state, place.byID[d.Campaign.ID], now)
		switch ok, err := p.swap(ctx, own, state.Version, next, event); {
		case err != nil:
			return p.without(ctx, place, key, a, now, filled, err)
		case ok:
			p.counters.shows.Add(1)
			token := Token{Key: own, Campaign: next.Campaign, Version: next.Version, At: event.ShownAt}
			return Answer{Decision: d, Token: p.cfg.Signer.Sign(token)}, nil
		}
		p.counters.conflicts.Add(1)
	}
	return p.nothing(ctx, errConflicts)
}

var errConflicts = fmt.Errorf("the state changed %d times during one request", attemptsMax)

// read returns the state from the cache, or else from the store. remember puts one from
// the store into the cache.
func (p *Popup) read(ctx context.Context, key Key) (state State, remember cacheWrite, err error) {
	if p.cfg.Cache == nil {
		state, err = p.cfg.Store.Get(ctx, key)
		return state, cacheWrite{}, err
	}
	state, ok := p.cfg.Cache.Get(key)
	if ok {
		return state, cacheWrite{}, nil
	}
	remember = cacheWrite{p.cfg.Cache, p.cfg.Cache.Version(key)}
	state, err = p.cfg.Store.Get(ctx, key)
	return state, remember, err
}

// cacheWrite is the right to put a state into a cache. The zero cacheWrite does nothing.
type cacheWrite struct {
	cache  *Cache
	before ShardVersion
}

func (m cacheWrite) put(key Key, state State) {
	if m.cache != nil {
		m.cache.Put(key, m.before, state)
	}
}

// check returns what is wrong with a request's key.
func (k Key) check() error {
	if k.User == "" || len(k.User) > UserBytesMax || !isText(k.User) {
		return fmt.Errorf("%w: user must be UTF-8 text of 1 to %d bytes", ErrRequest, UserBytesMax)
	}
	if !IsPlacement(k.Placement) {
		return fmt.Errorf("%w: placement must be 1 to %d lower-case letters, digits and -, not - first", ErrRequest, PlacementBytesMax)
	}
	return nil
}

// swap swaps the state in the store. Whatever comes of it, the cached state is not used again.
func (p *Popup) swap(ctx context.Context, key Key, version uint64, next State, event Event) (bool, error) {
	if p.cfg.Cache != nil {
		defer p.cfg.Cache.Forget(key)
	}
	return p.cfg.Store.Swap(ctx, key, version, next, event)
}

// fill reads the user's row into the attributes, once per request.
func (p *Popup) fill(ctx context.Context, user string, a *Attributes, filled *bool) error {
	if *filled {
		return nil
	}
	row, err := p.cfg.UserRow(ctx, user)
	if err == nil && row != nil {
		err = p.rows.fill(a, row)
	}
	if err != nil {
		return fmt.Errorf("read user's attributes: %w", err)
	}
	*filled = true
	return nil
}

// without answers while the store is not available.
func (p *Popup) without(ctx context.Context, place *Placement, key Key, a *Attributes, now time.Time, filled bool, err error) (Answer, error) {
	answer, gone := p.nothing(ctx, err)
	if gone != nil || !p.cfg.ShowAnyway {
		return answer, gone
	}
	if err := p.fill(ctx, key.User, a, &filled); err != nil {
		return answer, nil
	}
	answer.Decision = Decide(place, State{}, a, now)
	answer.Reason = Unavailable
	return answer, nil
}

// nothing counts and logs a failure, unless the caller has gone.
func (p *Popup) nothing(ctx context.Context, err error) (Answer, error) {
	if ctx.Err() != nil {
		return Answer{}, ctx.Err()
	}
	p.failed(err)
	return Answer{Decision: Decision{Reason: Unavailable}}, nil
}

// Click records that the show of a token was clicked. user is who sends it; "" if only the
// token says. Errors: those of Signer.Open, ErrRepeated, ErrLate, ErrUnknownShow (nothing
// has changed), ErrUnavailable, or ctx's.
func (p *Popup) Click(ctx context.Context, token, user string, now time.Time) error {
	err := p.answer(ctx, token, user, KindClick, now)
	p.counters.answered(&p.counters.clicks, err)
	return err
}

// Dismiss is Click for a popup that was closed.
func (p *Popup) Dismiss(ctx context.Context, token, user string, now time.Time) error {
	err := p.answer(ctx, token, user, KindDismiss, now)
	p.counters.answered(&p.counters.dismissals, err)
	return err
}

func (p *Popup) answer(ctx context.Context, text, user string, kind Kind, now time.Time) error {
	token, err := p.cfg.Signer.Open(text, user, now)
	if err != nil {
		return err
	}
	place := p.set.Load().Placement(token.Placement)
	if place != nil {
		token.Placement = place.name // shared by all states
	}
	for range attemptsMax {
		state, err := p.cfg.Store.Get(ctx, token.Key)
		if err != nil {
			return p.unavailable(ctx, fmt.Errorf("read popup state: %w", err))
		}
		next, event, err := AnswerShow(place, state, token, kind, now)
		if err != nil {
			return err
		}
		switch ok, err := p.swap(ctx, token.Key, state.Version, next, event); {
		case err != nil:
			return p.unavailable(ctx, err)
		case ok:
			return nil
		}
		p.counters.conflicts.Add(1)
	}
	return p.unavailable(ctx, errConflicts)
}

func (p *Popup) unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.failed(err)
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Explain returns for each campaign of the placement why the user does or does not get it,
// and the user's state. Errors wrap ErrRequest or ErrUnavailable, or are ctx's.
func (p *Popup) Explain(ctx context.Context, key Key, a *Attributes, now time.Time) ([]Explanation, State, error) {
	if err := key.check(); err != nil {
		return nil, State{}, err
	}
	state, err := p.cfg.Store.Get(ctx, key)
	if err != nil {
		return nil, State{}, p.unavailable(ctx, fmt.Errorf("read popup state: %w", err))
	}
	filled := p.cfg.UserRow == nil
	if err := p.fill(ctx, key.User, a, &filled); err != nil {
		return nil, State{}, p.unavailable(ctx, err)
	}
	return Explain(p.set.Load().Placement(key.Placement), state, a, now), state, nil
}
