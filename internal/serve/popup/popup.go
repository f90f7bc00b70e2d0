package popup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// Errors of Ask, Click, Dismiss and Convert, beside those of tokens and of the state.
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
	// With guards, these other states of the user must have their versions too.
	Swap(ctx context.Context, key Key, version uint64, next State, event Event, guards ...Guard) (bool, error)
	// Record records an event that changes no state. It may be recorded again.
	Record(ctx context.Context, event Event) error
}

// Guard is the version of a state of the same user at another placement.
type Guard struct {
	Placement string
	Version   uint64
}

// Limit is a maximum of shows to one user at all placements within some time.
type Limit struct {
	Within time.Duration
	Shows  int // 1 to RecentMax
}

// Config is what a Popup works with.
type Config struct {
	Store  Store
	Signer *Signer

	// Cache, if set, holds states of the Store. Ask reads it first. The Store removes
	// the states that other processes swap.
	Cache *Cache

	// UserRow, if set, returns the user's row as a JSON object; nil if there is none. Its
	// columns replace attributes of the same names. It is called if a campaign could be
	// chosen whose target uses one of RowColumns.
	UserRow func(ctx context.Context, user string) ([]byte, error)

	// Now returns the time; nil: that of this process's clock.
	Now func() time.Time

	Limits     []Limit       // of shows at all placements together; none: no limit
	Placements []string      // all placements; needed with Limits
	ConvertTTL time.Duration // after a show during which a conversion is accepted

	ShowAnyway bool // if the store is not available, show without recording; else show nothing
	Log        *slog.Logger
}

// Popup answers requests. Use Open. Its methods may be called concurrently.
type Popup struct {
	cfg        Config
	set        atomic.Pointer[Set]
	lists      atomic.Pointer[Lists]
	rowColumns atomic.Uint64 // the attributes that the user's row has, as an attributeSet
	attributes sync.Pool

	conversions *lru.Cache[[16]byte, struct{}] // the last ones that were recorded
	newUsers    atomic.Uint64                  // in a row whose states were read

	rows     userRows
	keep     int // times of shows that states keep
	counters counters
}

// Open returns a Popup that shows the campaigns of a set. It needs no closing.
func Open(cfg Config, set *Set) (*Popup, error) {
	if cfg.Store == nil || cfg.Signer == nil || cfg.Log == nil || set == nil {
		return nil, errors.New("open popup: a store, a signer, a log and a set are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	conversions, _ := lru.New[[16]byte, struct{}](conversionsMax) // the size is positive
	p := &Popup{cfg: cfg, conversions: conversions, rows: userRows{log: cfg.Log, last: map[string]string{}}}
	for _, limit := range cfg.Limits {
		p.keep = max(p.keep, limit.Shows)
	}
	p.set.Store(set)
	p.rowColumns.Store(math.MaxUint64)
	p.attributes.New = func() any { return set.schema.New() }
	return p, nil
}

// Time returns the time that requests are decided by.
func (p *Popup) Time() time.Time { return p.cfg.Now() }

// RowColumns sets the columns of users' rows. Before it is called, each attribute could be one.
func (p *Popup) RowColumns(names []string) {
	p.rowColumns.Store(uint64(p.set.Load().schema.set(names)))
}

// Lists returns the lists of users that targets read.
func (p *Popup) Lists() *Lists { return p.lists.Load() }

// ChangeLists puts what change returns for the lists in force into their place, for later
// requests. change may be called more than once.
func (p *Popup) ChangeLists(change func(*Lists) *Lists) {
	for {
		if before := p.lists.Load(); p.lists.CompareAndSwap(before, change(before)) {
			return
		}
	}
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
	Token string // of the show, or of what was withheld; "" if it was not recorded
	Known bool   // without waiting for more than the record of a show: Begin returns it too
	// Detail says which campaigns could not be decided; "": all could. It is for clients, in ASCII:
	// what the database said is logged.
	Detail string
}

// Ask decides for one request and records the show. a is used until Ask returns; key is
// copied if it is kept. Errors wrap ErrRequest, or are ctx's. If the store is not
// available, the reason is Unavailable and the campaign is as Config.ShowAnyway says.
func (p *Popup) Ask(ctx context.Context, key Key, a *Attributes, now time.Time) (Answer, error) {
	if answer, _, ok := p.Begin(ctx, key, a, now, nil); ok {
		return answer, nil
	}
	if err := key.check(); err != nil {
		return Answer{}, err
	}
	place := p.set.Load().Placement(key.Placement)
	if place == nil {
		p.counters.waits.Add(1)
		return Answer{Decision: Decision{Reason: NoneLeft}}, nil
	}
	p.begin(a, key.User)
	guess := p.guesses()
	for range attemptsMax {
		state, version, known, err := p.read(ctx, key, guess)
		if err != nil {
			return p.without(ctx, place, key, a, now, fmt.Errorf("read popup state: %w", err))
		}
		guess = guess && !known
		answer, guards, err := p.decide(ctx, place, key, state, a, now, true)
		switch {
		case err != nil:
			return p.without(ctx, place, key, a, now, err)
		case answer.Campaign == nil && guess:
			guess = false
			continue
		case answer.Reason == Unavailable:
			if a.row != rowFailed { // that one is counted
				p.failed(errors.New(answer.Detail))
			}
			return answer, ctx.Err()
		case answer.Campaign == nil:
			if !known && p.cfg.Cache != nil {
				p.cfg.Cache.Put(key, version, state)
			}
			p.counters.nothingShown(answer.Reason <= WaitLimit)
			return answer, nil
		}
		own := Key{User: strings.Clone(key.User), Placement: place.name}
		next, event := place.show(own, state, place.byID[answer.Campaign.ID], answer.Decision, now, p.keep)
		switch ok, err := p.swap(ctx, own, state.Version, next, event, guards); {
		case err != nil && guess: // the state is read, if that is possible
			guess = false
			p.newUsers.Store(0)
		case err != nil:
			return p.without(ctx, place, key, a, now, err)
		case ok:
			p.counters.given(answer.Reason)
			_, log := p.memory()
			answer.Token, answer.Known = p.cfg.Signer.Sign(event.token()), log != nil && a.row != rowRead
			return answer, nil
		case guess:
			guess = false
		default:
			p.counters.conflicts.Add(1)
		}
	}
	return p.nothing(ctx, errConflicts)
}

// begin prepares attributes for the decisions of one request.
func (p *Popup) begin(a *Attributes, user string) {
	a.For(user)
	a.Lists(p.lists.Load())
	if p.cfg.UserRow != nil {
		a.row, a.rowColumns = rowUnread, attributeSet(p.rowColumns.Load())
	}
}

// decide decides with the user's row, if it is needed, and by the limits of all placements,
// which the guards make hold. The answer has no token. Without wait, the error is errWaits if anything must be waited for.
func (p *Popup) decide(ctx context.Context, place *Placement, key Key, state State, a *Attributes, now time.Time, wait bool) (answer Answer,
	guards []Guard, err error,
) {
	d, decided := Wait(place, state, key.User, now)
	if decided {
		return Answer{Decision: d}, nil, nil
	}
	if len(p.cfg.Limits) > 0 {
		var until int64
		if guards, until, err = p.limit(ctx, key, state, now, wait); err != nil {
			return Answer{}, nil, err
		}
		if now.UnixMilli() < until {
			return Answer{Decision: Decision{Reason: WaitLimit, NextAt: instant(until)}}, nil, nil
		}
	}
	c := place.choose(state, a, now)
	if c.needsRow && !wait {
		return Answer{}, nil, errWaits
	}
	if c.needsRow {
		failed := p.fill(ctx, key.User, a)
		if c = place.choose(state, a, now); failed != nil && ctx.Err() == nil {
			p.failed(fmt.Errorf("%w; not decided: %s", failed, campaignList(c.skipped)))
		}
	}
	answer.Decision = c.Decision
	if ctx.Err() == nil {
		answer.Detail = place.undecided(c.skipped, a)
	}
	return answer, guards, nil
}

// undecided says which campaigns choose has skipped, and why; "" if none.
func (p *Placement) undecided(skipped []CampaignID, a *Attributes) string {
	if len(skipped) == 0 {
		return ""
	}
	var reasons []string
	if a.row == rowFailed {
		reasons = append(reasons, "the user's row could not be read")
	}
	for _, id := range skipped {
		if name := a.lists.unread(p.byID[id].target.lists); name != "" {
			reason := "list " + name + " has not been read yet"
			if !slices.Contains(reasons, reason) {
				reasons = append(reasons, reason)
			}
		}
	}
	return strings.Join(reasons, "; ") + "; not decided: " + campaignList(skipped)
}

// campaignList names campaigns, as "campaigns 3 and 7".
func campaignList(ids []CampaignID) string {
	text := "campaign"
	if len(ids) > 1 {
		text = "campaigns"
	}
	for i, id := range ids {
		switch {
		case i > 0 && i == len(ids)-1:
			text += " and"
		case i > 0:
			text += ","
		}
		text += fmt.Sprintf(" %d", id)
	}
	return text
}

// limit returns until when Config.Limits forbid a show, and the versions of the user's states
// at other placements.
func (p *Popup) limit(ctx context.Context, key Key, own State, now time.Time, wait bool) (guards []Guard, until int64, err error) {
	states := []State{own}
	for _, placement := range p.cfg.Placements {
		if placement == key.Placement {
			continue
		}
		state, err := p.other(ctx, Key{User: key.User, Placement: placement}, wait)
		if err != nil {
			return nil, 0, fmt.Errorf("read popup state: %w", err)
		}
		states = append(states, state)
		guards = append(guards, Guard{placement, state.Version})
	}
	return guards, limitUntil(p.cfg.Limits, states, now.UnixMilli()), nil
}

// other returns the user's state at another placement.
func (p *Popup) other(ctx context.Context, key Key, wait bool) (State, error) {
	if wait {
		return p.cfg.Store.Get(ctx, key)
	}
	if state, hits, known := p.known(key); known && hits == nil {
		return state, nil
	}
	return State{}, errWaits
}

// limitUntil returns until when limits forbid a show, 0 if they do not.
func limitUntil(limits []Limit, states []State, now int64) (until int64) {
	var times []int64
	for i := range states {
		for n := 0; ; n++ {
			at, ok := states[i].recentShow(n)
			if !ok {
				break
			}
			if at <= later(now, futureMax) {
				times = append(times, at)
			}
		}
	}
	slices.SortFunc(times, func(a, b int64) int { return cmp.Compare(b, a) }) // the newest first
	for _, limit := range limits {
		if len(times) < limit.Shows {
			continue
		}
		// The show that must be old enough before there may be another one.
		if end := later(times[limit.Shows-1], limit.Within.Milliseconds()); now < end {
			until = max(until, end)
		}
	}
	return until
}

var errConflicts = fmt.Errorf("the state changed %d times during one request", attemptsMax)

// Keeper is a Store that is asked first as if a user were new, if the last ones were, which saves a call for those who are.
type Keeper interface {
	// Keeps reports whether a state that is missing is the zero State, and not somewhere else.
	Keeps() bool
}

// guessAfter is the number of new users after whom the next one is taken for new.
const guessAfter = 4

// guesses reports whether a user whose state is not known is taken for a new one.
func (p *Popup) guesses() bool {
	store, ok := p.cfg.Store.(Keeper)
	return ok && store.Keeps() && p.newUsers.Load() >= guessAfter && len(p.cfg.Limits) == 0 && p.cfg.UserRow == nil
}

// read returns the state from the cache, or else from the store, or with guess the zero State, and the version for Cache.Put.
func (p *Popup) read(ctx context.Context, key Key, guess bool) (state State, version ShardVersion, known bool, err error) {
	if p.cfg.Cache != nil {
		state, version, known = p.cfg.Cache.Get(key)
	}
	if known || guess {
		return state, version, known, nil
	}
	if state, err = p.cfg.Store.Get(ctx, key); state.Version > 0 {
		p.newUsers.Store(0)
	} else if err == nil {
		p.newUsers.Add(1)
	}
	return state, version, known, err
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

// CheckUser returns an error that wraps ErrRequest if no user can have this id.
func CheckUser(user string) error { return Key{User: user, Placement: "any"}.check() }

// swap swaps the state in the store. Whatever comes of it, the cached state is not used again.
func (p *Popup) swap(ctx context.Context, key Key, version uint64, next State, event Event, guards []Guard) (bool, error) {
	if p.cfg.Cache != nil {
		defer p.cfg.Cache.Forget(key)
	}
	return p.cfg.Store.Swap(ctx, key, version, next, event, guards...)
}

// fill reads the user's row into the attributes, once per request.
func (p *Popup) fill(ctx context.Context, user string, a *Attributes) error {
	if a.row != rowUnread {
		return nil
	}
	row, err := p.cfg.UserRow(ctx, user)
	if err == nil && row != nil {
		err = p.rows.fill(a, row)
	}
	if err != nil {
		a.row = rowFailed
		return fmt.Errorf("read user's attributes: %w", err)
	}
	a.row = rowRead
	return nil
}

// without answers while the store is not available.
func (p *Popup) without(ctx context.Context, place *Placement, key Key, a *Attributes, now time.Time, err error) (Answer, error) {
	answer, gone := p.nothing(ctx, err)
	if gone != nil || !p.cfg.ShowAnyway {
		return answer, gone
	}
	c := place.choose(State{}, a, now)
	if c.needsRow {
		_ = p.fill(ctx, key.User, a) // the campaigns that use the row are skipped
		c = place.choose(State{}, a, now)
	}
	if c.Shown() {
		answer.Decision = c.Decision
	}
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

// Convert records that a user did what the campaign of a show is for. It may be called
// again, for a show that was clicked or not, and for what was withheld; the database counts
// one conversion per show. Errors: those of Signer.Open, ErrUnavailable, or ctx's.
func (p *Popup) Convert(ctx context.Context, token, user string, now time.Time) error {
	t, err := p.cfg.Signer.open(token, user, now, p.cfg.ConvertTTL)
	if err != nil {
		p.counters.answered(&p.counters.conversions, err)
		return err
	}
	event := converted(t, now.UnixMilli())
	if p.conversions.Contains(event.ID) { // it is durable; a token that is sent often fills no queue
		return nil
	}
	if err = p.cfg.Store.Record(ctx, event); err != nil {
		return p.unavailable(ctx, fmt.Errorf("record a conversion: %w", err))
	}
	p.conversions.Add(event.ID, struct{}{})
	p.counters.answered(&p.counters.conversions, nil)
	return nil
}

// conversionsMax is how many of the last conversions are known, so that they are not recorded
// again.
const conversionsMax = 1 << 16

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
		switch ok, err := p.swap(ctx, token.Key, state.Version, next, event, nil); {
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
	return p.explain(ctx, p.set.Load(), key, a, now)
}

// explain is Explain for the campaigns of a set.
func (p *Popup) explain(ctx context.Context, set *Set, key Key, a *Attributes, now time.Time) ([]Explanation, State, error) {
	if err := key.check(); err != nil {
		return nil, State{}, err
	}
	state, err := p.cfg.Store.Get(ctx, key)
	if err != nil {
		return nil, State{}, p.unavailable(ctx, fmt.Errorf("read popup state: %w", err))
	}
	if p.begin(a, key.User); a.row == rowUnread {
		if err := p.fill(ctx, key.User, a); err != nil {
			return nil, State{}, p.unavailable(ctx, err)
		}
	}
	var blocked int64
	if len(p.cfg.Limits) > 0 {
		if _, blocked, err = p.limit(ctx, key, state, now, true); err != nil {
			return nil, State{}, p.unavailable(ctx, err)
		}
	}
	return Explain(set.Placement(key.Placement), state, a, now, time.UnixMilli(blocked)), state, nil
}
