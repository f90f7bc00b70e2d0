package query

import (
	"context"
	"errors"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/standby"
)

// Definition is the part of a query's configuration that its Source needs: one SELECT with
// named, typed parameters.
type Definition struct {
	Name   string // the query's path, for messages, metrics and cache keys
	SQL    string // a SELECT; parameters as :name
	Params []param.Param

	RFC3339       bool // as in feed.Definition
	NumbersAsText bool
}

// Source runs a query's statement. Its methods may be called concurrently.
type Source interface {
	// Run appends the statement's rows to rows in the database's order. args are the
	// arguments for Definition.Params in their order. At the first row beyond limit it stops
	// with an error that wraps ErrTooLarge; if the database rejects an argument, the error
	// wraps param.ErrValue. When ctx ends, the statement is cancelled in the database.
	Run(ctx context.Context, args []string, limit Limit, rows *Rows) error
}

// Limit bounds a result.
type Limit struct {
	Rows  int
	Bytes int // of the encoded rows
}

// Rows are encoded rows.
type Rows struct {
	Data  []byte // JSON objects, commas between them
	Count int

	// Each, if it is not nil, takes each row, which it must not keep; Data is empty then. Its
	// error stops Run. A source that starts again counts from 0 again.
	Each func(object []byte) error

	// ReadAt is a time that the rows are no older than; zero: the start of Run.
	ReadAt time.Time
}

// Begin starts a row. The source then appends one JSON object to Data and calls End.
func (r *Rows) Begin() {
	if r.Count > 0 && r.Each == nil {
		r.Data = append(r.Data, ',')
	}
}

// End closes the row that Begin started. It returns an error that wraps ErrTooLarge if the
// rows exceed limit.
func (r *Rows) End(limit Limit) error {
	r.Count++
	switch {
	case r.Count > limit.Rows:
		return tooLarge("rows_max", limit.Rows, "rows")
	case len(r.Data) > limit.Bytes:
		return tooLarge("bytes_max", limit.Bytes, "bytes")
	case r.Each != nil:
		row := r.Data
		r.Data = r.Data[:0]
		return r.Each(row)
	}
	return nil
}

// Reset empties r and keeps its memory and Each.
func (r *Rows) Reset() { r.Data, r.Count, r.ReadAt = r.Data[:0], 0, time.Time{} }

// Replicated is a Source that runs on a replica while its rows are young enough, else on the
// primary, or on the replica again if the primary is away. Both must have the same tables.
// It sets ReadAt.
type Replicated struct {
	Replica, Primary Source
	Switch           *standby.Switch
	Timeout          time.Duration // Config.Timeout; the database asked first gets a part of it
	StaleMax         time.Duration // age of the replica's rows served while the primary is away
}

var _ Source = (*Replicated)(nil)

// Run implements Source.
func (r *Replicated) Run(ctx context.Context, args []string, limit Limit, rows *Rows) error {
	ask := func(source Source) func(context.Context) (Rows, error) {
		return func(ctx context.Context) (Rows, error) {
			var own Rows // an abandoned run may still write
			err := source.Run(ctx, args, limit, &own)
			return own, err
		}
	}
	own := func(err error) bool { return errors.Is(err, ErrTooLarge) || errors.Is(err, param.ErrValue) }
	bounds := standby.Bounds{Timeout: r.Timeout, StaleMax: r.StaleMax, Own: own}
	read, readAt, err := standby.Read(ctx, r.Switch, bounds, ask(r.Replica), ask(r.Primary))
	if err != nil {
		return err
	}
	read.ReadAt = readAt
	*rows = read
	return nil
}
