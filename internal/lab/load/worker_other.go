//go:build !linux

package load

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"spillway/internal/lab/target"
)

// Outside Linux, sessions drive every target, the pacer uses Go's timers, and
// there is no self-test.

func (*stepRun) runWorkers(context.Context) error { panic("bug: only Linux has workers") }

func minimizeTimerSlack() (restore func()) { return func() {} }

func sleep(d time.Duration) { time.Sleep(d) }

type nullServer struct{ address netip.AddrPort }

func startNullServer(target.Clock) (*nullServer, error) {
	return nil, errors.New("it requires Linux")
}

func (*nullServer) close() error                  { return nil }
func (*nullServer) seen() []int64                 { return nil }
func (*nullServer) stallLater(_, _ time.Duration) {}
