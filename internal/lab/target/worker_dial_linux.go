package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialsMax is the number of handshakes that run at the same time.
const dialsMax = 8

// handshakes opens connections that begin with a blocking handshake. Goroutines
// run the handshakes, and an eventfd wakes the worker.
type handshakes struct {
	dial   func(ctx context.Context, number int) (fd int, err error)
	ctx    context.Context // ends with the worker
	cancel context.CancelFunc
	event  int           // the eventfd
	slots  chan struct{} // dialsMax
	ready  chan dialed
	active sync.WaitGroup
}

// dialed is a new socket for the connection named by key, or an error.
type dialed struct {
	key eventKey
	fd  int
	err error
}

// handshakeKey is the key of the eventfd.
const handshakeKey = -1

func newHandshakes(p *poller, connections int, dial func(context.Context, int) (int, error)) (*handshakes, error) {
	event, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	if err := p.add(event, unix.EPOLLIN, eventKey{connection: handshakeKey}); err != nil {
		unix.Close(event)
		return nil, fmt.Errorf("watch eventfd: %w", err)
	}
	h := &handshakes{dial: dial, event: event, slots: make(chan struct{}, dialsMax), ready: make(chan dialed, 2*connections)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h, nil
}

// begin starts a handshake for key, which fails at the deadline. Its result goes
// to ready.
func (h *handshakes) begin(key eventKey, number int, deadline time.Time) {
	h.active.Go(func() {
		ctx, cancel := context.WithDeadline(h.ctx, deadline)
		defer cancel()
		h.slots <- struct{}{}
		fd, err := h.dial(ctx, number)
		<-h.slots
		select {
		case h.ready <- dialed{key, fd, err}:
			_, _ = unix.Write(h.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // a full eventfd wakes the worker too
		case <-h.ctx.Done():
			if err == nil {
				unix.Close(fd)
			}
		}
	})
}

// close cancels every handshake and closes the sockets that nobody took.
func (h *handshakes) close() {
	h.cancel()
	h.active.Wait()
	close(h.ready)
	for d := range h.ready {
		if d.err == nil {
			unix.Close(d.fd)
		}
	}
	unix.Close(h.event)
}

// Connect opens every connection of a target that needs a handshake before the
// first request, and returns how long each took. The first request on a
// connection reports its failure, so that it is counted. Other targets connect
// as needed; for them Connect does nothing.
func (w *Worker) Connect(ctx context.Context) (took []time.Duration) {
	if w.handshakes == nil {
		return nil
	}
	var (
		mu      sync.Mutex
		opening sync.WaitGroup
	)
	for i := range w.connections {
		c := &w.connections[i]
		opening.Go(func() {
			w.handshakes.slots <- struct{}{}
			start := w.clock.Now()
			ctx, cancel := context.WithTimeout(ctx, time.Duration(w.timeout))
			defer cancel()
			fd, err := w.handshakes.dial(ctx, i)
			end := w.clock.Now()
			<-w.handshakes.slots
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				c.connectErr = err
				return
			}
			took = append(took, time.Duration(end-start))
			if c.connectErr = w.adopt(c, fd); c.connectErr != nil {
				w.disconnect(c)
				return
			}
			c.state = stateIdle
		})
	}
	opening.Wait()
	return took
}

// adopt stores an open socket in c.
func (w *Worker) adopt(c *connection, fd int) error {
	w.opened(c, fd)
	if err := w.poller.add(fd, watched, c.key); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// takeDialed continues the requests whose connections are ready.
func (w *Worker) takeDialed() {
	var count [8]byte
	if _, err := unix.Read(w.handshakes.event, count[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		return
	}
	for {
		select {
		case d := <-w.handshakes.ready:
			w.resume(d)
		default:
			return
		}
	}
}

// resume sends the request that waited for d.
func (w *Worker) resume(d dialed) {
	c := &w.connections[d.key.connection]
	if c.key.generation != d.key.generation || c.state != stateDialing {
		if d.err == nil { // the request has timed out
			unix.Close(d.fd)
		}
		return
	}
	now := w.clock.Now()
	err := d.err
	if err == nil {
		w.count(now)
		err = w.adopt(c, d.fd)
	}
	if err == nil {
		c.outcome.Connected, c.outcome.Sent = now, now
		c.state = stateBusy
		err = w.send(c)
	}
	if err != nil {
		w.end(c, err, now)
	}
}

// errEncrypted means that a Worker cannot drive a connection.
var errEncrypted = errors.New("the connection is encrypted")

// dialPostgres connects and prepares. It returns the socket, which the caller
// closes, or errEncrypted.
func (t *Target) dialPostgres(ctx context.Context, number int) (fd int, err error) {
	conn, err := t.connectPostgres(ctx, number)
	if err != nil {
		return -1, err
	}
	defer conn.Close()
	return duplicate(conn)
}

// checkWorker opens one connection and closes it, and notes whether a Worker can
// drive the target.
func (t *Target) checkWorker(ctx context.Context) error {
	fd, err := t.dialPostgres(ctx, 0)
	if errors.Is(err, errEncrypted) {
		return nil
	}
	if err != nil {
		return err
	}
	t.plain.Store(true)
	return unix.Close(fd)
}

// duplicate returns another, non-blocking descriptor of a connection's socket.
func duplicate(conn net.Conn) (fd int, err error) {
	socket, ok := conn.(syscall.Conn) // a tls.Conn is none
	if !ok {
		return -1, errEncrypted
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("take the connection over: %w", err)
	}
	var duplicateErr error
	err = raw.Control(func(old uintptr) {
		fd, duplicateErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(err, duplicateErr); err != nil {
		return -1, fmt.Errorf("take the connection over: %w", err)
	}
	return fd, nil
}
