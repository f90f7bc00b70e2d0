package database

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoffDelay(t *testing.T) {
	b := Backoff{Base: 100 * time.Millisecond, Max: time.Second, Jitter: 0}
	for i, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		if got := b.Delay(i+1, func() float64 { return 0.9 }); got != want*time.Millisecond {
			t.Errorf("delay after %d attempts = %v, want %v", i+1, got, want*time.Millisecond)
		}
	}
}

func TestBackoffBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			Base:   time.Duration(rapid.Int64Min(0).Draw(t, "base")),
			Max:    time.Duration(rapid.Int64Min(0).Draw(t, "max")),
			Jitter: rapid.Float64Range(0, 1).Draw(t, "jitter"),
		}
		attempts := rapid.IntRange(1, 200).Draw(t, "attempts")
		random := rapid.Float64Range(0, 0.999).Draw(t, "random")
		full := Backoff{Base: b.Base, Max: b.Max}.Delay(attempts, func() float64 { return 0 })
		got := b.Delay(attempts, func() float64 { return random })
		if got < 0 || got > b.Max || got > full {
			t.Fatalf("delay %v of a full %v with maximum %v", got, full, b.Max)
		}
		if least := float64(full) * (1 - b.Jitter); float64(got) < least*0.999-1 {
			t.Fatalf("delay %v is less than %v", got, time.Duration(least))
		}
	})
}
