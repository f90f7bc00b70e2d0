package database

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// records returns what was logged: one line each.
func records(b *bytes.Buffer) []string {
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func TestWaitLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		log := slog.New(slog.NewTextHandler(&b, nil))
		start := time.Now()
		err := Wait(t.Context(), log, "postgres://db/app", func(context.Context) error {
			if time.Since(start) < 17*time.Second {
				return errors.New("refused")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited < 17*time.Second || waited > 19*time.Second {
			t.Errorf("came back after %v, want within 2 s of 17 s", waited)
		}
		got := records(&b)
		// At 0 s, then every 5 to 7 s up to 17 s, then the answer.
		if len(got) < 4 || len(got) > 5 || !strings.Contains(got[0], "err=refused") || !strings.Contains(got[len(got)-1], "the database answers") {
			t.Errorf("logged\n%s", b.String())
		}
	})
}

func TestWaitAnswersAtOnce(t *testing.T) {
	var b bytes.Buffer
	err := Wait(t.Context(), slog.New(slog.NewTextHandler(&b, nil)), "x", func(context.Context) error { return nil })
	if err != nil || b.Len() > 0 {
		t.Errorf("Wait = %v, logged %q; want neither", err, b.String())
	}
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		refused := errors.New("refused")
		start := time.Now()
		err := Wait(ctx, slog.New(slog.DiscardHandler), "db", func(context.Context) error { return refused })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, refused) || !strings.HasPrefix(err.Error(), "wait for db: ") {
			t.Errorf("Wait = %v, want the deadline and the last error", err)
		}
		if waited := time.Since(start); waited != 3*time.Second {
			t.Errorf("came back after %v, want at the deadline", waited)
		}
	})
}
