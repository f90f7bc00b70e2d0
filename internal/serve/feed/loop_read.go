package feed

import (
	"errors"
	"time"

	"spillway/internal/serve/front"
	"spillway/internal/serve/queue"
)

// LoopReader is a Reader that can also read in an event loop, without a goroutine that waits. Its methods are for the thread
// of the loop.
type LoopReader interface {
	Reader
	// Begin begins a read, after which Done is called on the same thread, but not before Begin has returned. Otherwise nothing has
	// happened: the error is ErrElsewhere, or a *queue.Overload if the read is predicted to end too late.
	Begin(loop *front.Loop, r *LoopRead) error
	// Drop ends a read that has begun, and reports whether its statement was sent. It is cancelled if it runs for long. Done is not
	// called.
	Drop(loop *front.Loop, r *LoopRead) (sent bool)
}

// LoopRead is one read in an event loop. The first five fields are set before.
type LoopRead struct {
	Range                  // without Until
	Name   []byte          // of Range
	Within time.Duration   // when it is to end
	Rows   Rows            // its Limit
	Gate   *queue.Entrance // of reads elsewhere, which the loop's connections take places of

	Unwanted bool            // those who wait seem to have left: it is cancelled if it would take long
	Done     func(err error) // nil, an error as that of Read, or ErrElsewhere

	Took   time.Duration // how long the database has needed
	Handle any           // the reader's own

	collector collector // of Rows
}

// Handler returns the handler that takes the rows. After the last one, End is called.
func (r *LoopRead) Handler() RowHandler {
	r.collector.rows, r.collector.query = &r.Rows, r.Range.Limit == 0
	return &r.collector
}

// End is called after the last row. It returns ErrElsewhere if rows with NULL in the key are to be looked for.
func (r *LoopRead) End(nulls *NullKeys) error {
	r.collector.finish()
	if nulls.Matter(r.Range, r.Rows.Len()) {
		return ErrElsewhere
	}
	return nil
}

// ErrElsewhere means that the rows must be read by Read, because the loop could not.
var ErrElsewhere = errors.New("the event loop could not read")
