package query

import (
	"context"
	"errors"
	"time"

	"spillway/internal/standby"
)

// Replicated is a Source that runs on a replica of the primary while that
// answers. Both must hold the same tables. The replica's rows may be behind the
// primary's.
type Replicated struct {
	Replica, Primary Source
	Switch           *standby.Switch
}

var _ Source = (*Replicated)(nil)

// Run implements Source.
func (r *Replicated) Run(ctx context.Context, args []string, limit Limit, rows *Rows) error {
	return r.Switch.Do(ctx, time.Now(), func(err error) bool { return errors.Is(err, ErrTooLarge) },
		func(ctx context.Context) error { return r.Replica.Run(ctx, args, limit, rows) },
		func(ctx context.Context) error {
			rows.Reset()
			return r.Primary.Run(ctx, args, limit, rows)
		})
}
