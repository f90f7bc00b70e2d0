package load

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/lab/target"
)

// nullAnswer is the answer to every request.
const nullAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// arrivalsMax is the number of arrivals that a nullServer records.
const arrivalsMax = 1 << 20

// nullServer answers every HTTP request at once and records when each arrived. It
// takes each read for one request, which holds for small requests over loopback.
type nullServer struct {
	address  netip.AddrPort
	clock    target.Clock
	listener net.Listener
	stallAt  atomic.Int64 // time at which it stops answering; 0: never
	stallFor atomic.Int64
	active   sync.WaitGroup

	mu       sync.Mutex
	arrivals []int64
	open     map[net.Conn]bool
}

func startNullServer(clock target.Clock) (*nullServer, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start null server: %w", err)
	}
	s := &nullServer{clock: clock, listener: listener, open: make(map[net.Conn]bool), address: listener.Addr().(*net.TCPAddr).AddrPort()}
	s.active.Go(s.accept)
	return s, nil
}

// close stops the server and closes its connections.
func (s *nullServer) close() error {
	err := s.listener.Close()
	s.mu.Lock()
	for conn := range s.open {
		conn.Close()
	}
	s.mu.Unlock()
	s.active.Wait()
	return err
}

func (s *nullServer) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.open[conn] = true
		s.mu.Unlock()
		s.active.Go(func() {
			s.answer(conn)
			conn.Close()
			s.mu.Lock()
			delete(s.open, conn)
			s.mu.Unlock()
		})
	}
}

// answer serves one connection until it ends.
func (s *nullServer) answer(conn net.Conn) {
	buffer, answer := make([]byte, 4<<10), []byte(nullAnswer)
	for {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
		s.stall()
		s.record()
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// stall sleeps until the end of a stall in progress.
func (s *nullServer) stall() {
	now, begin := s.clock.Now(), s.stallAt.Load()
	end := begin + s.stallFor.Load()
	if begin != 0 && now >= begin && now < end {
		time.Sleep(time.Duration(end - now))
	}
}

func (s *nullServer) record() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.arrivals) < arrivalsMax {
		s.arrivals = append(s.arrivals, s.clock.Now())
	}
}

// seen returns the times at which requests arrived.
func (s *nullServer) seen() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.arrivals)
}

// stallLater makes the server stop answering after a delay, for some time.
func (s *nullServer) stallLater(after, length time.Duration) {
	s.stallFor.Store(int64(length))
	s.stallAt.Store(s.clock.Now() + int64(after))
}
