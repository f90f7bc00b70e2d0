//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/serve/front"
)

// A bucket is a token bucket: rate tokens per second, at most burst of them. It starts full. It is not safe for concurrent use.
type bucket struct {
	rate, burst float64
	tokens      float64
	last        time.Time
}

func newBucket(rate, burst float64) *bucket { return &bucket{rate: rate, burst: burst, tokens: burst} }

// take takes a token if there is one. Times must not decrease.
func (b *bucket) take(now time.Time) bool {
	if !b.last.IsZero() {
		b.tokens = min(b.burst, b.tokens+b.rate*now.Sub(b.last).Seconds())
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// serveBucket answers from one event loop: 200 while tokens last, otherwise 503 at once. The bucket holds the tokens of 20 ms,
// so that the jitter of evenly spaced arrivals costs none, and short loads do not live on a supply.
func serveBucket(ctx context.Context, p plant) error {
	listener, err := listenBacklog(p.listen, 4096)
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.kind, err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.kind, err)
	}
	defer file.Close()
	socket, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(socket, true) // Fd has made it blocking
	}
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.kind, err)
	}
	f, err := front.Open(front.Config{
		Socket: socket, Loops: 1, RequestBytes: 4096, Gate: new(openGate),
		Answerer: func(*front.Loop, func(*front.Later) func()) front.Answerer {
			return &bucketAnswerer{newBucket(p.rate, bucketBurst(p.rate))}
		},
		FirstTimeout: time.Minute, IdleTimeout: time.Hour,
	})
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.kind, err)
	}
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		for conn, err := f.Accept(); err != io.EOF; conn, err = f.Accept() {
			if err == nil {
				conn.Close() // not a plain request; the client counts an error
			}
		}
	}()
	<-ctx.Done()
	err = f.StopAccepting(false)
	f.End(context.WithoutCancel(ctx))
	<-handed
	return errors.Join(err, unix.Close(socket))
}

// bucketBurst is the size of the bucket of a server with a rate.
func bucketBurst(rate float64) float64 { return max(2, rate/50) }

// openGate lets every connection in.
type openGate struct{ open atomic.Int64 }

// Enter implements front.Gate.
func (g *openGate) Enter() bool { g.open.Add(1); return true }

// Leave implements front.Gate.
func (g *openGate) Leave() { g.open.Add(-1) }

// bucketAnswerer answers by a bucket.
type bucketAnswerer struct{ bucket *bucket }

// Repeat implements front.Answerer: every request takes a token.
func (*bucketAnswerer) Repeat(dst, _ []byte, _ netip.AddrPort) ([]byte, bool, bool) {
	return dst, false, false
}

// Answer implements front.Answerer.
func (a *bucketAnswerer) Answer(dst, _ []byte, _ int, _ netip.AddrPort) (response []byte, keep, ok bool, later *front.Later) {
	if a.bucket.take(time.Now()) {
		return append(dst, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"...), true, true, nil
	}
	return append(dst, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nlate\n"...), true, true, nil
}
