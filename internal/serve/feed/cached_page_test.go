package feed

import (
	"context"
	"math"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/param"
)

// holding is a random run of a feed in which each request asks Now and then Page.
type holding struct {
	t    *testing.T
	rng  *rand.Rand
	tab  *table
	feed *Feed
	kept []kept         // pages that were found
	seen map[string]int // what happened, over all runs
}

// kept is a page that Now has found, by which it may be found again.
type kept struct {
	request Request
	page    Page
	age     time.Duration // in whole seconds
	repeat  Repeat
}

// values of the parameter: more than there are windows.
var heldValues = []string{"a", "b", "c", "d"}

func newHolding(t *testing.T, seed uint64, seen map[string]int) *holding {
	h := &holding{t: t, rng: rand.New(rand.NewPCG(seed, 3)), seen: seen}
	h.tab = newTable(h.rng.IntN(120))
	h.tab.latency = 5 * time.Millisecond
	cfg := testConfig()
	cfg.Window = 1 + h.rng.IntN(80)
	cfg.Envelope = Envelope(h.rng.IntN(3))
	cfg.Params, cfg.LiveMax = []param.Param{{Name: "v", Type: param.Text}}, 1
	if h.rng.IntN(3) == 0 {
		cfg.CursorMax = 18 // some rows have no cursor
	}
	h.feed = Open(cfg, h.tab)
	return h
}

// request returns a random request. Some are wrong.
func (h *holding) request() Request {
	r := Request{Args: []string{heldValues[min(h.rng.IntN(4), h.rng.IntN(4))]}, Limit: h.rng.IntN(20) * h.rng.IntN(2)}
	newest := h.tab.newest()
	switch h.rng.IntN(8) {
	case 0, 1, 2:
		r.Offset = h.rng.IntN(len(newest) + 5)
	case 3, 4:
		if w := (*h.feed.windows.Load())[string(param.AppendArgs(nil, r.Args))]; w != nil && w.current.Load() != nil && len(w.current.Load().next) > 0 {
			next := w.current.Load().next
			r.Before = next[h.rng.IntN(len(next))]
		}
	case 5:
		switch h.rng.IntN(6) {
		case 0:
			r.Limit = 101
		case 1:
			r.Offset = -1
		case 2:
			r.Before = "damaged"
		case 3:
			r.Args = nil
		case 4:
			r.Before, r.Offset = "x", 1
		case 5:
			if len(newest) > 0 { // a row that may have left the window, or is gone
				r.Before = string(appendCursor(nil, h.feed.fingerprint, key(newest[h.rng.IntN(len(newest))]+h.rng.IntN(2))))
			}
		}
	}
	return r
}

// ask asks Now and Page. Now has the page exactly if Page has it from a window without waiting, and it is not too large.
func (h *holding) ask() {
	synctest.Wait()
	h.again()
	r, bytes := h.request(), math.MaxInt
	if h.rng.IntN(4) == 0 {
		bytes = h.rng.IntN(600)
	}
	now, before, asked := time.Now(), h.feed.Stats(), h.asked()
	held, ok := h.feed.Now(now, r, bytes)
	synctest.Wait()
	if ok {
		h.kept = append(h.kept, kept{r, held, ageOf(held, now), held.Cached.Repeat(now)})
		before.WindowPages++
	}
	if after := h.feed.Stats(); after != before {
		h.t.Fatalf("Now(%+v): %v, and counts %+v after %+v", r, ok, after, before)
	}
	if ok {
		h.checkAsked(r, now)
	} else if got := h.asked(); !reflect.DeepEqual(got, asked) {
		h.t.Fatalf("Now(%+v) says no and has noted a request: %v after %v", r, got, asked)
	}
	page, err := h.feed.Page(h.t.Context(), now, r)
	fromWindow := err == nil && page.Source == FromWindow && time.Now().Equal(now)
	if want := fromWindow && page.Size() <= bytes; ok != want {
		h.t.Fatalf("Now(%+v, %d bytes): %v, want %v; Page: %+v, %v", r, bytes, ok, want, page, err)
	}
	if ok && !reflect.DeepEqual(held, page) {
		h.t.Fatalf("Now(%+v): %+v, want %+v", r, held, page)
	}
	if ok && string(held.Append(nil)) != string(page.Append(nil)) {
		h.t.Fatalf("Now(%+v): %s, want %s", r, held.Append(nil), page.Append(nil))
	}
	h.note(r, ok, fromWindow, err)
}

// ageOf is the age of a page in whole seconds.
func ageOf(p Page, now time.Time) time.Duration {
	return max(now.Sub(p.ReadAt), 0).Truncate(time.Second)
}

// again asks whether a page is still what Now finds. It is exactly if Now finds a page that was read at the same time, of the same age.
func (h *holding) again() {
	if len(h.kept) == 0 {
		return
	}
	k := &h.kept[len(h.kept)-1-h.rng.IntN(min(len(h.kept), 20))]
	now, before := time.Now(), h.feed.Stats()
	again := k.repeat.Now(now)
	synctest.Wait()
	if again {
		before.WindowPages++
		h.checkAsked(k.request, now)
		h.seen["again"]++
	}
	if after := h.feed.Stats(); after != before {
		h.t.Fatalf("Repeat.Now(%+v): %v, and counts %+v after %+v", k.request, again, after, before)
	}
	held, ok := h.feed.Now(now, k.request, math.MaxInt)
	same := ok && held.ReadAt.Equal(k.page.ReadAt) && ageOf(held, now) == k.age
	if atBound := ok && now.Sub(held.ReadAt) == h.feed.cfg.StaleMax; again != same && !atBound {
		h.t.Fatalf("Repeat.Now(%+v): %v, want %v: %+v at %v, and then %+v", k.request, again, same, held, now, k.page)
	}
	if again && !reflect.DeepEqual(held, k.page) {
		h.t.Fatalf("Repeat.Now(%+v): %+v, and then %+v", k.request, held, k.page)
	}
	if !again {
		h.seen["not again"]++
	}
}

// note counts what a request was an example of.
func (h *holding) note(r Request, ok, fromWindow bool, err error) {
	switch {
	case ok && r.Before != "":
		h.seen["held by cursor"]++
	case ok:
		h.seen["held"]++
	case fromWindow:
		h.seen["too large"]++
	case err != nil:
		h.seen["refused"]++
	default:
		h.seen["from the database"]++
	}
}

// asked returns the last noted requests of the windows.
func (h *holding) asked() map[string]int64 {
	all := map[string]int64{}
	for name, w := range *h.feed.windows.Load() {
		all[name] = w.asked.Load()
	}
	return all
}

// checkAsked checks that a request keeps its window active as long as after Page.
func (h *holding) checkAsked(r Request, now time.Time) {
	w := (*h.feed.windows.Load())[string(param.AppendArgs(nil, r.Args))]
	if late := now.UnixNano() - w.asked.Load(); late > int64(h.feed.cfg.IdleAfter)/askedPortion {
		h.t.Fatalf("Now(%+v): the last request of the window is noted %v late", r, time.Duration(late))
	}
	if s := w.current.Load(); s.parked || w.tooOld(s, now) {
		h.t.Fatalf("Now(%+v): parked %v, read at %v, now %v", r, s.parked, s.readAt, now)
	}
}

func (h *holding) step() {
	switch n := h.rng.IntN(40); {
	case n < 28:
		h.ask()
	case n < 32:
		<-time.After(time.Duration(h.rng.IntN(150)) * time.Millisecond)
	case n < 34: // windows are parked
		<-time.After(time.Duration(h.rng.IntN(4)) * time.Second)
		for _, w := range *h.feed.windows.Load() {
			if s := w.current.Load(); s != nil && s.parked {
				h.seen["parked"]++
			}
		}
	case n < 35: // they are too old
		h.tab.set(func(t *table) { t.down = errDown })
		h.ask()
		for range 1 + h.rng.IntN(12) {
			<-time.After(time.Second)
			h.ask()
		}
		h.tab.set(func(t *table) { t.down = nil })
	case n < 36:
		h.listen()
	case n < 38:
		h.tab.insert(10*h.rng.IntN(130) + h.rng.IntN(10))
	default:
		if newest := h.tab.newest(); len(newest) > 0 {
			h.tab.remove(newest[h.rng.IntN(len(newest))])
		}
	}
}

// listen has a listener while time passes without requests.
func (h *holding) listen() {
	args := []string{heldValues[h.rng.IntN(4)]}
	l, err := h.feed.Listen(context.Background(), time.Now(), args, "")
	if err != nil {
		return // the first page is larger than the window, or the database is down
	}
	defer l.Close()
	<-time.After(3 * time.Second)
	h.seen["listened"]++
	h.ask()
}

// TestNowAgainstPage compares Now with Page while rows change, windows are parked, leave and get too old.
func TestNowAgainstPage(t *testing.T) {
	t.Parallel()
	seed, seen := rand.Uint64(), map[string]int{}
	t.Logf("seeds from %d", seed)
	for i := range 30 {
		synctest.Test(t, func(t *testing.T) {
			h := newHolding(t, seed+uint64(i), seen)
			defer h.feed.Close()
			for range 150 {
				h.step()
			}
			if s := h.feed.Stats(); s.Evictions > 0 {
				seen["evicted"]++
			}
		})
	}
	for _, what := range []string{"held", "held by cursor", "too large", "refused", "from the database", "parked", "listened", "evicted", "again", "not again"} {
		if seen[what] == 0 {
			t.Errorf("no request was an example: %s: %v", what, seen)
		}
	}
	t.Log(seen)
}

// Now finds no window of a feed that is closed.
func TestNowAfterClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testNowAfterClose)
}

func testNowAfterClose(t *testing.T) {
	f := Open(testConfig(), newTable(50))
	get(t, f, Request{})
	if _, ok := f.Now(time.Now(), Request{}, math.MaxInt); !ok {
		t.Error("the page is not held")
	}
	f.Close()
	if p, ok := f.Now(time.Now(), Request{}, math.MaxInt); ok {
		t.Errorf("a closed feed holds %s", p.Data)
	}
}

// TestRepeatAfterRemoval: a page of a window that was removed is not found again, also while its last refresh is still being read.
func TestRepeatAfterRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(50)
		var block atomic.Bool
		release := make(chan struct{})
		tab.values = func(_ context.Context, args []string) error {
			if args[0] == "a" && block.CompareAndSwap(true, false) { // a database that is slow to notice a cancellation
				<-release
			}
			return nil
		}
		f := Open(byCity(1), tab)
		defer f.Close()
		defer close(release)
		a, b := Request{Args: []string{"a"}}, Request{Args: []string{"b"}}
		get(t, f, a)
		p, ok := f.Now(time.Now(), a, math.MaxInt)
		if !ok {
			t.Fatal("a is not held")
		}
		repeat := p.Cached.Repeat(time.Now())
		block.Store(true)
		<-time.After(150 * time.Millisecond)
		synctest.Wait() // the refresh of a hangs
		for range 20 {
			get(t, f, b)
		}
		if windowOf(f, "a") != nil {
			t.Fatal("a has a window")
		}
		if _, ok := f.Now(time.Now(), a, math.MaxInt); ok {
			t.Fatal("a is held")
		}
		before := f.Stats()
		if repeat.Now(time.Now()) {
			t.Errorf("the window was removed, Now does not find the page, and its Repeat does; %d pages are counted after it, %d before",
				f.Stats().WindowPages, before.WindowPages)
		}
		tab.insert(100_000)
		for range 100 {
			get(t, f, a)
		}
		got, p := get(t, f, a)
		if p.Source != FromWindow || windowOf(f, "a") == nil {
			t.Fatal("a did not get a window again: the test shows nothing")
		}
		if repeat.Now(time.Now()) {
			t.Errorf("a has a new window, which begins with %d, and its Repeat still finds the page of the old one", got[0])
		}
	})
}
