package feed

import (
	"errors"
	"time"

	"spillway/internal/serve/front"
)

// LoopReader is a Reader of a query that can also read in an event loop, without a goroutine that waits. Its methods are for the thread
// of the loop.
type LoopReader interface {
	Reader
	// Begin begins a read, after which Done is called on the same thread, but not before Begin has returned. It returns false if the
	// rows are better read by Read now; then nothing has happened.
	Begin(loop *front.Loop, r *LoopRead) bool
	// Drop says that nobody waits for a read that has begun. Its statement is cancelled if it runs for long. Done is not called.
	Drop(loop *front.Loop, r *LoopRead)
}

// LoopRead is one read in an event loop. Args and Rows.Limit are set.
type LoopRead struct {
	Args []string
	Name []byte // AppendArgs(Args)
	Rows Rows
	Done func(err error) // nil, an error as that of Read, or ErrElsewhere

	Took   time.Duration // how long the database has needed
	Handle any           // the reader's own
}

// ErrElsewhere means that the rows must be read by Read, because the loop could not.
var ErrElsewhere = errors.New("the event loop could not read")

// Collected is what Read returns of an error.
func (d *Definition) Collected(rows *Rows, err error) error {
	return Collect(d, rows, func(RowHandler) error { return err })
}

