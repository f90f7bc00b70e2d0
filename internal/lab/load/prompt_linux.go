package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// slice is the shortest time slice that a thread may ask for. A thread that wakes up goes before one with a longer slice, which
// otherwise keeps its CPU for some milliseconds (PREEMPT_SHORT, Linux 6.12).
const slice = 100 * time.Microsecond

// beginPromptly makes the kernel end the calling thread's waits on time instead of up to 50 us later. The thread
// then runs before others that have used their CPU for a while, such as those that read what is watched. restore undoes both. If the kernel
// refuses, the lag histogram shows the delay.
func beginPromptly() (restore func()) {
	slack, slackErr := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if slackErr == nil {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	attr, attrErr := unix.SchedGetAttr(0, 0)
	if attrErr == nil {
		short := *attr
		short.Runtime = uint64(slice)
		_ = unix.SchedSetAttr(0, &short, 0)
	}
	return func() {
		if slackErr == nil {
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
		}
		if attrErr == nil {
			_ = unix.SchedSetAttr(0, attr, 0)
		}
	}
}

// sleep blocks the calling thread for d. A signal may end it early.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
