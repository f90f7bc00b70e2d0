package main

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// client gives out connections to services. Its methods may be called concurrently.
type client interface {
	take(address string) (*grpc.ClientConn, error)
	put(address string, conn *grpc.ClientConn, failed error) // every connection taken, with how its call went
	close()                                                  // when no call runs any more
}

// dial opens a connection by the address as it is, without a resolver's work.
func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// pool lends each connection to one call at a time and keeps a few for the next. It never makes a call wait: when all are
// lent, it opens one more, and closes what it has no place for afterwards. So a pool of 10 under 100 concurrent calls
// still connects for most of them, as the pools of early microservice frameworks do; one of size 0 connects for each.
type pool struct {
	size int

	mu   sync.Mutex
	idle map[string][]*grpc.ClientConn
}

func newPool(size int) *pool { return &pool{size: size, idle: map[string][]*grpc.ClientConn{}} }

func (p *pool) take(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	if idle := p.idle[address]; len(idle) > 0 {
		conn := idle[len(idle)-1]
		p.idle[address] = idle[:len(idle)-1]
		p.mu.Unlock()
		return conn, nil
	}
	p.mu.Unlock()
	return dial(address)
}

func (p *pool) put(address string, conn *grpc.ClientConn, failed error) {
	p.mu.Lock()
	if failed == nil && len(p.idle[address]) < p.size {
		p.idle[address] = append(p.idle[address], conn)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	_ = conn.Close() // nothing is left to be said on it
}

func (p *pool) close() {
	for _, idle := range p.idle {
		for _, conn := range idle {
			_ = conn.Close()
		}
	}
}

// shared has one connection for each address, over which all calls go at once: HTTP/2 was made for that.
type shared struct {
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

func newShared() *shared { return &shared{conns: map[string]*grpc.ClientConn{}} }

func (s *shared) take(address string) (*grpc.ClientConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn := s.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := dial(address)
	if err == nil {
		s.conns[address] = conn
	}
	return conn, err
}

// put leaves the connection open: it mends itself.
func (s *shared) put(string, *grpc.ClientConn, error) {}

func (s *shared) close() {
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}
