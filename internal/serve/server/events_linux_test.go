//go:build !portable

package server

import (
	"net"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
)

// TestEventsEndForAVanishedClient: a listener whose client has lost its network is dropped
// soon after http.write_timeout, although the kernel takes the small events.
func TestEventsEndForAVanishedClient(t *testing.T) {
	t.Parallel()
	source := &rows{n: 50}
	url, s := startRefreshing(t, source, func(c *Config) { c.WriteTimeout = 300 * time.Millisecond })
	var c net.Conn
	apptest.Await(t, "an event comes", func() bool { // a process that stands still for as long as the timeout writes none
		var err error
		if c, err = net.Dial("tcp", strings.TrimPrefix(url, "http://")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return hasEvent(t, c, `{"id":50}`)
	})
	dropPackets(t, c.(*net.TCPConn))
	source.mu.Lock()
	source.n++
	source.mu.Unlock()
	apptest.Await(t, "the listener is dropped", func() bool {
		s.listenings.mu.Lock()
		defer s.listenings.mu.Unlock()
		return len(s.listenings.all) == 0
	})
}

// dropPackets has the kernel drop what arrives at a connection, as if its network were gone.
func dropPackets(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	filter := [...]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter[:])}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	}); err != nil {
		t.Fatal(err)
	}
	if failed == unix.EPERM { // some kernels allow it to root only
		apptest.NeedRoot(t)
	}
	if failed != nil {
		t.Fatal(failed)
	}
}
