package feed

import (
	"context"
	"errors"
	"time"

	"spillway/internal/standby"
)

// Replicated is a Source that reads from a replica of the primary while that
// answers. Both must hold the same tables. Reads of the replica may be behind the
// primary's: a window is as old as the replica is late.
type Replicated struct {
	Replica, Primary Source
	Switch           *standby.Switch
}

var _ Source = (*Replicated)(nil)

func ownFault(err error) bool { return errors.Is(err, ErrCursor) }

// Read implements Source.
func (r *Replicated) Read(ctx context.Context, span Range, rows *Rows) error {
	return r.Switch.Do(ctx, time.Now(), ownFault,
		func(ctx context.Context) error { return r.Replica.Read(ctx, span, rows) },
		func(ctx context.Context) error { return r.Primary.Read(ctx, span, rows) })
}

// Keys implements Source.
func (r *Replicated) Keys(ctx context.Context, span Range, every int) (walk Walk, err error) {
	err = r.Switch.Do(ctx, time.Now(), ownFault,
		func(ctx context.Context) (err error) { walk, err = r.Replica.Keys(ctx, span, every); return err },
		func(ctx context.Context) (err error) { walk, err = r.Primary.Keys(ctx, span, every); return err })
	return walk, err
}

// Check implements Source: it explains on the primary, whose plans are those of
// its replicas.
func (r *Replicated) Check(ctx context.Context, window int) error {
	return r.Primary.Check(ctx, window)
}
