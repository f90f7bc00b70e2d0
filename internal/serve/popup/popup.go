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

// Errors of Ask, Click and Dismiss, with those of tokens and of Click.
var (
	// ErrRequest: the request is wrong; its text says how.
	ErrRequest = errors.New("bad request")
	// ErrUnavailable: the state or the recorder does not answer. Nothing may be
	// assumed about the event; trying again is safe.
	ErrUnavailable = errors.New("popup state is not available")
)

// attemptsMax is how often a request decides again after lost races.
const attemptsMax = 16

// Store keeps the states. Its methods may be called concurrently and return soon.
type Store interface {
	// Get returns a state, the zero State where there is none. It must not keep key,
	// which may be a request's memory.
	Get(ctx context.Context, key Key) (State, error)
	// Swap replaces a state if its version is still version, and reports whether
	// it did. A store that also keeps the events (Config.Recorder is nil) appends
	// event in the same step. A zero event.Kind is not kept: next is then the state
	// before an event that could not be recorded. key and event may be kept.
	Swap(ctx context.Context, key Key, version uint64, next State, event Event) (bool, error)
}

// Recorder keeps events. It may be called concurrently. The events of a Key have
// ascending sequences. Where Record returned an error and kept the event all the
// same, another event may come with the same sequence and another ID: the later one
// is what the user saw.
type Recorder interface {
	// Record returns when events are durable. On an error they may or may not be.
	Record(ctx context.Context, events ...Event) error
}

// Config is what a Popup works with.
type Config struct {
	Store    Store
	Recorder Recorder // nil: the store keeps the events in its swaps
	Signer   *Signer

	// Cache, if set, answers Ask in place of the Store while nothing is to be shown. The
	// store forgets in it what others swap; this package, what it swaps itself.
	Cache *Cache

	// Fill, if set, adds what is known of the user to the attributes
	// (Attributes.Replace). It is called for requests that are due only.
	Fill func(ctx context.Context, user string, a *Attributes) error

	ShowAnyway bool // while the state is not available; else nothing is shown
	Log        *slog.Logger
}

// Popup answers requests. Use Open. Its methods may be called concurrently.
type Popup struct {
	cfg        Config
	set        atomic.Pointer[Set]
	attributes sync.Pool
	counters   counters
}

// Open returns a Popup that gives set's campaigns. It owns nothing that needs
// closing.
func Open(cfg Config, set *Set) (*Popup, error) {
	if cfg.Store == nil || cfg.Signer == nil || cfg.Log == nil || set == nil {
		return nil, errors.New("open popup: a store, a signer, a log and a set are needed")
	}
	p := &Popup{cfg: cfg}
	p.set.Store(set)
	p.attributes.New = func() any { return set.schema.New() }
	return p, nil
}

// Set returns the campaigns in force.
func (p *Popup) Set() *Set { return p.set.Load() }

// Replace puts set in force for requests that begin later. Its schema must be
// that of the set before.
func (p *Popup) Replace(set *Set) error {
	if set == nil || set.schema != p.set.Load().schema {
		return errors.New("replace campaigns: they are compiled for other attributes")
	}
	p.set.Store(set)
	return nil
}

// Attributes returns empty attributes for one request. Release takes them back.
func (p *Popup) Attributes() *Attributes { return p.attributes.Get().(*Attributes) }

// Release takes attributes back; the caller must not use them any more.
func (p *Popup) Release(a *Attributes) {
	a.Reset()
	p.attributes.Put(a)
}

// Answer is what a request gets.
type Answer struct {
	Decision
	Token string // of the show, for Click and Dismiss; "" when it was not recorded
}

// Ask decides for one request. a is of Attributes and is used until Ask returns;
// key is copied where it is kept. Errors wrap ErrRequest, or are ctx's; without the
// state the answer is as Config.ShowAnyway says, with the reason Unavailable.
func (p *Popup) Ask(ctx context.Context, key Key, a *Attributes, now time.Time) (Answer, error) {
	if err := key.check(); err != nil {
		return Answer{}, err
	}
	place := p.set.Load().Placement(key.Placement)
	if place == nil {
		p.counters.waits.Add(1)
		return Answer{Decision: Decision{Reason: NoneLeft}}, nil
	}
	filled := p.cfg.Fill == nil
	for range attemptsMax {
		read, err := p.read(ctx, key)
		if err != nil {
			return p.without(ctx, place, key, a, now, filled, fmt.Errorf("read popup state: %w", err))
		}
		state := read.state
		if d, waits := Wait(place, state, now); waits {
			p.keep(key, read)
			p.counters.waits.Add(1)
			return Answer{Decision: d}, nil
		}
		if !filled {
			if err := p.cfg.Fill(ctx, key.User, a); err != nil {
				return p.nothing(ctx, fmt.Errorf("read user's attributes: %w", err))
			}
			filled = true
		}
		d := Decide(place, state, a, now)
		if d.Campaign == nil {
			p.keep(key, read)
			p.counters.nones.Add(1)
			return Answer{Decision: d}, nil
		}
		own := Key{User: strings.Clone(key.User), Placement: place.name}
		next, event := place.show(own, state, place.byID[d.Campaign.ID], now)
		switch ok, err := p.commit(ctx, own, state, next, event); {
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

var errConflicts = fmt.Errorf("the state changed %d times under one request", attemptsMax)

// reading is a state and where it is from.
type reading struct {
	state  State
	cached bool
	moment Moment // of the cache, before the state was read
}

// read returns the state of the cache, or else of the store.
func (p *Popup) read(ctx context.Context, key Key) (r reading, err error) {
	if p.cfg.Cache == nil {
		r.state, err = p.cfg.Store.Get(ctx, key)
		return r, err
	}
	if r.state, r.cached = p.cfg.Cache.Get(key); r.cached {
		return r, nil
	}
	r.moment = p.cfg.Cache.Now(key)
	r.state, err = p.cfg.Store.Get(ctx, key)
	return r, err
}

// keep has the cache keep a state that was read from the store.
func (p *Popup) keep(key Key, r reading) {
	if p.cfg.Cache != nil && !r.cached {
		p.cfg.Cache.Put(key, r.moment, r.state)
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

// commit swaps the state and has the event recorded. false without an error: the
// state has changed, decide again.
func (p *Popup) commit(ctx context.Context, key Key, was, next State, event Event) (bool, error) {
	ok, err := p.swap(ctx, key, was.Version, next, event)
	if err != nil {
		return false, fmt.Errorf("swap popup state: %w", err)
	}
	if !ok || p.cfg.Recorder == nil {
		return ok, nil
	}
	if err := p.cfg.Recorder.Record(ctx, event); err != nil {
		p.counters.recordErrors.Add(1)
		// The caller may be gone, and the state must be right all the same.
		if _, back := p.swap(context.WithoutCancel(ctx), key, next.Version, was, Event{}); back != nil {
			err = fmt.Errorf("%w; put popup state back: %w", err, back)
		}
		return false, fmt.Errorf("record %s: %w", event.Kind, err)
	}
	return true, nil
}

// swap is Store.Swap. Whether it was done, lost or nobody knows, what the cache has is
// not to be used again.
func (p *Popup) swap(ctx context.Context, key Key, version uint64, next State, event Event) (bool, error) {
	if p.cfg.Cache != nil {
		defer p.cfg.Cache.Forget(key)
	}
	return p.cfg.Store.Swap(ctx, key, version, next, event)
}

// without answers when the state is not available.
func (p *Popup) without(ctx context.Context, place *Placement, key Key, a *Attributes, now time.Time, filled bool, err error) (Answer, error) {
	answer, gone := p.nothing(ctx, err)
	if gone != nil || !p.cfg.ShowAnyway {
		return answer, gone
	}
	if !filled {
		if err := p.cfg.Fill(ctx, key.User, a); err != nil {
			return answer, nil
		}
	}
	answer.Decision = Decide(place, State{}, a, now)
	answer.Reason = Unavailable
	return answer, nil
}

// nothing counts and logs a failure, unless the caller left.
func (p *Popup) nothing(ctx context.Context, err error) (Answer, error) {
	if ctx.Err() != nil {
		return Answer{}, ctx.Err()
	}
	p.failed(err)
	return Answer{Decision: Decision{Reason: Unavailable}}, nil
}

// Click records that the show of a token was clicked. user is who sends it, ""
// where only the token says. Errors: those of Signer.Open, ErrRepeated, ErrLate,
// ErrUnknownShow (nothing has changed), ErrUnavailable, or ctx's.
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
		token.Placement = place.name // one text for all
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
		switch ok, err := p.commit(ctx, token.Key, state, next, event); {
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

// Explain returns why the user gets each campaign of the placement or not, and the
// user's state. Errors wrap ErrRequest or ErrUnavailable, or are ctx's.
func (p *Popup) Explain(ctx context.Context, key Key, a *Attributes, now time.Time) ([]Explanation, State, error) {
	if err := key.check(); err != nil {
		return nil, State{}, err
	}
	state, err := p.cfg.Store.Get(ctx, key)
	if err != nil {
		return nil, State{}, p.unavailable(ctx, fmt.Errorf("read popup state: %w", err))
	}
	if p.cfg.Fill != nil {
		if err := p.cfg.Fill(ctx, key.User, a); err != nil {
			return nil, State{}, p.unavailable(ctx, fmt.Errorf("read user's attributes: %w", err))
		}
	}
	return Explain(p.set.Load().Placement(key.Placement), state, a, now), state, nil
}
