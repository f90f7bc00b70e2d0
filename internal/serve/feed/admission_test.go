package feed

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// naive decides like admission, from a full record of the requests.
type naive struct {
	outside  map[uint64]uint64
	resident map[uint64]*resident
	requests uint64 // counted outside since the start
}

// admit returns the value that leaves for another, if that may come in.
func (n *naive) admit(value uint64) (out uint64, ok bool) {
	var least *resident
	for other, r := range n.resident {
		if !r.busy && (least == nil || r.requests < least.requests || r.requests == least.requests && r.asked < least.asked) {
			out, least = other, r
		}
	}
	return out, least != nil && n.outside[value] > 2*least.requests
}

// TestAdmissionAgainstModel replays requests for 40 values over a few windows. With enough
// counters the decisions are those of the model; with few counters no value is counted too
// much, nor too little by more than the summary's error.
func TestAdmissionAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const period = time.Second
		now := time.Unix(100, 0)
		a := newAdmission(4, period)
		exact := rapid.Bool().Draw(t, "exact")
		if !exact {
			a.most = rapid.IntRange(1, 20).Draw(t, "counters")
		}
		a.age(now)
		m := &naive{outside: map[uint64]uint64{}, resident: map[uint64]*resident{}}
		for i := range uint64(4) {
			m.resident[i] = &resident{asked: int64(i)}
		}
		asked := int64(10)
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			if rapid.IntRange(0, 30).Draw(t, "pause") == 0 {
				periods := rapid.IntRange(1, 3).Draw(t, "periods")
				now = now.Add(time.Duration(periods) * period)
				halve(m, a.age(now))
			}
			value := rapid.Uint64Range(0, 39).Draw(t, "value")
			asked++
			if r := m.resident[value]; r != nil {
				r.requests++
				r.asked = asked
				r.busy = rapid.IntRange(0, 9).Draw(t, "busy") == 0
				continue
			}
			out, in := admit(t, &a, m, value, exact)
			if in {
				m.resident[value] = &resident{requests: m.outside[value], asked: asked}
				delete(m.resident, out)
				delete(m.outside, value)
				continue
			}
			m.outside[value]++
			m.requests++
			a.count(value)
			checkCounts(t, &a, m, exact)
		}
	})
}

func halve(m *naive, halvings uint) {
	for v := range m.outside {
		m.outside[v] >>= halvings
	}
	for _, r := range m.resident {
		r.requests >>= halvings
	}
}

// admit asks the admission, and compares its decision with the model's.
func admit(t *rapid.T, a *admission, m *naive, value uint64, exact bool) (out uint64, in bool) {
	var values []uint64
	var residents []resident
	for v, r := range m.resident {
		values, residents = append(values, v), append(residents, *r)
	}
	wants := a.wants(value)
	i := 0
	if wants {
		i, in = a.replace(value, residents, false)
	}
	want, wanted := m.admit(value)
	switch {
	case exact && in != wanted, in && !wanted:
		t.Fatalf("value %d is let in: %v; the model says %v", value, in, wanted)
	case in && values[i] != want:
		t.Fatalf("%d leaves for %d, the model says %d", values[i], value, want)
	case in && residents[i].busy:
		t.Fatalf("%d leaves while requests wait for it", values[i])
	}
	return want, in
}

func checkCounts(t *rapid.T, a *admission, m *naive, exact bool) {
	if len(a.counts) > a.most {
		t.Fatalf("%d counters, limit %d", len(a.counts), a.most)
	}
	slack := m.requests/uint64(a.most+1) + 1 // one for rounding when both are halved
	if exact {
		slack = 0
	}
	for v, n := range m.outside {
		if got := a.counts[v]; got > n || got+slack < n {
			t.Fatalf("value %d is counted %d times, requested %d times, slack %d", v, got, n, slack)
		}
	}
}

// A flood of values that come once displaces nothing, and a value that becomes the most
// frequent one gets a window.
func TestAdmissionUnderFlood(t *testing.T) {
	t.Parallel()
	now := time.Unix(100, 0)
	a := newAdmission(2, time.Second)
	a.age(now)
	residents := []resident{{requests: 1000}, {requests: 10}}
	for v := range uint64(100_000) {
		a.count(v)
		if !a.wants(v) {
			continue
		}
		if i, ok := a.replace(v, residents, false); ok {
			t.Fatalf("value %d was asked for once, and resident %d leaves", v, i)
		}
	}
	const hot = 1 << 40
	for n := 0; ; n++ {
		if a.wants(hot) {
			if i, ok := a.replace(hot, residents, false); ok {
				if i != 1 || n < 21 || n > 200 {
					t.Errorf("resident %d leaves after %d requests", i, n)
				}
				return
			}
		}
		if n > 1000 {
			t.Fatal("the value that is asked for most does not get a window")
		}
		a.count(hot)
	}
}

// A window that was busy, or was created meanwhile, leaves although others are asked for more
// often.
func TestAdmissionAfterBusyWindow(t *testing.T) {
	t.Parallel()
	const value = 7
	a := newAdmission(2, time.Second)
	a.age(time.Unix(100, 0))
	for range 5 {
		a.count(value)
	}
	residents := []resident{{requests: 1, busy: true}, {requests: 10}}
	if i, ok := a.replace(value, residents, false); ok {
		t.Fatalf("resident %d leaves", i)
	}
	residents[0].busy = false
	if !a.wants(value) {
		t.Error("a value is not wanted though a window is asked for less often")
	}
	residents[0].requests = 4
	if _, ok := a.replace(value, residents, false); ok {
		t.Error("a value is let in that is asked for about as often")
	}
	if a.created(); !a.wants(value) {
		t.Error("a value is not wanted though a window was created")
	}
}
