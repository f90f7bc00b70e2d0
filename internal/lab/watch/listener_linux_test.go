package watch

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newListeners(tb testing.TB, ports ...int) *Sampler {
	tb.Helper()
	s, err := Listeners(ports...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// TestAcceptQueue fills an accept queue to a known depth, and then beyond. The kernel accepts one connection more than the
// limit and then counts a drop per attempt.
func TestAcceptQueue(t *testing.T) {
	enterNamespace(t, 20000, 29999)
	server := listen(t, 8080, 32)
	sampler, tcp := newListeners(t, 8080), newTCP(t)
	for range 20 {
		defer unix.Close(server.connect())
	}
	expectAll(t, readOne(t, sampler), map[string]float64{"accept_queue": 20, "accept_queue_limit": 32, "sockets": 1})
	for range 13 {
		defer unix.Close(server.connect())
	}
	expectAll(t, readOne(t, sampler), map[string]float64{"accept_queue": 33})
	repeatDisturbed(t, func() string { return testDrops(t, tcp) })
}

// testDrops attempts connections to a listener that is full. The kernel repeats each attempt after a second, which counts again.
func testDrops(t *testing.T, tcp *Sampler) (wrong string) {
	var fds []int
	defer func() { closeFDs(fds) }()
	began, before := time.Now(), readOne(t, tcp)
	for range 40 {
		fd := socket(t, unix.SOCK_NONBLOCK)
		fds = append(fds, fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 8080, Addr: [4]byte{127, 0, 0, 1}}); err != unix.EINPROGRESS {
			t.Fatal(err)
		}
	}
	after := readOne(t, tcp)
	if took := time.Since(began); took >= time.Second {
		return fmt.Sprintf("40 attempts took %s, want less than a second", took)
	}
	expectAll(t, difference(before, after), map[string]float64{
		"listen_overflows_total": 40, "listen_drops_total": 40, "active_opens_total": 40,
	})
	return ""
}

// TestListeners distinguishes addresses, and reports the ports without a listener beside the others.
func TestListeners(t *testing.T) {
	enterNamespace(t, 20000, 29999)
	listen(t, 8080, 10)
	listen(t, 8081, 20)
	samples, err := newListeners(t, 8081, 8082, 8083).Read(context.Background())
	if len(samples) != 1 || samples[0].Subject != "127.0.0.1:8081" {
		t.Errorf("samples %v, want one of 127.0.0.1:8081", samples)
	}
	if err == nil || err.Error() != "nothing listens on ports 8082 8083 (ss -ltn lists what does)" {
		t.Errorf("error %v", err)
	}
	samples, err = newListeners(t).Read(context.Background())
	if err != nil || len(samples) != 2 || samples[0].Subject != "127.0.0.1:8080" {
		t.Errorf("all: %v, %v", samples, err)
	}
	if _, err := Listeners(70000); err == nil || !strings.Contains(err.Error(), "port 70000") {
		t.Errorf("port 70000: %v", err)
	}
}

// TestListenersReusePort reports the fullest of the sockets that share an address, and IPv6 in brackets.
func TestListenersReusePort(t *testing.T) {
	enterNamespace(t, 20000, 29999)
	for _, backlog := range []int{50, 5, 20} {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet6{Port: 8080}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(fd, backlog); err != nil {
			t.Fatal(err)
		}
	}
	samples, err := newListeners(t).Read(context.Background())
	if err != nil || len(samples) != 1 || samples[0].Subject != "[::]:8080" {
		t.Fatalf("%v, %v", samples, err)
	}
	expectAll(t, samples[0].Values, map[string]float64{"accept_queue": 0, "accept_queue_limit": 5, "sockets": 3})
}

func BenchmarkListeners(b *testing.B) {
	enterNamespace(b, 1024, 65535)
	server := listen(b, 999, 1024)
	server.closed(20_000, true)
	benchmarkRead(b, newListeners(b, 999))
}

// benchmarkRead reports the CPU time of a reading, which the watcher reports too.
func benchmarkRead(b *testing.B, s *Sampler) {
	b.Helper()
	b.ReportAllocs()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadCPU()
	for b.Loop() {
		if _, err := s.Read(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((threadCPU()-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
}

func benchName(n int, what string) string {
	return strings.ReplaceAll(fmt.Sprintf("%d %s", n, what), " ", "_")
}
