package apptest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Forward passes TCP connections on to a server, and can be pointed at another one: it is
// the address of a database that fails over.
type Forward struct {
	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex
	target string
	open   map[net.Conn]bool // both ends
}

// NewForward starts a Forward to a server for the duration of a test.
func NewForward(t testing.TB, target string) *Forward {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Forward{listener: listener, target: target, open: make(map[net.Conn]bool)}
	f.done.Go(f.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		f.To("")
		f.done.Wait()
	})
	return f
}

// Addr returns the address that clients connect to.
func (f *Forward) Addr() string { return f.listener.Addr().String() }

// To closes all connections and passes new ones on to another server; to none if target is
// empty.
func (f *Forward) To(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = target
	for conn := range f.open {
		_ = conn.Close()
	}
	clear(f.open)
}

func (f *Forward) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.done.Go(func() { f.pass(conn) })
	}
}

// pass connects a client with the server until one of them closes the connection.
func (f *Forward) pass(client net.Conn) {
	defer client.Close()
	f.mu.Lock()
	target := f.target
	f.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	f.mu.Lock()
	if f.target != target {
		f.mu.Unlock()
		return
	}
	f.open[client], f.open[server] = true, true
	f.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
	_ = client.Close()
	both.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, client)
	delete(f.open, server)
}
