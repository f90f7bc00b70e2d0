package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// minimizeTimerSlack makes the kernel end the calling thread's waits on time
// instead of up to 50 us later. restore undoes it. If the kernel refuses, the lag
// histogram shows the delay.
func minimizeTimerSlack() (restore func()) {
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return func() {}
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	return func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) }
}

// sleep blocks the calling thread for d. A signal may end it early.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
