package target

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchMax is how many events one wait returns. Between two batches the pacer
// looks at the clock, so a batch also bounds how long an arrival can be late
// for the work of others.
const batchMax = 64

// poller waits for sockets. It is owned by one thread.
type poller struct {
	fd     int
	events [batchMax]unix.EpollEvent
	coarse bool // the kernel has no epoll_pwait2: wait in milliseconds
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &poller{fd: fd}, nil
}

func (p *poller) close() error { return unix.Close(p.fd) }

// add watches fd; key comes back with its events.
func (p *poller) add(fd int, events uint32, key eventKey) error {
	return p.control(unix.EPOLL_CTL_ADD, fd, key.event(events))
}

// change sets the events watched on fd.
func (p *poller) change(fd int, events uint32, key eventKey) error {
	return p.control(unix.EPOLL_CTL_MOD, fd, key.event(events))
}

func (p *poller) control(operation, fd int, e unix.EpollEvent) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(p.fd), uintptr(operation), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// poll returns the events that are there now, without waiting. The call cannot
// block, so it does not tell the scheduler about itself: that halves its cost.
func (p *poller) poll() (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), batchMax, 0, 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return 0, fmt.Errorf("poll epoll: %w", errno)
	}
	if errno != 0 {
		return 0, nil
	}
	return int(n), nil
}

// wait returns the events that are there, or waits for some for at most d. The
// wait is a system call that the scheduler knows of: the garbage collector and
// other goroutines go on meanwhile.
func (p *poller) wait(d time.Duration) (int, error) {
	if d <= 0 {
		return p.poll()
	}
	if !p.coarse {
		n, err := p.waitFine(d)
		if !errors.Is(err, unix.ENOSYS) {
			return n, err
		}
		p.coarse = true
	}
	n, err := unix.EpollWait(p.fd, p.events[:], int(d/time.Millisecond)) // rounds down: the rest is polled
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("wait for epoll: %w", err)
	}
	return max(n, 0), nil
}

func (p *poller) waitFine(d time.Duration) (int, error) {
	ts := unix.NsecToTimespec(int64(d))
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), batchMax, uintptr(unsafe.Pointer(&ts)), 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return 0, fmt.Errorf("wait for epoll: %w", errno)
	}
	if errno != 0 {
		return 0, nil
	}
	return int(n), nil
}

// eventKey names a connection's socket in an event: the connection, and which
// of its sockets in a row, so that an event of a closed one is told apart.
type eventKey struct {
	connection int32
	generation int32
}

func (k eventKey) event(events uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Fd: k.connection, Pad: k.generation}
}
