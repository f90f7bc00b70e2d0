package feed

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/serve/param"
)

func listen(t *testing.T, f *Feed, args ...string) *Listener {
	t.Helper()
	l, err := f.Listen(t.Context(), time.Now(), args, "")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Listeners keep a window fresh, share events, and get one per change of the first page.
func TestListen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		f := Open(testConfig(), tab)
		defer f.Close()
		one, two := listen(t, f), listen(t, f)
		first := one.Event()
		_, p := get(t, f, Request{})
		if want := string(AppendETag(nil, p.Tag())); first != two.Event() || `"`+first.ID+`"` != want {
			t.Errorf("id %s, tag %s", first.ID, want)
		}
		if want := fmt.Sprintf("id: %s\ndata: %s\n\n", first.ID, p.Append(nil)); string(first.Text) != want {
			t.Errorf("%s, want %s", first.Text, want)
		}
		for range 100 { // longer than IdleAfter
			select {
			case <-first.Next():
				t.Fatal("an event without a change")
			case <-time.After(time.Second):
			}
		}
		if s := f.Stats(); s.Refreshes < 990 || s.Refreshes > 1010 || s.Listeners != 2 {
			t.Errorf("%+v; want 1000 refreshes in 100 s", s)
		}
		tab.remove(tab.newest()[150]) // not in the first page
		tab.set(func(tab *table) { tab.down = errDown })
		<-time.After(time.Hour)
		tab.set(func(tab *table) { tab.down = nil })
		tab.insert(99_999)
		began := time.Now()
		<-first.Next()
		if e := one.Event(); e != two.Event() || e == first || time.Since(began) > retryMax || !strings.Contains(string(e.Text), "99999") {
			t.Errorf("after %s %s", time.Since(began), e.Text)
		}
		one.Close()
		two.Close()
		<-time.After(3 * time.Second)
		before := f.Stats().Refreshes
		<-time.After(time.Hour)
		if s := f.Stats(); s.Refreshes != before || s.Listeners != 0 {
			t.Errorf("refreshed without listeners: %+v", s)
		}
		three := listen(t, f)
		last := three.Event()
		f.Close()
		<-last.Next()
		if e := three.Event(); e.Text != nil {
			t.Errorf("after Close: %s", e.Text)
		}
		three.Close()
		if _, err := f.Listen(t.Context(), time.Now(), nil, ""); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
	})
}

// A value with listeners gets a window and keeps it. Their number is limited.
func TestListenToValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := byCity(3)
		f := Open(cfg, newTable(500))
		if _, err := f.Listen(t.Context(), time.Now(), []string{"a"}, ""); !errors.Is(err, ErrRequest) {
			t.Errorf("without live_max: %v", err)
		}
		f.Close()
		cfg.LiveMax = 2
		f = Open(cfg, newTable(500))
		defer f.Close()
		ask := func() {
			for _, city := range []string{"c", "d", "e"} {
				for range 100 {
					get(t, f, Request{Args: []string{city}})
				}
			}
		}
		ask()
		a, b, again := listen(t, f, "a"), listen(t, f, "b"), listen(t, f, "a")
		if _, err := f.Listen(t.Context(), time.Now(), []string{"c"}, ""); !errors.Is(err, ErrLive) {
			t.Errorf("a third value: %v", err)
		}
		for range 10 {
			<-time.After(time.Second)
			ask()
		}
		if s := f.Stats(); windowOf(f, "a") == nil || windowOf(f, "b") == nil || s.Windows != 3 || s.Listeners != 3 {
			t.Errorf("a value with listeners has lost its window: %+v", s)
		}
		a.Close()
		if _, err := f.Listen(t.Context(), time.Now(), []string{"c"}, ""); !errors.Is(err, ErrLive) {
			t.Errorf("while one listens to a: %v", err)
		}
		again.Close()
		listen(t, f, "c").Close()
		b.Close()
		if f.lives != 0 {
			t.Errorf("%d values with listeners", f.lives)
		}
	})
}

// TestAppendEvent reads events as a browser does: their JSON has the same value.
func TestAppendEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SliceOf(rapid.String()).Draw(t, "value")
		var data strings.Builder
		space := rapid.SampledFrom([]string{"", " ", "\n", "\r", "\r\n", "\n\n", "\r\r\n"})
		data.WriteString("[")
		for i, one := range value {
			if i > 0 {
				data.WriteString(",")
			}
			text, err := json.Marshal(one)
			if err != nil {
				t.Fatal(err)
			}
			data.WriteString(space.Draw(t, "before") + string(text) + space.Draw(t, "after"))
		}
		data.WriteString("]" + space.Draw(t, "end"))
		event := string(appendEvent(nil, "0123", []byte(data.String())))
		var got []string
		for line := range strings.Lines(strings.TrimSuffix(strings.ReplaceAll(event, "\r", "\n"), "\n\n")) {
			name, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch {
			case name == "data":
				got = append(got, text)
			case name != "id" || text != "0123":
				t.Fatalf("line %q of %q", line, event)
			}
		}
		var read []string
		if err := json.Unmarshal([]byte(strings.Join(got, "\n")), &read); err != nil || len(read) != len(value) {
			t.Fatalf("%q: %v", event, err)
		}
		for i := range read {
			if want := strings.ToValidUTF8(value[i], "\uFFFD"); read[i] != want {
				t.Fatalf("%q, want %q", read[i], want)
			}
		}
	})
}

// One user may listen to a quarter of the values, and leaves the others to other users.
func TestListenersOfOneUser(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := byCity(100)
		cfg.LiveMax = 20
		cfg.Params = append(slices.Clone(cfg.Params), param.Param{Name: "claim.sub", Type: param.Text})
		f := Open(cfg, newTable(500))
		defer f.Close()
		var held []*Listener
		for i := range cfg.LiveMax {
			l, err := f.Listen(t.Context(), time.Now(), []string{fmt.Sprint(i), "one"}, "")
			if (err == nil) != (i < 5) || err != nil && !errors.Is(err, ErrLive) {
				t.Errorf("value %d of a user: %v", i, err)
			}
			if err == nil {
				held = append(held, l)
			}
		}
		for i := range 15 {
			held = append(held, listen(t, f, "1", fmt.Sprint(i)))
		}
		if _, err := f.Listen(t.Context(), time.Now(), []string{"1", "last"}, ""); !errors.Is(err, ErrLive) {
			t.Errorf("value %d: %v", cfg.LiveMax+1, err)
		}
		for _, l := range held {
			l.Close()
		}
		if f.lives != 0 || len(f.livesOf) != 0 {
			t.Errorf("%d values with listeners, of %v", f.lives, f.livesOf)
		}
	})
}

// Without claims an address is a user. Whoever joins what another one has opened takes nothing, and it stays the other's.
func TestListenersOfOneAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := byCity(100)
		cfg.LiveMax = 8
		f := Open(cfg, newTable(500))
		defer f.Close()
		var held []*Listener
		for _, c := range []struct {
			city, address string
			refused       bool
		}{
			{"a", "one", false},
			{"b", "one", false},
			{"c", "one", true},
			{"c", "two", false},
			{"c", "one", false},
			{"d", "two", false},
			{"e", "two", true},
			{"e", "", false},
			{"f", "", false},
			{"g", "", false},
			{"h", "", false},
			{"i", "three", true},
		} {
			l, err := f.Listen(t.Context(), time.Now(), []string{c.city}, c.address)
			if (err != nil) != c.refused || err != nil && !errors.Is(err, ErrLive) {
				t.Errorf("%+v: %v", c, err)
			}
			if err == nil {
				held = append(held, l)
			}
		}
		for _, l := range held {
			l.Close()
		}
		if f.lives != 0 || len(f.livesOf) != 0 {
			t.Errorf("%d values with listeners, of %v", f.lives, f.livesOf)
		}
	})
}
