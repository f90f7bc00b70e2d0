package feed

import (
	"context"
	"errors"
	"time"

	"spillway/internal/serve/standby"
)

// Replicated is a Source that reads from a replica of the primary while that
// answers. Both must hold the same tables. Reads of the replica may be behind the
// primary's: a window is as old as the replica is late.
type Replicated struct {
	Replica, Primary Source
	Switch           *standby.Switch
	Timeout          time.Duration // Config.Timeout: a part of it is the replica's
}

var _ Source = (*Replicated)(nil)

func (r *Replicated) bounds() standby.Bounds {
	return standby.Bounds{Timeout: r.Timeout, Own: func(err error) bool { return errors.Is(err, ErrCursor) }}
}

// Read implements Source.
func (r *Replicated) Read(ctx context.Context, span Range, rows *Rows) error {
	ask := func(source Source) func(context.Context) (*Rows, error) {
		return func(ctx context.Context) (*Rows, error) {
			own := new(Rows) // a replica that was given up may still be writing
			err := source.Read(ctx, span, own)
			return own, err
		}
	}
	read, err := standby.Read(ctx, r.Switch, r.bounds(), ask(r.Replica), ask(r.Primary))
	if err != nil {
		return err
	}
	rows.take(read)
	return nil
}

// take appends the rows of other, which becomes r's when r is empty.
func (r *Rows) take(other *Rows) {
	if r.Len() == 0 {
		*r = *other
		return
	}
	for i := range other.Len() {
		r.Begin()
		r.Data = append(r.Data, other.Slice(i, i+1)...)
		r.End(other.Keys[i])
	}
}

// Keys implements Source.
func (r *Replicated) Keys(ctx context.Context, span Range, every int) (Walk, error) {
	ask := func(source Source) func(context.Context) (Walk, error) {
		return func(ctx context.Context) (Walk, error) { return source.Keys(ctx, span, every) }
	}
	return standby.Read(ctx, r.Switch, r.bounds(), ask(r.Replica), ask(r.Primary))
}

// Check implements Source: it explains on the primary, whose plans are those of
// its replicas.
func (r *Replicated) Check(ctx context.Context, window int) error {
	return r.Primary.Check(ctx, window)
}
