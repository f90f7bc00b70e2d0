package load

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
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

// alarm wakes a goroutine on time. A timer of the Go runtime is up to 1 ms late,
// because the runtime waits for whole milliseconds.
type alarm struct {
	fd   int
	file *os.File
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "timer")}, nil
}

// wait blocks for d, which is positive. It returns false if stop was called.
func (a *alarm) wait(d time.Duration) bool {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(a.fd, 0, &at, nil); err != nil {
		panic("bug: set timer: " + err.Error())
	}
	var expirations [8]byte
	_, err := a.file.Read(expirations[:])
	return err == nil
}

// stop ends wait, also later ones. It may be called from another goroutine.
func (a *alarm) stop() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) }

func (a *alarm) close() { a.file.Close() }

// readClock asks the kernel what the program that synchronizes the clock, if there is one, has told it.
func readClock() result.Clock {
	var t unix.Timex // without modes, it changes nothing
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return result.Clock{Unknown: err.Error()}
	}
	if state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0 {
		return result.Clock{}
	}
	return result.Clock{Synchronized: true, Error: (time.Duration(t.Maxerror) * time.Microsecond).Seconds()}
}
