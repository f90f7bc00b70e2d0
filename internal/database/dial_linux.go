package database

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout ends a connection whose peer acknowledges nothing for silentMost.
func setUserTimeout(_, _ string, raw syscall.RawConn) error {
	// A Unix socket has no such option; the error does not matter.
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentMost.Milliseconds()))
	})
}
