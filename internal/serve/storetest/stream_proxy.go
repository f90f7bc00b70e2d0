package storetest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy is between an adapter and its server. It can cut a connection at a commit, and counts
// round trips.
type Proxy struct {
	listener net.Listener
	server   string
	isCommit func(sent []byte) bool
	wait     sync.WaitGroup

	mu    sync.Mutex
	armed Cut
	cuts  int
	trips int
	conns map[net.Conn]bool
}

// Cut is the place where a connection is cut.
type Cut uint8

// The places.
const (
	CutNone   Cut = iota
	CutBefore     // the server does not receive the commit
	CutAfter      // the answer to the commit is lost
)

// NewProxy starts a proxy for server, a host:port, until the test ends. isCommit reports
// whether a write of the adapter contains a commit.
func NewProxy(t testing.TB, server string, isCommit func(sent []byte) bool) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, server: server, isCommit: isCommit, conns: make(map[net.Conn]bool)}
	p.wait.Go(p.accept)
	t.Cleanup(func() {
		listener.Close()
		p.mu.Lock()
		for conn := range p.conns {
			conn.Close()
		}
		p.mu.Unlock()
		p.wait.Wait()
	})
	return p
}

// Addr returns the proxy's host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Arm makes the proxy cut the next commit.
func (p *Proxy) Arm(where Cut) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = where
}

// Cuts returns the number of commits cut.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		c := &conn{client: client, server: server, answers: make(chan Cut, 1)}
		p.wait.Go(func() { p.forward(c) })
		p.wait.Go(func() { p.backward(c) })
	}
}

func (p *Proxy) drop(c *conn) {
	c.client.Close()
	c.server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c.client)
	delete(p.conns, c.server)
}

// Trips returns how often an adapter has sent something after an answer.
func (p *Proxy) Trips() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trips
}

// conn is a connection of an adapter.
type conn struct {
	client, server net.Conn
	answers        chan Cut
	asked          bool // the server has not answered yet
}

// forward passes what the adapter sends.
func (p *Proxy) forward(c *conn) {
	defer p.drop(c)
	buffer := make([]byte, 1<<20)
	for {
		n, err := c.client.Read(buffer)
		if err != nil {
			return
		}
		p.count(c)
		switch p.cut(buffer[:n]) {
		case CutBefore:
			return
		case CutAfter:
			c.answers <- CutAfter
		}
		if _, err := c.server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// count counts a round trip, unless the adapter goes on with the message of the last one.
func (p *Proxy) count(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.asked {
		p.trips++
	}
	c.asked = true
}

// cut returns what to do with a message, once each time the proxy is armed.
func (p *Proxy) cut(sent []byte) Cut {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.armed == CutNone || !p.isCommit(sent) {
		return CutNone
	}
	where := p.armed
	p.armed = CutNone
	p.cuts++
	return where
}

// backward passes the answers until one is to be lost.
func (p *Proxy) backward(c *conn) {
	defer p.drop(c)
	buffer := make([]byte, 1<<16)
	for {
		n, err := c.server.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-c.answers:
			return
		default:
		}
		p.mu.Lock()
		c.asked = false
		p.mu.Unlock()
		if _, err := c.client.Write(buffer[:n]); err != nil && err != io.EOF {
			return
		}
	}
}
