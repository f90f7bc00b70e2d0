//go:build !linux

package load

import (
	"context"
	"time"

	"spillway/internal/lab/result"
)

// Outside Linux, sessions drive every target, and the pacer uses Go's timers.

func (*stepRun) runWorkers(context.Context) error { panic("bug: only Linux has workers") }

func beginPromptly() (restore func()) { return func() {} }

func sleep(d time.Duration) { time.Sleep(d) }

func readClock() result.Clock { return result.Clock{Unknown: "only Linux tells"} }

// alarm wakes a goroutine on time.
type alarm struct{ stopped chan struct{} }

func newAlarm() (*alarm, error) { return &alarm{make(chan struct{})}, nil }

// wait blocks for d. It returns false if stop was called.
func (a *alarm) wait(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-a.stopped:
		return false
	}
}

// stop ends wait, also later ones. It may be called once.
func (a *alarm) stop() { close(a.stopped) }

func (a *alarm) close() {}
