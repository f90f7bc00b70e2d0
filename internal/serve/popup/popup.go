// Package popup decides which popup each user gets, holds what each user saw and
// did, and makes sure that two requests at once never give two popups.
//
// Flow. A Set is all campaigns, compiled; it is replaced as a whole when one
// changes. Popup.Ask reads the user's State once. Where the user waits, that is all.
// Otherwise it decides (Decide, pure), swaps the state on its version, has the event
// recorded and only then answers, with a signed token for the show. Who loses the
// swap decides again with the newer state. Popup.Click and Popup.Dismiss take the
// token and do the same.
//
//	schema, err := popup.NewSchema(attributes)
//	set, err := popup.NewSet(schema, campaigns)
//	p, err := popup.Open(popup.Config{Store: store, Recorder: spool, Signer: signer, Log: log}, set)
//	a := p.Attributes()
//	err = a.Add("country", "CN")
//	answer, err := p.Ask(ctx, popup.Key{User: "7", Placement: "home"}, a, now)
//	err = p.Click(ctx, answer.Token, "7", now)
//
// The rules, per user and placement, campaigns by ascending order:
//
//   - Nothing shown yet: the first campaign that suits.
//   - Shown, not answered: nothing before the show plus RepeatAfter. Then the same
//     campaign while it suits and runs, else the next one in the order that suits.
//   - Clicked or dismissed: nothing, of any campaign, before the campaign's
//     QuietClick or QuietDismiss is over. Then the next one in the order that suits.
//   - None left: nothing, until there is one. What is earlier in the order than the
//     last campaign is not gone back to.
//
// A campaign suits when it is active, runs (Start <= now < End), was shown fewer
// times than its Cap and its expression holds. Order, RepeatAfter and quiet periods are
// the campaign's as they are now, not as they were. A campaign that the set does not
// hold at all keeps the order and the wait that its last event had.
//
// Expressions are in a subset of the language of expr-lang/expr: and, or, not; ==,
// !=, <, <=, >, >=; in (a list of literals, a range of literal integers, or an
// attribute that is a list); contains, startsWith, endsWith, matches with a literal
// pattern; + - * / % ** on numbers and - between timestamps; cond ? x : y with x and
// y of one type; ??; nil; date("...") and duration("...") of literals; len. Closures,
// loops, variables, member access, joining of texts and the clock are refused with
// their place. Evaluation cannot fail: it gives what expr's machine gives wherever that
// gives no error, and beyond that
//
//   - an attribute that the request does not give is nil: it equals nil only, every
//     other comparison with it is false (so != is true), as a condition it is false;
//   - a calculation with a missing value, and x % 0, is missing.
//
// Invariants, and the tests hold the package to them: a due show is given to exactly
// one of any number of requests at once; an event is recorded before its answer; a
// state's version only grows, but where an event could not be recorded; a click or
// dismissal that is forged, expired, late, repeated or another user's is an error
// of its own and changes nothing.
//
// What fails and what then:
//
//   - The state cannot be read or swapped: nothing is shown, or, with ShowAnyway, what
//     a new user would get, without a token and unrecorded. Clicks get ErrUnavailable.
//   - The event cannot be recorded: the state is put back and the same is done.
//     Whether the event was recorded may be unknown; a click that is sent again has
//     the same Event.ID.
//   - Fill fails: nothing is shown.
//
// The package holds no SQL, no HTTP and no client of a store.
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
func (p *Popup) read(ctx context.Context, key Key) (state State, remember memo, err error) {
	if p.cfg.Cache == nil {
		state, err = p.cfg.Store.Get(ctx, key)
		return state, memo{}, err
	}
	state, ok := p.cfg.Cache.Get(key)
	if ok {
		return state, memo{}, nil
	}
	remember = memo{p.cfg.Cache, p.cfg.Cache.Now(key)}
	state, err = p.cfg.Store.Get(ctx, key)
	return state, remember, err
}

// memo is the right to put a state into a cache. The zero memo does nothing.
type memo struct {
	cache  *Cache
	before Moment
}

func (m memo) put(key Key, state State) {
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
		next, event, err := answer(place, state, token, kind, now)
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
