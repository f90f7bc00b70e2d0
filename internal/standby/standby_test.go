package standby

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"
)

func TestSwitch(t *testing.T) {
	var replicaErr error
	asked := ""
	own, down := errors.New("own"), errors.New("down")
	s := New("replica", slog.New(slog.DiscardHandler))
	now := time.Unix(1000, 0)
	ask := func(ctx context.Context) (string, error) {
		asked = ""
		err := s.Do(ctx, now, func(err error) bool { return errors.Is(err, own) },
			func(context.Context) error { asked += "r"; return replicaErr },
			func(context.Context) error { asked += "p"; return nil })
		return asked, err
	}
	expect := func(want string, wantErr error) {
		t.Helper()
		if got, err := ask(t.Context()); got != want || !errors.Is(err, wantErr) {
			t.Errorf("asked %q, %v; want %q, %v", got, err, want, wantErr)
		}
	}
	expect("r", nil)
	replicaErr = own
	expect("r", own)
	replicaErr = down
	expect("rp", nil)
	expect("p", nil)
	if !s.Down(now) || s.Fallbacks() != 2 {
		t.Errorf("down %v, %d fallbacks", s.Down(now), s.Fallbacks())
	}
	now = now.Add(Pause - 1)
	expect("p", nil)
	now = now.Add(1)
	expect("rp", nil)
	now = now.Add(Pause)
	replicaErr = nil
	expect("r", nil)
	if s.Down(now) {
		t.Error("down though it answers")
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	replicaErr = down
	if got, err := ask(left); got != "r" || !errors.Is(err, down) {
		t.Errorf("after the caller left: asked %q, %v", got, err)
	}
}
