//go:build linux && !portable

package storetest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

// silent answers nothing.
type silent struct{}

func (silent) Repeat(dst, _ []byte, _ netip.AddrPort) ([]byte, bool, bool) { return dst, false, false }

func (silent) Answer(dst, _ []byte, _ int, _ netip.AddrPort) ([]byte, bool, bool, *front.Later) {
	return dst, false, false, nil
}

func (silent) Enter() bool { return true }
func (silent) Leave()      {}

// StartLoop returns an event loop, which ends with the test.
func StartLoop(t *testing.T) *front.Loop {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var own *front.Loop
	socket := -1
	failed := raw.Control(func(fd uintptr) { socket, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(failed, err); err != nil {
		t.Fatal(err)
	}
	f, err := front.Open(front.Config{
		Socket: socket, Loops: 1, Gate: silent{}, RequestBytes: 4096, FirstTimeout: time.Hour, IdleTimeout: time.Hour,
		Answerer: func(loop *front.Loop, _ func(*front.Later) func()) front.Answerer {
			own = loop
			return silent{}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.StopAccepting(false); err != nil {
			t.Error(err)
		}
		f.End(context.Background())
	})
	return own
}

// OnLoop calls f in the loop, and returns when it has.
func OnLoop(t *testing.T, loop *front.Loop, f func()) {
	t.Helper()
	done := make(chan struct{})
	if !loop.Post(func() { f(); close(done) }) {
		t.Fatal("the loop has ended")
	}
	apptest.Receive(t, "the loop", done)
}

// LoopRead is a read in a loop. Ended gets what Done is told, or the error of Begin.
type LoopRead struct {
	feed.LoopRead
	Ended chan error
}

// NewLoopRead returns a read for arguments. The gate may be nil.
func NewLoopRead(gate *queue.Entrance, limit feed.Limit, args []string) *LoopRead {
	r := &LoopRead{LoopRead: feed.LoopRead{
		Range: feed.Range{Args: args}, Name: param.AppendArgs(nil, args), Within: time.Hour, Rows: feed.Rows{Limit: limit}, Gate: gate,
	}, Ended: make(chan error, 1)}
	r.Done = func(err error) { r.Ended <- err }
	return r
}

// BeginReads begins reads for arguments at once.
func BeginReads(t *testing.T, loop *front.Loop, s feed.LoopReader, gate *queue.Entrance, limit feed.Limit, all ...[]string) []*LoopRead {
	t.Helper()
	var reads []*LoopRead
	for _, args := range all {
		reads = append(reads, NewLoopRead(gate, limit, args))
	}
	OnLoop(t, loop, func() {
		for _, r := range reads {
			if err := s.Begin(loop, &r.LoopRead); err != nil {
				r.Ended <- err
			}
		}
	})
	return reads
}
