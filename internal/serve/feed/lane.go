package feed

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/coalesce"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

// Lanes are the reads of a query or a feed in event loops, and the requests that wait for them. All fields are set before the first use.
type Lanes[T any] struct {
	Reader  LoopReader
	Group   *coalesce.Group[T] // of reads elsewhere. Its limits hold for both together
	Base    context.Context    // the lifetime of reads elsewhere
	Reads   *sync.WaitGroup    // counts them
	Timeout time.Duration      // longest wait of a request
	Limit   Limit
	Gate    *queue.Entrance
	// Call returns what Group runs for a read that the loop cannot do. ctx is that of the caller.
	Call func(ctx context.Context, name string, r Range) func(context.Context) (T, error)
	// Ended is told of each read in the loop that has begun. Without an error, it returns the answer, which must not be used after the
	// requests are answered.
	Ended func(r *LoopRead, began, now time.Time, err error) (T, error)
	Size  func(answer T) int // bytes

	large  atomic.Int64 // so many requests do not wait in loops, because an answer was large
	lanes  sync.Map     // *lane by *front.Loop
	left   atomic.Int64 // waiting requests whose clients have left
	shared atomic.Uint64
}

// lane is the reads in one event loop. It belongs to the thread of the loop.
type lane[T any] struct {
	*Lanes[T]
	loop    *front.Loop
	running map[string]*loopRun[T] // by name
	free    []*loopRun[T]
}

// loopRun is one read in an event loop, and the requests that share it.
type loopRun[T any] struct {
	lane    *lane[T]
	read    LoopRead
	class   string
	key     string
	waits   []*LoopWait[T]
	waiting int  // waits whose clients have not left
	turn    bool // it has one of its class
	full    bool // its request is one too many
	began   time.Time
	latest  time.Time          // the last request came, before the read went elsewhere, which ends when its time is over
	cancel  context.CancelFunc // of a read elsewhere; nil: it is in the loop
	ended   bool
	answer  T
	err     error
}

// LoopWait is a request that waits in an event loop. Its methods are for the thread of the loop.
type LoopWait[T any] struct {
	run   *loopRun[T]
	later *front.Later
	gone  bool // its client has left
}

// Begin has a request wait for a read in its event loop. Then later is answered, and Answer follows. Requests with equal names share a
// read. The arguments of r are args, which are copied.
func (l *Lanes[T]) Begin(loop *front.Loop, w *LoopWait[T], later *front.Later, class string, name []byte, args []string, r Range) {
	in := l.lane(loop)
	run := in.running[string(name)]
	shares := run != nil && (run.cancel == nil || run.waiting > 0 && loop.Now().Sub(run.latest) < l.Timeout/8)
	turn, err := l.Group.Enter(class, shares)
	if shares && err == nil {
		l.shared.Add(1)
	} else {
		run = in.start(class, name, args, r, turn, err)
	}
	*w = LoopWait[T]{run: run, later: later}
	later.Limit, later.Inside = l.Timeout, true
	if run.cancel == nil {
		run.latest = loop.Now()
	}
	run.waits, run.read.Unwanted = append(run.waits, w), false
	run.waiting++
}

const (
	largeAnswer = 64 << 10 // bytes, which hold up a loop that writes them
	largeFor    = 64       // requests after a large answer that do not wait in loops
)

// Fits reports whether a request may wait in a loop. One that may not is counted.
func (l *Lanes[T]) Fits() bool {
	large := l.large.Load()
	return large == 0 || !l.large.CompareAndSwap(large, large-1)
}

// Waiting returns how many requests wait, in event loops or elsewhere, and how many have shared another one's read.
func (l *Lanes[T]) Waiting() (now int, shared uint64) {
	now, shared = l.Group.Waiting()
	return max(0, now-int(l.left.Load())), shared + l.shared.Load()
}

// lane returns the reads in a loop.
func (l *Lanes[T]) lane(loop *front.Loop) *lane[T] {
	if in, ok := l.lanes.Load(loop); ok {
		return in.(*lane[T])
	}
	in := &lane[T]{Lanes: l, loop: loop, running: make(map[string]*loopRun[T])}
	l.lanes.Store(loop, in)
	return in
}

// start begins a read, unless full is an error.
func (l *lane[T]) start(class string, name []byte, args []string, of Range, turn bool, full error) *loopRun[T] {
	var r *loopRun[T]
	if n := len(l.free); n > 0 {
		r, l.free = l.free[n-1], l.free[:n-1]
	} else {
		r = &loopRun[T]{lane: l}
		r.read.Done = r.done
	}
	r.class, r.key, r.turn, r.began, r.latest = class, string(name), turn, l.loop.Now(), l.loop.Now()
	r.read.Name, r.read.Range = append(r.read.Name[:0], name...), of
	r.read.Args = param.CloneArgs(args)
	r.read.Within, r.read.Rows.Limit, r.read.Gate = l.Timeout, l.Limit, l.Gate
	if full != nil {
		r.full = true
		r.refuse(full)
		return r
	}
	l.running[r.key] = r
	err := ErrElsewhere
	if turn {
		err = l.Reader.Begin(l.loop, &r.read)
	}
	switch err {
	case nil:
	case ErrElsewhere:
		r.elsewhere()
	default:
		r.refuse(err)
	}
	return r
}

// refuse ends the read after the round.
func (r *loopRun[T]) refuse(err error) {
	r.cancel = func() {}
	r.lane.loop.After(func() { r.finish(*new(T), err) })
}

// done is told that the loop has read the rows.
func (r *loopRun[T]) done(err error) {
	if err == ErrElsewhere {
		r.elsewhere()
		return
	}
	r.finish(r.lane.Ended(&r.read, r.began, r.lane.loop.Now(), err))
}

// elsewhere has the rows read as for requests outside of loops.
func (r *loopRun[T]) elsewhere() {
	l := r.lane
	var ctx context.Context
	ctx, r.cancel = context.WithTimeout(l.Base, max(0, l.Timeout-time.Since(r.latest)))
	if r.waiting == 0 && len(r.waits) > 0 { // they have left
		time.AfterFunc(goneAfter, r.cancel)
	}
	r.endTurn()
	l.Reads.Go(func() {
		answer, _, err := l.Group.Join(ctx, r.class, r.key, l.Call(ctx, r.key, r.read.Range))
		l.loop.Post(func() { r.finish(answer, err) })
	})
}

func (r *loopRun[T]) endTurn() {
	if r.turn {
		r.turn = false
		r.lane.Group.Leave(r.class, false, true)
	}
}

// finish answers the requests.
func (r *loopRun[T]) finish(answer T, err error) {
	if r.lane.running[r.key] == r {
		delete(r.lane.running, r.key)
	}
	r.endTurn()
	if err == nil && r.lane.Size(answer) > largeAnswer {
		r.lane.large.Store(largeFor)
	}
	r.ended, r.answer, r.err = true, answer, err
	for _, w := range r.waits {
		if w != nil {
			r.lane.loop.Answered(w.later)
		}
	}
	if r.cancel != nil {
		r.cancel()
		return
	}
	r.recycle()
}

const rowsKept = 64 << 10 // bytes

// recycle keeps the memory of a read in the loop whose requests are answered.
func (r *loopRun[T]) recycle() {
	clear(r.waits)
	kept := LoopRead{Name: r.read.Name, Done: r.read.Done, Rows: r.read.Rows, collector: r.read.collector}
	*r = loopRun[T]{lane: r.lane, waits: r.waits[:0], read: kept}
	if r.read.Handler().Start(); cap(r.read.Rows.Data) > rowsKept {
		r.read.Rows, r.read.collector = Rows{}, collector{}
	}
	r.lane.free = append(r.lane.free, r)
}

// Answer returns what the read has. With over, the request has waited for the timeout.
func (w *LoopWait[T]) Answer(over bool) (answer T, err error) {
	r, l := w.run, w.run.lane
	answer, err = r.answer, r.err
	if !r.full {
		l.Group.Leave(r.class, true, false)
	}
	if over {
		r.waits[slices.Index(r.waits, w)] = nil // it may be used again
		w.Abandon()
		r.drop()
		err = context.DeadlineExceeded
	}
	if w.gone {
		l.left.Add(-1)
	}
	return answer, err
}

// goneAfter is how long a read goes on whose clients seem to have left. They may have closed only their sending half.
const goneAfter = 100 * time.Millisecond

// Abandon says that the client has left.
func (w *LoopWait[T]) Abandon() {
	r := w.run
	if w.gone {
		return
	}
	w.gone = true
	r.lane.left.Add(1)
	if r.waiting--; r.waiting == 0 {
		r.read.Unwanted = true
		if r.cancel != nil {
			time.AfterFunc(goneAfter, r.cancel)
		}
	}
}

// drop ends the read unless somebody waits for it.
func (r *loopRun[T]) drop() {
	switch {
	case r.waiting > 0 || r.ended:
	case r.cancel != nil:
		r.cancel()
	default:
		err := context.DeadlineExceeded
		if r.lane.Reader.Drop(r.lane.loop, &r.read) {
			r.read.Took = r.lane.loop.Now().Sub(r.began)
			_, err = r.lane.Ended(&r.read, r.began, r.lane.loop.Now(), err)
		}
		r.finish(*new(T), err)
	}
}
