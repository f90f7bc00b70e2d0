package query

import (
	"context"
	"errors"
	"time"

	"spillway/internal/serve/standby"
)

// Replicated is a Source that runs on a replica of the primary while that
// answers. Both must hold the same tables. The replica's rows may be behind the
// primary's.
type Replicated struct {
	Replica, Primary Source
	Switch           *standby.Switch
	Timeout          time.Duration // Config.Timeout: a part of it is the replica's
}

var _ Source = (*Replicated)(nil)

// Run implements Source.
func (r *Replicated) Run(ctx context.Context, args []string, limit Limit, rows *Rows) error {
	ask := func(source Source) func(context.Context) (Rows, error) {
		return func(ctx context.Context) (Rows, error) {
			var own Rows // a replica that was given up may still be writing
			err := source.Run(ctx, args, limit, &own)
			return own, err
		}
	}
	bounds := standby.Bounds{Timeout: r.Timeout, Own: func(err error) bool { return errors.Is(err, ErrTooLarge) }}
	read, err := standby.Read(ctx, r.Switch, bounds, ask(r.Replica), ask(r.Primary))
	if err != nil {
		return err
	}
	*rows = read
	return nil
}
