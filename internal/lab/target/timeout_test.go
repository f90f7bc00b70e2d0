package target

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// The tests of the timeout delay two parts of a request. Each part is shorter than
// the timeout, and their sum is longer.
const (
	wholeTimeout = 1000 * time.Millisecond
	partDelay    = 600 * time.Millisecond
)

// slowConn delays the first read.
type slowConn struct {
	net.Conn
	once sync.Once
}

func (c *slowConn) Read(b []byte) (int, error) {
	c.once.Do(func() { <-time.After(partDelay) })
	return c.Conn.Read(b)
}

type slowListener struct{ net.Listener }

func (l slowListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &slowConn{Conn: conn}, nil
}

// slowProxy passes connections on to address and delays the start of each.
func slowProxy(t testing.TB, address string) string {
	return hostile(t, func(_ int, conn net.Conn) {
		<-time.After(partDelay)
		backend, err := net.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		defer backend.Close()
		var copying sync.WaitGroup
		copying.Go(func() {
			io.Copy(conn, backend)
			conn.Close()
		})
		io.Copy(backend, conn)
		backend.Close()
		copying.Wait()
	})
}

// expectTimeout wants a timeout after the connection was made. On a busy machine the connection alone may take as long as the
// timeout; then it tries again.
func expectTimeout(t *testing.T, name string, tg *Target) {
	t.Helper()
	for range 20 {
		outcomes, _ := exchangeAll(t, tg, 1)
		o := &outcomes[0]
		if o.Err == nil || Classify(o.Err) != result.Timeout {
			t.Errorf("%s: error %v after %v, want a timeout after %v", name, o.Err, time.Duration(o.Done-o.Begin), wholeTimeout)
			return
		}
		if o.Connected != 0 {
			return
		}
	}
	t.Errorf("%s: the connection failed, and the test needs a slow answer too", name)
}

// TestTimeoutCoversHandshake has a TLS handshake and an answer that are both slow.
func TestTimeoutCoversHandshake(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(partDelay):
			case <-r.Context().Done():
			}
		}))
		server.EnableHTTP2 = true
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.Listener = slowListener{server.Listener}
		server.StartTLS()
		tg := open(t, Config{URL: server.URL, Insecure: true, HTTP2: http2, Timeout: wholeTimeout})
		expectTimeout(t, "HTTP/2 "+map[bool]string{false: "off", true: "on"}[http2], tg)
		server.Close()
	}
}

// TestTimeoutCoversLogin has a database whose login and statement are both slow.
func TestTimeoutCoversLogin(t *testing.T) {
	t.Parallel()
	mariaDB := sharedMariaDB.Get(t).URL("test")
	slowly := func(url string) string {
		_, rest, _ := strings.Cut(url, "@")
		address, _, _ := strings.Cut(rest, "/")
		return strings.Replace(url, address, slowProxy(t, address), 1)
	}
	tg := open(t, Config{URL: slowly(mariaDB), SQL: "SELECT SLEEP(0.6)", Timeout: wholeTimeout})
	expectTimeout(t, "MariaDB", tg)

	server := sharedPostgres.Get(t)
	tg = open(t, Config{URL: slowly(server.CreateDatabase(t)), SQL: "SELECT pg_sleep(0.6)", Timeout: wholeTimeout})
	expectTimeout(t, "PostgreSQL", tg)
}
