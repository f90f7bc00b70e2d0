package popup

import (
	"bytes"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// drifting is a store's clock that gains drift per local time and was set by some amount.
type drifting struct {
	drift float64
	set   time.Duration
}

func (d drifting) at(local time.Duration) int64 {
	return popupEpoch + int64(local) + int64(d.drift*float64(local)) + int64(d.set)
}

const popupEpoch = 1_700_000_000_000_000_000

// The error is bounded whatever the round trips are, the time never goes back by more than the
// error, and samples with long round trips change nothing.
func TestClockError(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 3))
		store := drifting{drift: (random.Float64() - 0.5) * 400e-6} // up to 200 ppm
		var e *measurement
		var local time.Duration
		last := int64(math.MinInt64)
		for range 2000 {
			sent := local
			there := time.Duration(random.ExpFloat64() * float64(time.Millisecond))
			back := time.Duration(random.ExpFloat64() * float64(time.Millisecond))
			if random.IntN(20) == 0 {
				back += time.Duration(random.Int64N(int64(3 * time.Second)))
			}
			before := e
			if m, ok := measure(sent, sent+there+back, store.at(sent+there)); ok {
				e = e.better(m)
			} else if there+back <= roundTripMax {
				t.Fatalf("seed %d: a round trip of %s is refused", seed, there+back)
			}
			local = sent + there + back
			if before != nil && there+back > roundTripMax && e != before {
				t.Fatalf("seed %d: a round trip of %s is used", seed, there+back)
			}
			if e == nil {
				continue
			}
			allowed := e.errorAt(local)
			if off := time.Duration(e.at(local) - store.at(local)); off.Abs() > allowed {
				t.Fatalf("seed %d at %s: off by %s, more than %s", seed, local, off, allowed)
			}
			if before != nil && e.at(local) < last-int64(2*before.errorAt(local)) {
				t.Fatalf("seed %d at %s: it goes back by %s", seed, local, time.Duration(last-e.at(local)))
			}
			last = e.at(local)
			local += time.Duration(random.Int64N(int64(time.Second)))
			if random.IntN(100) == 0 {
				local += time.Hour // an outage
			}
			last = max(last, e.at(local))
		}
	}
}

// When the store's clock is set, by seconds or hours, the next sample is followed.
func TestClockJump(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{5 * time.Hour, -5 * time.Hour, 3 * time.Second, -3 * time.Second, 100 * time.Millisecond} {
		store := drifting{}
		var e *measurement
		sample := func(local time.Duration) {
			m, _ := measure(local, local+2*time.Millisecond, store.at(local+time.Millisecond))
			e = e.better(m)
		}
		sample(0)
		sample(time.Second)
		store.set = jump
		sample(2 * time.Second)
		if off := time.Duration(e.at(3*time.Second) - store.at(3*time.Second)); off.Abs() > 2*time.Millisecond {
			t.Errorf("the clock was set by %s: off by %s", jump, off)
		}
	}
}

// Now does not depend on the local wall clock, Skew says how far it is ahead, and Report warns once.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var none *Clock
		if now := none.Now(); !now.Equal(time.Now()) || none.Skew() != 0 {
			t.Errorf("without a clock: %s", now)
		}
		c := NewClock()
		if now := c.Now(); !now.Equal(time.Now()) || c.Skew() != 0 {
			t.Errorf("without a sample: %s", now)
		}
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		for _, behind := range []time.Duration{10 * time.Minute, 10 * time.Minute, -90 * time.Second, 0} {
			<-time.After(time.Minute)
			sent := time.Now()
			<-time.After(2 * time.Millisecond)
			c.Sample(sent, time.Now(), time.Now().Add(-behind-time.Millisecond))
			c.Report(log)
			<-time.After(time.Second)
			if off := c.Skew() - behind; off.Abs() > 2*time.Millisecond {
				t.Errorf("the store is %s behind: skew %s", behind, c.Skew())
			}
			if off := c.Now().Sub(time.Now().Add(-behind)); off.Abs() > 2*time.Millisecond {
				t.Errorf("the store is %s behind: off by %s", behind, off)
			}
		}
		if text := out.String(); strings.Count(text, "level=WARN") != 1 || strings.Count(text, "level=INFO") != 1 || !strings.Contains(text, "ahead=10m0s") {
			t.Errorf("%s", text)
		}
	})
}

func BenchmarkClockNow(b *testing.B) {
	c := NewClock()
	now := time.Now()
	c.Sample(now, now, now)
	b.ReportAllocs()
	for b.Loop() {
		c.Now()
	}
}
