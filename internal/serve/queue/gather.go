package queue

import (
	"sync"
	"time"
)

// Gather decides how long a group of requests waits for more of them before they go
// together: an fsync, or a trip to another server, costs about the same for one and for
// a hundred.
//
// A client alone does not wait. If several requests were active recently, the next group
// waits for as many, or until Every has passed since the previous group began. Without
// the wait, the first client to return after a group would form the next group alone.
//
// All methods are called with one mutex held.
type Gather struct {
	Every time.Duration // longest time between the beginnings of two groups

	began  time.Time
	active int // the most requests in a group or waiting, recently; it decays
	want   int // for how many Wait waits
}

// Begin notes that a group begins.
func (g *Gather) Begin() { g.began = time.Now() }

// End notes that a group has ended with n requests active: those in it and those waiting.
func (g *Gather) End(n int) { g.active = max(n, g.active*7/8) }

// Enough reports whether n waiting requests are as many as Wait waits for. A caller that
// adds a request then wakes the waiter.
func (g *Gather) Enough(n int) bool { return n >= g.want }

// Wait waits until done returns true or Every has passed. done is called whenever wake is
// signaled, and may call Enough. The mutex is wake.L; Wait releases it meanwhile.
func (g *Gather) Wait(wake *sync.Cond, done func() bool) {
	wait := g.Every - time.Since(g.began)
	if g.active < 2 || wait <= 0 {
		return
	}
	over := false
	timer := time.AfterFunc(wait, func() {
		wake.L.Lock()
		defer wake.L.Unlock()
		over = true
		wake.Signal()
	})
	defer timer.Stop()
	for g.want = g.active; !over && !done(); {
		wake.Wait()
	}
	g.want = 0
}
