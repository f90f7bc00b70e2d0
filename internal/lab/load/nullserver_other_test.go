//go:build !linux

package load

import (
	"errors"
	"net/netip"
	"time"

	"spillway/internal/lab/target"
)

type nullServer struct{ address netip.AddrPort }

func startNullServer(target.Clock) (*nullServer, error) {
	return nil, errors.New("it requires Linux")
}

func (*nullServer) close() error                  { return nil }
func (*nullServer) seen() []int64                 { return nil }
func (*nullServer) stallLater(_, _ time.Duration) {}
