package popup

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fiftyCampaigns have five conditions each. In the worst case the first four are true for
// everyone, so that all must be evaluated. Otherwise some conditions are equal.
func fiftyCampaigns(worst bool) []Campaign {
	var out []Campaign
	for i := range 50 {
		c := threeCampaigns()[0]
		c.ID, c.Order = CampaignID(i+1), int32(i)
		c.Target = fmt.Sprintf(`country in ["CN", "US"] and level >= %d and vip and score < 0.5 and tags != nil and city == "nowhere %d"`, i%5, i)
		if worst {
			c.Target = fmt.Sprintf(`country != "x%d" and level >= %d and score < %d.5 and "tag%d" not in tags and city == "Beijing %d"`, i, i-60, i+1, i, i)
		}
		out = append(out, c)
	}
	return out
}

func benchAttributes(tb testing.TB, p *Popup) *Attributes {
	tb.Helper()
	a := p.Attributes()
	for _, pair := range [][2]string{
		{"country", "CN"}, {"level", "7"}, {"score", "0.25"}, {"vip", "true"}, {"city", "Beijing"}, {"tags", "new"}, {"tags", "gold"},
	} {
		if err := a.Add(pair[0], pair[1]); err != nil {
			tb.Fatal(err)
		}
	}
	return a
}

// waiting returns a Popup with fifty campaigns and the states of users who wait.
func waiting(tb testing.TB, users int) (*Popup, *Memory, []string) {
	tb.Helper()
	memory := NewMemory(users, nil)
	p := openTest(tb, memory, nil, fiftyCampaigns(false)...)
	names := make([]string, users)
	for i := range names {
		names[i] = fmt.Sprintf("user-%011d", i)
		state := State{Version: 1, Phase: Shown, Campaign: CampaignID(1 + i%50), Shown: day0.UnixMilli()}
		if err := memory.Restore(Key{names[i], "home"}, state); err != nil {
			tb.Fatal(err)
		}
	}
	return p, memory, names
}

func BenchmarkDecideWaits(b *testing.B) {
	p, memory, names := waiting(b, 1)
	a := benchAttributes(b, p)
	place := p.Set().Placement("home")
	state, _ := memory.Get(b.Context(), Key{names[0], "home"})
	b.ReportAllocs()
	defer processor(b)()
	for b.Loop() {
		if d := Decide(place, state, a, day0); d.Reason != WaitShown {
			b.Fatal(d)
		}
	}
}

// BenchmarkDecideSeen decides for a user who has finished 49 of 50 campaigns and waits, or is due.
func BenchmarkDecideSeen(b *testing.B) {
	for name, now := range map[string]time.Time{"waits": day0, "due": day0.Add(8 * 24 * time.Hour)} {
		b.Run(name, func(b *testing.B) {
			p, memory, names := waiting(b, 1)
			a, place, key := benchAttributes(b, p), p.Set().Placement("home"), Key{names[0], "home"}
			if err := memory.Restore(key, seenState(place, 49)); err != nil {
				b.Fatal(err)
			}
			state, _ := memory.Get(b.Context(), key)
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				if d := Decide(place, state, a, now); d.Campaign != nil {
					b.Fatal(d)
				}
			}
		})
	}
}

func BenchmarkAskWaits(b *testing.B) {
	for _, users := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint(users), func(b *testing.B) {
			p, _, names := waiting(b, users)
			a := benchAttributes(b, p)
			ctx, i := b.Context(), 0
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				i = (i + 7919) % len(names)
				if answer, err := p.Ask(ctx, Key{names[i], "home"}, a, day0); err != nil || answer.Reason != WaitShown {
					b.Fatal(answer, err)
				}
			}
		})
	}
}

func BenchmarkDecideNoneMatches(b *testing.B) {
	for name, worst := range map[string]bool{"worst": true, "shared": false} {
		b.Run(name, func(b *testing.B) {
			p := openTest(b, NewMemory(1, nil), nil, fiftyCampaigns(worst)...)
			a := benchAttributes(b, p)
			place := p.Set().Placement("home")
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				if d := Decide(place, State{}, a, day0); d.Reason != NoneMatches {
					b.Fatal(d)
				}
			}
		})
	}
}

func BenchmarkAskShow(b *testing.B) {
	p := openTest(b, NewMemory(1, nil), nil)
	a, now := p.Attributes(), day0
	b.ReportAllocs()
	defer processor(b)()
	for b.Loop() {
		now = now.Add(24 * time.Hour)
		if answer, err := p.Ask(b.Context(), Key{"1", "home"}, a, now); err != nil || answer.Campaign == nil {
			b.Fatal(answer, err)
		}
	}
}

func BenchmarkAttributes(b *testing.B) {
	p := openTest(b, NewMemory(1, nil), nil)
	b.ReportAllocs()
	defer processor(b)()
	for b.Loop() {
		p.Release(benchAttributes(b, p))
	}
}

func TestNoAllocations(t *testing.T) {
	p, _, names := waiting(t, 10)
	a := benchAttributes(t, p)
	ctx, place := t.Context(), p.Set().Placement("home")
	for name, do := range map[string]func(){
		"ask of a user who waits":   func() { _, _ = p.Ask(ctx, Key{names[3], "home"}, a, day0) },
		"none of 50 matches":        func() { Decide(place, State{}, a, day0) },
		"none of 50 matches, asked": func() { _, _ = p.Ask(ctx, Key{"new", "home"}, a, day0) },
	} {
		if n := testing.AllocsPerRun(200, do); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

// A state takes as much memory as Memory documents.
func TestMemoryBytes(t *testing.T) {
	const users = 300_000
	before := heap()
	_, memory, names := waiting(t, users)
	each := (heap() - before) / users
	t.Logf("%d bytes a user", each)
	if each > 250+16 || each < 64 { // 16 for the test's list of names; a cell has 64
		t.Errorf("%d bytes a user, want 64 to 266", each)
	}
	if memory.Len() != users {
		t.Errorf("%d states, want %d", memory.Len(), users)
	}
	runtime.KeepAlive(names)
}

// The records of 50 campaigns that a user has finished take as much memory as Memory documents.
func TestMemoryBytesOfRecords(t *testing.T) {
	const users, campaigns = 50_000, 50
	set, err := NewSet(testSchema(t), fiftyCampaigns(false))
	if err != nil {
		t.Fatal(err)
	}
	place, memory := set.Placement("home"), NewMemory(users, nil)
	before := heap()
	seen := seenState(place, campaigns)
	for i := range users {
		state := seen
		state.others = strings.Clone(seen.others) // as after a show to each
		if err := memory.Restore(Key{fmt.Sprintf("user-%011d", i), "home"}, state); err != nil {
			t.Fatal(err)
		}
	}
	each := (heap() - before) / users
	t.Logf("%d bytes a user who has finished %d campaigns", each, campaigns)
	if most := int64(250 + 8*campaigns); each > most || each < 2*campaigns {
		t.Errorf("%d bytes a user who has finished %d campaigns, want at most %d, and more than nothing", each, campaigns, most)
	}
	runtime.KeepAlive(memory)
}

// seenState returns a state with finished campaigns.
func seenState(p *Placement, campaigns int) State {
	s, at := State{}, day0.Add(-time.Hour).UnixMilli()
	for i := range campaigns {
		id := CampaignID(i + 1)
		s = State{Version: s.Version + 2, Phase: Clicked, Campaign: id, Shows: 1, Shown: at, Answered: at, others: p.encode(s.behind(nil, id))}
	}
	return s
}

// heap returns the bytes in use. What earlier tests left in pools is gone after two collections.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// processor reports the CPU time per operation, which depends less on other programs than
// elapsed time.
func processor(b *testing.B) func() {
	begin := used(b)
	return func() { b.ReportMetric(float64(used(b)-begin)/float64(b.N), "cpu-ns/op") }
}

func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
