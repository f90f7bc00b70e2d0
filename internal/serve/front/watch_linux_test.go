//go:build !portable

package front

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
)

// watching notes what a loop calls.
type watching struct {
	fd    int
	ready chan string
	ended chan struct{}
}

func (w *watching) Ready() {
	var text [100]byte
	if n, _ := unix.Read(w.fd, text[:]); n >= 0 {
		w.ready <- string(text[:n])
	}
}

func (w *watching) Ended() { close(w.ended) }

// TestLoopServesItsAnswerer: a loop polls descriptors, rings alarms and calls what was posted, in its thread and in order, until it ends.
func TestLoopServesItsAnswerer(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	loop := r.loops[0].own
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	w := &watching{fd: pair[0], ready: make(chan string, 10), ended: make(chan struct{})}
	watched, order := make(chan error, 1), make(chan []int, 1)
	var calls []int
	alarm := &Alarm{Ring: func() {
		calls = append(calls, 4)
		order <- calls
	}}
	loop.Post(func() {
		watched <- loop.Watch(pair[0], w)
		alarm.At = loop.Now().Add(10 * time.Millisecond)
		loop.Add(alarm)
		loop.After(func() {
			calls = append(calls, 2)
			loop.After(func() { calls = append(calls, 3) })
		})
		calls = append(calls, 1)
	})
	if err := apptest.Receive(t, "the descriptor", watched); err != nil {
		t.Fatal(err)
	}
	if got := apptest.Receive(t, "the alarm", order); !slices.Equal(got, []int{1, 2, 3, 4}) {
		t.Errorf("calls: %v", got)
	}
	for _, text := range []string{"a", "b"} {
		if _, err := unix.Write(pair[1], []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got := apptest.Receive(t, "what has arrived", w.ready); got != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
	done := make(chan struct{})
	loop.Post(func() {
		loop.Remove(alarm)
		loop.Unwatch(pair[0])
		_, _ = unix.Write(pair[1], []byte("unseen")) // it has room
		close(done)
	})
	apptest.Receive(t, "the end of the watch", done)
	loop.Post(func() { watched <- loop.Watch(pair[0], w) })
	if err := apptest.Receive(t, "the descriptor", watched); err != nil {
		t.Fatal(err)
	}
	if got := apptest.Receive(t, "what has arrived meanwhile", w.ready); got != "unseen" {
		t.Errorf("%q", got)
	}
	r.stop()
	apptest.Receive(t, "the end", w.ended)
	if loop.Post(func() {}) {
		t.Error("a loop that has ended takes more")
	}
}

// TestWatchTakesTheSocketsNumber: a descriptor that is opened after the socket was closed, and gets its number, is watched like others.
func TestWatchTakesTheSocketsNumber(t *testing.T) { // not parallel: nobody else may take the number
	r := open(t, 1, nil)
	loop, number := r.loops[0].own, r.cfg.Socket
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := r.StopAccepting(false); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(pair[0]), unix.F_DUPFD_CLOEXEC, number)
	if err != nil || fd != number {
		t.Fatal(fd, err)
	}
	defer unix.Close(fd)
	w := &watching{fd: fd, ready: make(chan string, 10), ended: make(chan struct{})}
	watched := make(chan error, 1)
	loop.Post(func() { watched <- loop.Watch(fd, w) })
	if err := apptest.Receive(t, "the descriptor", watched); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(pair[1], []byte("a")); err != nil {
		t.Fatal(err)
	}
	if got := apptest.Receive(t, "what has arrived", w.ready); got != "a" {
		t.Errorf("%q", got)
	}
	r.endAll(t)
}
