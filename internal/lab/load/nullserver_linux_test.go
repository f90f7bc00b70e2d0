package load

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/target"
)

// nullAnswer is the answer to every request.
const nullAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// nullServer answers every HTTP request at once, from an epoll loop on one thread,
// and records when each arrived. It takes each read for one request, which holds
// for small requests over loopback.
type nullServer struct {
	address  netip.AddrPort
	clock    target.Clock
	stallAt  atomic.Int64 // time at which it stops answering; 0: never
	stallFor atomic.Int64

	mu       sync.Mutex
	arrivals []int64 // of the first arrivalsMax requests

	listener, poll int
	stop           int // an eventfd
	done           chan error
}

// arrivalsMax is the number of arrivals that are recorded.
const arrivalsMax = 1 << 20

func startNullServer(clock target.Clock) (*nullServer, error) {
	s := &nullServer{clock: clock, done: make(chan error, 1)}
	if err := s.listen(); err != nil {
		return nil, fmt.Errorf("start null server: %w", err)
	}
	go func() { s.done <- s.serve() }()
	return s, nil
}

func (s *nullServer) listen() (err error) {
	if s.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if err = unix.Bind(s.listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err = unix.Listen(s.listener, 4096); err != nil {
		return err
	}
	name, err := unix.Getsockname(s.listener)
	if err != nil {
		return err
	}
	s.address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port))
	if s.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.stop, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return err
	}
	return errors.Join(s.watch(s.listener), s.watch(s.stop))
}

func (s *nullServer) watch(fd int) error {
	return unix.EpollCtl(s.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// close stops the server.
func (s *nullServer) close() error {
	if _, err := unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return err
	}
	err := <-s.done
	return errors.Join(err, unix.Close(s.stop), unix.Close(s.poll), unix.Close(s.listener))
}

// serve runs until close. It closes the open connections.
func (s *nullServer) serve() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	open := make(map[int]bool)
	defer func() {
		for fd := range open {
			unix.Close(fd)
		}
	}()
	events := make([]unix.EpollEvent, 256)
	buffer := make([]byte, 16<<10)
	for {
		n, err := unix.EpollWait(s.poll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		s.stall()
		for i := range max(n, 0) {
			fd := int(events[i].Fd)
			switch {
			case fd == s.stop:
				return nil
			case fd == s.listener:
				s.accept(open)
			case !s.answer(fd, buffer):
				unix.Close(fd)
				delete(open, fd)
			}
		}
	}
}

// stall sleeps until the end of a stall in progress.
func (s *nullServer) stall() {
	now, begin := s.clock.Now(), s.stallAt.Load()
	end := begin + s.stallFor.Load()
	if begin != 0 && now >= begin && now < end {
		<-time.After(time.Duration(end - now))
	}
}

func (s *nullServer) accept(open map[int]bool) {
	for {
		fd, _, err := unix.Accept4(s.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if s.watch(fd) != nil {
			unix.Close(fd)
			continue
		}
		open[fd] = true
	}
}

// answer answers one request and reports whether the connection stays open.
func (s *nullServer) answer(fd int, buffer []byte) bool {
	n, err := unix.Read(fd, buffer)
	if errors.Is(err, unix.EAGAIN) {
		return true
	}
	if err != nil || n == 0 {
		return false
	}
	s.record()
	_, err = unix.Write(fd, []byte(nullAnswer))
	return err == nil
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
