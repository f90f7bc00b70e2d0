package load

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
)

// delayMax is how long this process may be kept from running before the times of a run say nothing about the generator.
const delayMax = 20 * time.Millisecond

// measureDelays sums up how much later than asked for a thread of this process wakes up again and again, beyond a millisecond
// each time: the process was stopped, or others used the CPUs, or a hypervisor did. stop returns the sum.
func measureDelays() (stop func() time.Duration) {
	const asked, usual = 2 * time.Millisecond, time.Millisecond
	ending, delays := make(chan struct{}), make(chan time.Duration)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for sum := time.Duration(0); ; {
			select {
			case <-ending:
				delays <- sum
				return
			default:
			}
			began := time.Now()
			_, _ = unix.Poll(nil, int(asked.Milliseconds())) // if a signal ends it early, the sum is smaller
			sum += max(time.Since(began)-asked-usual, 0)
		}
	}()
	return func() time.Duration {
		close(ending)
		return <-delays
	}
}

// inTime returns whether something did not take too long. It may only if the run was disturbed: by the measured delays, or by
// the verdict that other programs delayed it.
func (r *records) inTime(total *result.Total, ok bool) bool {
	return ok || r.delays >= delayMax || total.Validity == result.HostContended
}
