package load

import (
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
)

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
