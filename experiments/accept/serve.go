//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/serve/front"
)

const (
	requestBytes = 4096
	bodyEnd      = "the-end" // of every response
)

// Servers of this program.
const (
	oneSocket = "front"     // front: one socket, and a kept connection goes to the loop with the fewest
	plain     = "plain"     // one socket, and a connection stays where it was accepted
	reusePort = "reuseport" // a socket per loop with SO_REUSEPORT
	byRing    = "io_uring"  // one loop
)

// loads is what the loops of a server did.
type loads struct {
	Connections []int // served, by the loop that answered most of their requests
	Requests    []int
}

// serve is a server in a process of its own: it prints its address, serves until in ends, and prints its loads, which are 0
// without counts.
func serve(name string, loops int, counts bool, in io.Reader, out io.Writer) error {
	sockets, address, err := listen(name, loops)
	if err != nil {
		return err
	}
	answerers := make([]*answerer, loops)
	for i := range answerers {
		answerers[i] = newAnswerer(counts)
	}
	var stop func() error
	if name == byRing {
		stop, err = startRing(sockets[0], answerers[0])
	} else {
		stop, err = startFronts(sockets, answerers)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(out, address)
	_, err = io.Copy(io.Discard, in)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(summarize(answerers))
}

// listen returns the sockets of a server, one for each front.
func listen(name string, loops int) (sockets []int, address string, err error) {
	n := 1
	if name == reusePort || name == plain {
		n = loops
	}
	bound := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	for i := range n {
		var fd int
		if i > 0 && name == plain {
			fd, err = unix.FcntlInt(uintptr(sockets[0]), unix.F_DUPFD_CLOEXEC, 0)
		} else {
			fd, err = listenAt(bound, name == reusePort)
		}
		if err != nil {
			return nil, "", fmt.Errorf("listen: %w", err)
		}
		sockets = append(sockets, fd)
		at, err := unix.Getsockname(fd)
		if err != nil {
			return nil, "", fmt.Errorf("listen: %w", err)
		}
		bound.Port = at.(*unix.SockaddrInet4).Port
	}
	return sockets, netip.AddrPortFrom(netip.AddrFrom4(bound.Addr), uint16(bound.Port)).String(), nil
}

func listenAt(address unix.Sockaddr, reuse bool) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if reuse {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	if err == nil {
		err = unix.Bind(fd, address)
	}
	if err == nil {
		err = unix.Listen(fd, 4096)
	}
	return fd, err
}

// startFronts serves each socket with a front. Together they have as many loops as there are answerers.
func startFronts(sockets []int, answerers []*answerer) (stop func() error, err error) {
	var fronts []*front.Front
	var open gate
	next := 0
	for _, socket := range sockets {
		f, err := front.Open(front.Config{
			Socket: socket, Loops: len(answerers) / len(sockets), RequestBytes: requestBytes, Gate: &open,
			Answerer:     func() front.Answerer { next++; return answerers[next-1] },
			FirstTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		})
		if err != nil {
			return nil, err
		}
		fronts = append(fronts, f)
	}
	var handed sync.WaitGroup
	for _, f := range fronts {
		handed.Go(func() {
			for conn, err := f.Accept(); err != io.EOF; conn, err = f.Accept() {
				if err == nil {
					conn.Close() // the client counts an error
				}
			}
		})
	}
	return func() error {
		var err error
		for _, f := range fronts {
			err = errors.Join(err, f.StopAccepting(false))
			f.End()
		}
		handed.Wait()
		return err
	}, nil
}

// startRing serves a socket by io_uring. The socket waits for requests, as that of front.
func startRing(socket int, a *answerer) (stop func() error, err error) {
	for _, option := range []int{unix.TCP_NODELAY, unix.TCP_DEFER_ACCEPT} {
		if err := unix.SetsockoptInt(socket, unix.IPPROTO_TCP, option, 1); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	l := &ringLoop{socket: socket, stop: bell, answerer: a}
	opened, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		err := l.run(opened)
		ended <- errors.Join(err, unix.Close(socket))
	}()
	if err := <-opened; err != nil {
		return nil, errors.Join(err, <-ended, unix.Close(bell))
	}
	return func() error {
		_, err := unix.Write(bell, binary.NativeEndian.AppendUint64(nil, 1))
		return errors.Join(err, <-ended, unix.Close(bell))
	}, nil
}

// gate counts connections.
type gate struct{ open atomic.Int64 }

// Enter implements front.Gate.
func (g *gate) Enter() bool { g.open.Add(1); return true }

// Leave implements front.Gate.
func (g *gate) Leave() { g.open.Add(-1) }

// answerer gives a fixed response with a body of 1.5 kB.
type answerer struct {
	keep, last []byte
	peers      map[netip.AddrPort]int // requests; nil: not counted
}

func newAnswerer(counts bool) *answerer {
	body := strings.Repeat("x", 1500-len(bodyEnd)) + bodyEnd
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nServer: accept\r\nDate: Fri, 01 Jan 2027 00:00:00 GMT\r\nContent-Type: text/plain; "+
		"charset=utf-8\r\nContent-Length: %d\r\nCache-Control: no-cache\r\n", len(body))
	a := &answerer{keep: []byte(head + "\r\n" + body), last: []byte(head + "Connection: close\r\n\r\n" + body)}
	if counts {
		a.peers = map[netip.AddrPort]int{}
	}
	return a
}

// Repeat implements front.Answerer.
func (*answerer) Repeat(dst, _ []byte) ([]byte, bool, bool) { return dst, false, false }

// Answer implements front.Answerer.
func (a *answerer) Answer(dst, request []byte, peer netip.AddrPort) (response []byte, keep, ok bool) {
	if a.peers != nil {
		a.peers[peer]++
	}
	if bytes.Contains(request, []byte("\r\nConnection: close\r\n")) {
		return append(dst, a.last...), false, true
	}
	return append(dst, a.keep...), true, true
}

// summarize tells what each loop did, after they have ended.
func summarize(answerers []*answerer) loads {
	l := loads{Connections: make([]int, len(answerers)), Requests: make([]int, len(answerers))}
	best := map[netip.AddrPort][]int{} // requests by loop
	for i, a := range answerers {
		for peer, n := range a.peers {
			if best[peer] == nil {
				best[peer] = make([]int, len(answerers))
			}
			best[peer][i] = n
			l.Requests[i] += n
		}
	}
	for _, byLoop := range best {
		l.Connections[slices.Index(byLoop, slices.Max(byLoop))]++
	}
	return l
}
