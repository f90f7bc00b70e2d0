package target

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
)

// The servers of the tests that do not stop them.
var (
	sharedPostgres = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) { return apptest.StartPostgres() }}
	sharedMariaDB  = apptest.Shared[*apptest.Server]{Start: func() (*apptest.Server, error) { return apptest.StartMariaDB() }}
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(apptest.Closing(m, &sharedPostgres, &sharedMariaDB))
}

// refusing returns an address that refuses connections, and keeps its port until the test ends.
func refusing(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(fd)
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

// hostile starts a TCP server that passes each connection and its number from 1
// to serve, and closes it afterwards.
func hostile(t testing.TB, serve func(number int, conn net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	serving.Go(func() {
		for number := 1; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			serving.Go(func() {
				defer stop()
				defer conn.Close()
				serve(number, conn)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		listener.Close()
		serving.Wait()
	})
	return listener.Addr().String()
}

// answering responds to each request of a connection with the bytes that answer
// returns. nil closes the connection.
func answering(answer func(r *http.Request) []byte) func(int, net.Conn) {
	return func(_ int, conn net.Conn) {
		reader := bufio.NewReader(conn)
		for {
			r, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			if r.ContentLength > 0 {
				if _, err := reader.Discard(int(r.ContentLength)); err != nil {
					return
				}
			}
			b := answer(r)
			if b == nil {
				return
			}
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// open opens a target for a test.
func open(t testing.TB, c Config) *Target {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	if c.Clock == (Clock{}) {
		c.Clock = NewClock()
	}
	tg, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return tg
}

// checkTimes checks that the times of an outcome are in order.
func checkTimes(t testing.TB, o *Outcome) {
	t.Helper()
	last := o.Intended
	for _, at := range []int64{o.Begin, o.Connected, o.Sent, o.First, o.Done} {
		if at != 0 && at < last {
			t.Errorf("times out of order: %+v", o)
		}
		last = max(last, at)
	}
	if o.Err == nil && (o.Sent == 0 || o.First == 0 || o.Done == 0) {
		t.Errorf("answered without all times: %+v", o)
	}
}
