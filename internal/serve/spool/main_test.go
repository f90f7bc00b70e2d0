package spool

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"spillway/internal/serve/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Append stores an entry and returns when it is on disk.
func (s *Spool) Append(ctx context.Context, name string, e queue.Entry) (replayed bool, err error) {
	a, err := s.Begin(ctx, name, e, nil)
	if err != nil {
		return false, err
	}
	return a.Appended(ctx)
}
