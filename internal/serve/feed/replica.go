package feed

import (
	"context"
	"errors"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/standby"
)

// Replicated is a Source that reads from a replica while its rows are young enough, else from
// the primary, or from the replica again if the primary is away. Both must have the same
// tables. It sets ReadAt. It does not use Rows.Each.
type Replicated struct {
	Replica, Primary Source
	Switch           *standby.Switch
	Timeout          time.Duration // Config.Timeout; the database asked first gets a part of it
	StaleMax         time.Duration // Config.StaleMax
}

var _ Source = (*Replicated)(nil)

func (r *Replicated) bounds() standby.Bounds {
	own := func(err error) bool {
		return errors.Is(err, ErrCursor) || errors.Is(err, param.ErrValue) || errors.Is(err, ErrTooLarge)
	}
	return standby.Bounds{Timeout: r.Timeout, StaleMax: r.StaleMax, Own: own}
}

// Read implements Source.
func (r *Replicated) Read(ctx context.Context, span Range, rows *Rows) error {
	ask := func(source Source) func(context.Context) (*Rows, error) {
		return func(ctx context.Context) (*Rows, error) {
			own := &Rows{Limit: rows.Limit} // an abandoned read may still write
			err := source.Read(ctx, span, own)
			return own, err
		}
	}
	read, readAt, err := standby.Read(ctx, r.Switch, r.bounds(), ask(r.Replica), ask(r.Primary))
	if err != nil {
		return err
	}
	rows.take(read)
	rows.ReadAt = readAt
	return nil
}

// take appends the rows of other. If r is empty, it takes over other's memory.
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
	walk, readAt, err := standby.Read(ctx, r.Switch, r.bounds(), ask(r.Replica), ask(r.Primary))
	walk.ReadAt = readAt
	return walk, err
}

// readAt returns when rows of a source were read: at the start of the read, if the source
// does not say.
func readAt(start, said time.Time) time.Time {
	if said.IsZero() {
		return start
	}
	return said
}

// Check implements Source. It explains on the primary, because its replicas have the same
// plans.
func (r *Replicated) Check(ctx context.Context, window int) error {
	return r.Primary.Check(ctx, window)
}

// Columns implements Source, as the first database says that has read them.
func (r *Replicated) Columns() []Column {
	if columns := r.Primary.Columns(); columns != nil {
		return columns
	}
	return r.Replica.Columns()
}
