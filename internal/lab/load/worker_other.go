//go:build !linux

package load

import (
	"context"
	"time"
)

// Outside Linux, sessions drive every target, and the pacer uses Go's timers.

func (*stepRun) runWorkers(context.Context) error { panic("bug: only Linux has workers") }

func minimizeTimerSlack() (restore func()) { return func() {} }

func sleep(d time.Duration) { time.Sleep(d) }
