package target

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// dialPlaces is how many connections with a handshake are opened at once.
const dialPlaces = 8

// handshakes opens the connections of a worker whose protocol begins with a
// handshake that blocks: goroutines do it, and an eventfd tells the worker.
type handshakes struct {
	dial   func(ctx context.Context, turn int) (fd int, err error)
	ctx    context.Context // ends with the worker
	cancel context.CancelFunc
	event  int
	places chan struct{}
	ready  chan dialed
	going  sync.WaitGroup
}

// dialed is an opened connection for the socket named by key, or why not.
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
	h := &handshakes{dial: dial, event: event, places: make(chan struct{}, dialPlaces), ready: make(chan dialed, 2*connections)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h, nil
}

// begin opens a connection for key; ready tells when it is there.
func (h *handshakes) begin(key eventKey, turn int) {
	h.going.Go(func() {
		h.places <- struct{}{}
		fd, err := h.dial(h.ctx, turn)
		<-h.places
		select {
		case h.ready <- dialed{key, fd, err}:
			_, _ = unix.Write(h.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full: the worker wakes all the same
		case <-h.ctx.Done():
			if err == nil {
				unix.Close(fd)
			}
		}
	})
}

// close ends every handshake and closes what came of them.
func (h *handshakes) close() {
	h.cancel()
	h.going.Wait()
	close(h.ready)
	for d := range h.ready {
		if d.err == nil {
			unix.Close(d.fd)
		}
	}
	unix.Close(h.event)
}

// Connect opens every connection of a target that begins with a handshake ahead
// of the first request, and returns how long each took. A failure is told by the
// first request on that connection, so that it counts. For other targets it does
// nothing: their connections are opened as they are needed.
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
			w.handshakes.places <- struct{}{}
			start := w.clock.Now()
			fd, err := w.handshakes.dial(ctx, i)
			end := w.clock.Now()
			<-w.handshakes.places
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				c.refused = err
				return
			}
			took = append(took, time.Duration(end-start))
			if c.refused = w.adopt(c, fd); c.refused != nil {
				w.hangUp(c)
				return
			}
			c.state = stateIdle
		})
	}
	opening.Wait()
	return took
}

// adopt takes an open socket into c's place.
func (w *Worker) adopt(c *connection, fd int) error {
	w.opened(c, fd)
	if err := w.poller.add(fd, watched, c.key); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// takeDialed goes on with the requests whose connections are there.
func (w *Worker) takeDialed() {
	var count [8]byte
	if _, err := unix.Read(w.handshakes.event, count[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		return
	}
	for {
		select {
		case d := <-w.handshakes.ready:
			w.goOn(d)
		default:
			return
		}
	}
}

func (w *Worker) goOn(d dialed) {
	c := &w.connections[d.key.connection]
	if c.key.generation != d.key.generation || c.state != stateDialing {
		if d.err == nil { // the request has given up waiting
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
