//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"spillway/internal/serve/front"
)

const (
	slots       = 2048
	bufferCount = 256
	shortWait   = 2 * time.Millisecond // as in front
)

// What a result is of. It is the highest byte of the request's user data; below are the slot's generation and the slot.
const (
	ofAccept = iota + 1
	ofRecv
	ofSend
	ofClose
	ofCancel
	ofStop
)

// ringLoop answers requests by io_uring: a multishot accept into the ring's own descriptors, a multishot receive into provided
// buffers on connections that stay open, and one io_uring_enter per round. The first receive of a connection is for one result,
// because there is nothing to cancel when the connection is closed after it.
//
// Send and close report failures only. Otherwise their results, which are there at once, would end every wait. They are not
// linked: a close that runs before its send is complete leaves the socket to it, and the second of a link waits for task work.
type ringLoop struct {
	ring     *ring
	socket   int
	stop     int // eventfd
	stopped  bool
	answerer front.Answerer
	conns    [slots]ringConn
}

// ringConn is a connection in a slot.
type ringConn struct {
	generation uint32 // of the slot, 24 bits
	receives   bool   // a multishot receive is under way
	out        []byte // response
}

// run serves until the eventfd stop is written to. It sends to opened once: nil, or why it cannot serve. The thread is the
// loop's for good, and ends with it.
func (l *ringLoop) run(opened chan<- error) error {
	runtime.LockOSThread()
	err := l.open()
	opened <- err
	if err != nil {
		return nil
	}
	return errors.Join(l.serve(), l.ring.close())
}

func (l *ringLoop) open() (err error) {
	if l.ring, err = openRing(1024, 4096, shortWait); err != nil {
		return err
	}
	err = errors.Join(l.ring.registerSlots(slots), l.ring.registerBuffers(bufferCount, requestBytes), l.accept(), l.watchStop())
	if err != nil {
		return errors.Join(err, l.ring.close())
	}
	return nil
}

func (l *ringLoop) serve() error {
	for !l.stopped {
		if err := l.ring.wait(); err != nil {
			return err
		}
		if err := l.ring.results(l.handle); err != nil {
			return err
		}
		l.ring.publishBuffers()
	}
	return nil
}

// user returns the user data of a request for a slot.
func (l *ringLoop) user(of uint64, slot uint32) uint64 {
	return of<<56 | uint64(l.conns[slot].generation)<<32 | uint64(slot)
}

func (l *ringLoop) accept() error {
	s, err := l.ring.request()
	if err != nil {
		return err
	}
	s.op, s.fd, s.ioprio, s.fileIndex, s.user = opAccept, int32(l.socket), acceptMultishot, indexAlloc, ofAccept<<56
	return nil
}

func (l *ringLoop) watchStop() error {
	s, err := l.ring.request()
	if err != nil {
		return err
	}
	s.op, s.fd, s.opFlags, s.user = opPollAdd, int32(l.stop), unix.POLLIN, ofStop<<56
	return nil
}

func (l *ringLoop) receive(slot uint32, multishot bool) error {
	s, err := l.ring.request()
	if err != nil {
		return err
	}
	s.op, s.fd, s.flags, s.user = opRecv, int32(slot), sqeFixedFile|sqeBufferSelect, l.user(ofRecv, slot)
	if multishot {
		s.ioprio = recvMultishot
	}
	l.conns[slot].receives = multishot
	return nil
}

func (l *ringLoop) send(slot uint32) error {
	s, err := l.ring.request()
	if err != nil {
		return err
	}
	out := l.conns[slot].out
	s.op, s.fd, s.flags, s.user = opSend, int32(slot), sqeFixedFile|sqeSkipSuccess, l.user(ofSend, slot)
	s.addr, s.len, s.opFlags = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(out)))), uint32(len(out)), unix.MSG_WAITALL|unix.MSG_NOSIGNAL
	return nil
}

// close closes a connection. A receive under way would hold the socket.
func (l *ringLoop) close(slot uint32) error {
	c := &l.conns[slot]
	if c.receives {
		s, err := l.ring.request()
		if err != nil {
			return err
		}
		s.op, s.flags, s.addr, s.user = opCancel, sqeSkipSuccess, l.user(ofRecv, slot), ofCancel<<56
	}
	s, err := l.ring.request()
	if err != nil {
		return err
	}
	s.op, s.flags, s.fileIndex, s.user = opClose, sqeSkipSuccess, slot+1, l.user(ofClose, slot)
	c.receives = false
	c.generation = (c.generation + 1) & 0xffffff
	return nil
}

func (l *ringLoop) handle(c cqe) error {
	slot := uint32(c.user)
	switch c.user >> 56 {
	case ofAccept:
		return l.accepted(c)
	case ofRecv:
		err := l.received(c, slot)
		if c.flags&cqeBuffer != 0 {
			l.ring.putBuffer(uint16(c.flags >> 16))
		}
		return err
	case ofClose:
		return fmt.Errorf("close: %w", unix.Errno(-c.res))
	case ofStop:
		l.stopped = true
	}
	return nil // a failed send shows in the receive
}

func (l *ringLoop) accepted(c cqe) error {
	if c.res < 0 {
		if errno := unix.Errno(-c.res); errno != unix.ECONNABORTED && errno != unix.EINTR {
			return fmt.Errorf("accept: %w", errno)
		}
	} else if err := l.receive(uint32(c.res), false); err != nil {
		return err
	}
	if c.flags&cqeMore == 0 {
		return l.accept()
	}
	return nil
}

func (l *ringLoop) received(c cqe, slot uint32) error {
	conn := &l.conns[slot]
	if c.user != l.user(ofRecv, slot) {
		return nil // canceled
	}
	more := c.flags&cqeMore != 0
	if c.res == -int32(unix.ENOBUFS) {
		return l.receive(slot, conn.receives)
	}
	if !more {
		conn.receives = false
	}
	if c.res <= 0 {
		return l.close(slot)
	}
	request := l.ring.buffer(uint16(c.flags>>16), int(c.res))
	if !front.Plain(request) {
		return l.close(slot)
	}
	var keep, ok bool
	if conn.out, keep, ok = l.answerer.Answer(conn.out[:0], request, netip.AddrPort{}); !ok {
		return l.close(slot)
	}
	if err := l.send(slot); err != nil {
		return err
	}
	switch {
	case !keep:
		return l.close(slot)
	case !more:
		return l.receive(slot, true)
	}
	return nil
}
