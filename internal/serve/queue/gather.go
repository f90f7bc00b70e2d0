// Package gather says how long to wait for more before what came is sent together: an
// fsync, or a trip to another server, costs about the same for one and for a hundred.
//
// Who is alone does not wait. Where several were around lately, the next group waits for
// as many, or until Every has passed since the one before began: without that, the first
// of those who were answered together has the next group alone, and the others the one
// behind it.
package gather

import (
	"sync"
	"time"
)

// Gather is the state between groups. All its methods are called with one mutex held.
type Gather struct {
	Every time.Duration // between the beginnings of two groups, at most

	began  time.Time
	around int // lately, in a group or waiting for the next: the most, which fades
	want   int // for which Wait waits
}

// Begin notes that a group begins.
func (g *Gather) Begin() { g.began = time.Now() }

// End notes that a group has ended with n around: those in it, and those who wait.
func (g *Gather) End(n int) { g.around = max(n, g.around*7/8) }

// Enough reports whether n who wait are as many as Wait waits for. Who adds one wakes
// the waiter then.
func (g *Gather) Enough(n int) bool { return n >= g.want }

// Wait waits until done returns true, which may ask Enough and is asked whenever wake
// wakes, or until it has been long enough. The mutex is wake.L and free meanwhile.
func (g *Gather) Wait(wake *sync.Cond, done func() bool) {
	wait := g.Every - time.Since(g.began)
	if g.around < 2 || wait <= 0 {
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
	for g.want = g.around; !over && !done(); {
		wake.Wait()
	}
	g.want = 0
}
