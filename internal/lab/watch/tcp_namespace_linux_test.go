package watch

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// enterNamespace moves the test into a network namespace of its own, where nothing else opens a socket. The thread is never
// unlocked, so it ends with the test, and the namespace ends with the thread.
func enterNamespace(tb testing.TB, low, high int) {
	tb.Helper()
	apptest.NeedRoot(tb)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		tb.Fatalf("make a network namespace: %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		tb.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		tb.Fatalf("bring the loopback up: %v", err)
	}
	setNet(tb, "ip_local_port_range", fmt.Sprintf("%d %d", low, high))
	setNet(tb, "tcp_tw_reuse", "0")
}

func setNet(tb testing.TB, name, value string) {
	tb.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
		tb.Fatal(err)
	}
}

// loopback is a listening or a connected socket.
type loopback struct {
	tb    testing.TB
	fd    int
	port  int
	bound int // the local port of the next connection; 0 for any
}

func socket(tb testing.TB, flags int) int {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return fd
}

// listen opens a listener; port 0 is any.
func listen(tb testing.TB, port, backlog int) *loopback {
	tb.Helper()
	fd := socket(tb, 0)
	tb.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		tb.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	return &loopback{tb: tb, fd: fd, port: name.(*unix.SockaddrInet4).Port}
}

// connect returns a connection that the listener has not accepted.
func (l *loopback) connect() int {
	l.tb.Helper()
	fd := socket(l.tb, 0)
	if l.bound != 0 {
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: l.bound}); err != nil {
			l.tb.Fatal(err)
		}
		l.bound++
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: l.port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		l.tb.Fatal(err)
	}
	return fd
}

// pair returns both ends of a connection.
func (l *loopback) pair() (client, server int) {
	l.tb.Helper()
	client = l.connect()
	server, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC)
	if err != nil {
		l.tb.Fatal(err)
	}
	return client, server
}

// closed makes n connections of which this end closes first and is left in TIME_WAIT.
func (l *loopback) closed(n int, clientFirst bool) {
	l.tb.Helper()
	var one [1]byte
	for range n {
		first, second := l.pair()
		if !clientFirst {
			first, second = second, first
		}
		if err := unix.Shutdown(first, unix.SHUT_WR); err != nil {
			l.tb.Fatal(err)
		}
		if n, err := unix.Read(second, one[:]); n != 0 || err != nil {
			l.tb.Fatalf("read %d, %v: want the end of the connection", n, err)
		}
		_ = unix.Close(second)
		_ = unix.Close(first)
	}
}

// readOne reads a sampler of one subject.
func readOne(tb testing.TB, s *Sampler) map[string]float64 {
	tb.Helper()
	samples, err := s.Read(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	if len(samples) != 1 {
		tb.Fatalf("%d samples, want 1: %v", len(samples), samples)
	}
	return samples[0].Values
}

// expect fails unless the value is within 5 % of the truth, or one count.
func expect(tb testing.TB, values map[string]float64, name string, truth float64) {
	tb.Helper()
	value, told := values[name]
	if !told {
		tb.Errorf("%s is missing, want %g", name, truth)
		return
	}
	bound := truth / 20
	if !result.Counter(name) || bound < 1 && truth == float64(int(truth)) {
		bound = max(bound, 1)
	}
	if value < truth-bound || value > truth+bound {
		tb.Errorf("%s is %g, want %g", name, value, truth)
	}
}
