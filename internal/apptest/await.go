package apptest

import (
	"testing"
	"time"
)

// hangTimeout is how long a test waits for an event. It is so long that only an event that
// never comes reaches it, whatever else the machine does.
const hangTimeout = time.Minute

// Await returns when holds returns true. It asks from the test's goroutine, after 10 ms
// first and less often the longer it waits, up to 100 ms, and fails the test if the answer is
// still false after a minute. So the state must last once it is reached. what completes the
// sentence "waited a minute until".
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	AwaitState(t, what, func() (string, bool) { return "", holds() })
}

// AwaitState is Await with a description of what there is instead, which ends the message of
// a failure.
func AwaitState(t testing.TB, what string, holds func() (state string, ok bool)) {
	t.Helper()
	start := time.Now()
	for {
		state, ok := holds()
		if ok {
			return
		}
		elapsed := time.Since(start)
		if elapsed > hangTimeout {
			if state != "" {
				state = ", but: " + state
			}
			t.Fatalf("waited a minute until %s%s (logs of servers: %s)", what, state, LogDirectory())
		}
		<-time.After(min(pollInterval+elapsed/16, 10*pollInterval))
	}
}

// Receive returns the next value of ch. It fails the test if none comes within a minute.
func Receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	timeout := time.NewTimer(hangTimeout)
	defer timeout.Stop()
	select {
	case value := <-ch:
		return value
	case <-timeout.C:
		t.Fatalf("waited a minute for %s (logs of servers: %s)", what, LogDirectory())
		panic("unreachable")
	}
}
