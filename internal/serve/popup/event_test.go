package popup

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// drawEvent draws an event of a transition.
func drawEvent(t *rapid.T) Event {
	state := State{
		Version: rapid.Uint64Min(1).Draw(t, "version"), Phase: Phase(rapid.IntRange(1, 3).Draw(t, "phase")),
		Campaign: CampaignID(rapid.IntRange(1, 1<<31-1).Draw(t, "campaign")), Variant: rapid.Byte().Draw(t, "variant"), Shows: rapid.Uint16().Draw(t, "shows"),
		Shown: rapid.Int64Range(0, 1<<50).Draw(t, "shown"), Answered: rapid.Int64Range(0, 1<<50).Draw(t, "answered"),
		Until: rapid.OneOf(rapid.Int64Range(0, 1<<50), rapid.Just(int64(never))).Draw(t, "until"),
	}
	var others []byte
	last := CampaignID(0)
	for range rapid.IntRange(0, 9).Draw(t, "others") {
		r := record{
			campaign: last + CampaignID(rapid.IntRange(1, 1<<27).Draw(t, "step")), shows: rapid.IntRange(0, CapMax).Draw(t, "their shows"),
			last: Kind(rapid.IntRange(1, 4).Draw(t, "their last")), at: rapid.Int64Range(0, 1<<32-1).Draw(t, "their time") * 1000,
		}
		if r.campaign != state.Campaign && r.campaign < 1<<31 {
			others = appendRecord(others, last, r)
			last = r.campaign
		}
	}
	state.others = string(others)
	for range rapid.IntRange(0, RecentMax).Draw(t, "recent") {
		state.recent = state.withRecent(rapid.Int64Range(0, 1<<41).Draw(t, "their time"), RecentMax)
	}
	key := Key{
		User:      rapid.StringMatching(`[a-z :{}*é世🚚\n-]{1,30}`).Draw(t, "user"),
		Placement: rapid.StringMatching(`[a-z0-9][a-z0-9-]{0,31}`).Draw(t, "placement"),
	}
	var e Event
	switch kind := Kind(rapid.IntRange(1, 5).Draw(t, "kind")); kind {
	case KindWithhold:
		at := rapid.Int64Range(0, 1<<50).Draw(t, "at")
		e = state.event(key, kind, CampaignID(rapid.IntRange(1, 1<<31-1).Draw(t, "withheld")), at, at)
	case KindConvert:
		e = converted(Token{Key: key, Campaign: state.Campaign, Variant: state.Variant, Version: state.Version, At: instant(state.Shown)}, state.Answered)
	default:
		at := state.Answered
		if state.Phase == Shown {
			at = state.Shown
		}
		e = state.event(key, Kind(state.Phase), state.Campaign, state.Shown, at)
	}
	e.First = rapid.Bool().Draw(t, "first")
	return e
}

func TestEventEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		b, err := AppendEvent([]byte("x"), e)
		if err != nil {
			t.Fatal(err)
		}
		if len(b)-1 > EventBytesMax {
			t.Fatalf("%d bytes", len(b)-1)
		}
		got, err := DecodeEvent(b[1:])
		if err != nil || got != e {
			t.Fatalf("got %+v, %v, want %+v", got, err, e)
		}
	})
}

// An event that no transition makes is not encoded, and half an event is not decoded.
func TestEventEncodingRefused(t *testing.T) {
	t.Parallel()
	state := State{Version: 3, Phase: Clicked, Campaign: 7, Shown: 5, Answered: 9, Until: 11}
	good := state.event(Key{"u", "home"}, KindClick, 7, 5, 9)
	b, err := AppendEvent(nil, good)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		if _, err := DecodeEvent(b[:i]); err == nil {
			t.Errorf("%d of %d bytes are an event", i, len(b))
		}
	}
	b[0]++
	if _, err := DecodeEvent(b); err == nil || !strings.HasPrefix(err.Error(), "a popup event of format 2, but this version of Spillway reads format 1") {
		t.Errorf("an event of a newer version: %v", err)
	}
	b = AppendState(nil, state)
	b[0]++
	if _, err := DecodeState(b); err == nil || !strings.HasPrefix(err.Error(), "a popup state of format 2, but this version of Spillway reads format 1") {
		t.Errorf("a state of a newer version: %v", err)
	}
	for name, change := range map[string]func(*Event){
		"kind": func(e *Event) { e.Kind = KindShow }, "id": func(e *Event) { e.ID[0]++ }, "sequence": func(e *Event) { e.Sequence++ },
		"user": func(e *Event) { e.Key.User = "" }, "placement": func(e *Event) { e.Key.Placement = "No" },
	} {
		bad := good
		change(&bad)
		if _, err := AppendEvent(nil, bad); err == nil {
			t.Errorf("another %s is taken", name)
		}
	}
}

func FuzzDecodeEvent(f *testing.F) {
	for _, state := range []State{
		{Version: 1, Phase: Shown, Campaign: 1, Shown: day0.UnixMilli(), Until: never},
		{Version: 9, Phase: Dismissed, Campaign: 7, Shown: 5, Answered: 9, Until: 11, others: "\x08\x04\x00"},
	} {
		for _, e := range []Event{
			state.event(Key{"7", "home"}, Kind(state.Phase), state.Campaign, state.Shown, max(state.Answered, state.Shown)),
			state.event(Key{"7", "home"}, KindWithhold, 3, 5, 5),
			converted(Token{Key: Key{"7", "home"}, Campaign: 3, Version: 4, At: day0}, 5),
		} {
			b, err := AppendEvent(nil, e)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		e, err := DecodeEvent(src)
		if err != nil {
			return
		}
		again, err := AppendEvent(nil, e)
		if err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		if !bytes.Equal(again, src) {
			t.Fatalf("%x and %x are one event", src, again)
		}
	})
}

// Newest and Distinct agree with a simple implementation.
func TestNewestDistinct(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var events []Event
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			state := State{
				Version: rapid.Uint64Range(1, 3).Draw(t, "version"), Phase: Shown, Campaign: 1, Shown: rapid.Int64Range(0, 2).Draw(t, "shown"),
			}
			user := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "user")
			events = append(events, state.event(Key{user, "home"}, KindShow, 1, state.Shown, state.Shown))
		}
		newest, ids := make(map[Key]Event), make(map[[16]byte]bool)
		for _, e := range events {
			ids[e.ID] = true
			if old, ok := newest[e.Key]; !ok || CompareAge(&old, &e) < 0 {
				newest[e.Key] = e
			}
		}
		distinct := Distinct(events)
		for i, e := range distinct {
			if !ids[e.ID] || i > 0 && bytes.Compare(distinct[i-1].ID[:], e.ID[:]) >= 0 {
				t.Fatalf("distinct %d: %+v", i, e)
			}
		}
		kept := Newest(events)
		for i, e := range kept {
			if newest[e.Key] != *e || i > 0 && kept[i-1].Key.User >= e.Key.User {
				t.Fatalf("newest %d: %+v", i, e)
			}
		}
		if len(distinct) != len(ids) || len(kept) != len(newest) {
			t.Fatalf("%d and %d, want %d and %d", len(distinct), len(kept), len(ids), len(newest))
		}
	})
}

// Ids ascend with the time of the show, for all users.
func TestEventIDOrder(t *testing.T) {
	t.Parallel()
	var last [16]byte
	for i := range 1000 {
		state := State{Version: 1, Phase: Shown, Campaign: CampaignID(1 + i%3), Shown: day0.UnixMilli() + int64(i)}
		id := state.event(Key{fmt.Sprint("user ", i*7919%1000), "home"}, KindShow, state.Campaign, state.Shown, state.Shown).ID
		if bytes.Compare(last[:], id[:]) >= 0 {
			t.Fatalf("show %d: %x is not behind %x", i, id, last)
		}
		last = id
	}
}
