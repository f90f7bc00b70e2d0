//go:build !portable

package front

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// waiting returns the next request that waits.
func (r *rig) waiting(t *testing.T) *waiter {
	t.Helper()
	return apptest.Receive(t, "a request that waits", r.waiters)
}

// post sends a request that waits.
func (c *client) post(body string) {
	c.t.Helper()
	c.send(waitRequest(len(body)) + body)
}

// TestAnswersComeLater: connections whose requests wait stay with their loop, in any order of the answers.
func TestAnswersComeLater(t *testing.T) {
	t.Parallel()
	r := open(t, 2, nil)
	var clients []*client
	waiters := make(map[string]*waiter)
	for i := range 20 {
		clients = append(clients, r.dial(t))
		clients[i].post(fmt.Sprint("body ", i))
		w := r.waiting(t)
		waiters[w.body] = w
	}
	for i := 19; i >= 0; i-- {
		waiters[fmt.Sprint("body ", i)].answer()
	}
	for i, c := range clients {
		if got := c.receive(); got != fmt.Sprint("body ", i) {
			t.Errorf("connection %d: %q", i, got)
		}
		c.post("again")
		r.waiting(t).answer()
		if got := c.receive(); got != "again" {
			t.Errorf("connection %d, the second time: %q", i, got)
		}
	}
	if len(r.given) > 0 {
		t.Error("a connection was handed over")
	}
}

// TestRequestsBehindOneThatWaits: they are answered after it, in their order, however they arrive.
func TestRequestsBehindOneThatWaits(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	c := r.dial(t)
	c.post("first")
	w := r.waiting(t)
	c.send(keepRequest)
	other := r.dial(t)
	other.ask(keepRequest) // the loop has seen the other request
	c.send(keepRequest[:9])
	other.ask(keepRequest)
	w.answer()
	if got := c.receive(); got != "first" {
		t.Errorf("first %q", got)
	}
	handed := r.take(t) // the second comes with a part of the third
	if got := string(handed.Handed.Read); got != keepRequest+keepRequest[:9] {
		t.Errorf("handed over with %q", got)
	}
	handed.leaveGate(r)

	c = r.dial(t)
	c.post("first")
	w = r.waiting(t)
	c.post("second")
	other.ask(keepRequest)
	if len(r.waiters) > 0 {
		t.Error("two requests of a connection wait")
	}
	w.answer()
	r.waiting(t).answer()
	if a, b := c.receive(), c.receive(); a != "first" || b != "second" {
		t.Errorf("%q, then %q", a, b)
	}
}

// leaveGate closes a connection that was handed over.
func (c *Conn) leaveGate(r *rig) {
	_ = c.Close()
	r.gate.Leave()
}

// TestBodyInPieces: a body may come in pieces. What follows it is the next request.
func TestBodyInPieces(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	other := r.dial(t)
	for size := range 12 {
		c := r.dial(t)
		text := waitRequest(size) + strings.Repeat("x", size)
		for _, piece := range []string{text[:len(text)-size], text[len(text)-size : len(text)-size/2], text[len(text)-size/2:]} {
			c.send(piece)
			other.ask(keepRequest)
		}
		w := r.waiting(t)
		w.answer()
		if got := c.receive(); got != strings.Repeat("x", size) {
			t.Errorf("size %d: %q", size, got)
		}
		if got := c.ask(keepRequest); got != c.LocalAddr().String() {
			t.Errorf("the next request: %q", got)
		}
	}
	c := r.dial(t)
	c.send("P")
	r.take(t).leaveGate(r) // an incomplete head
	if len(r.given) > 0 {
		t.Error("more connections were handed over")
	}
}

// TestBodiesForOthers: a body that a loop does not wait for, and a request with another one behind it, are handed over as they came.
func TestBodiesForOthers(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	for _, text := range []string{
		waitRequest(1001), waitRequest(5000) + "x", waitRequest(3) + "abc" + keepRequest, waitRequest(3) + "abc" + waitRequest(3) + "abc",
		"POST /other HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
		"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
	} {
		c := r.dial(t)
		c.send(text)
		handed := r.take(t)
		if got := string(handed.Handed.Read); got != text {
			t.Errorf("%q was handed over as %q", text, got)
		}
		handed.leaveGate(r)
	}
	if len(r.waiters) > 0 {
		t.Error("a request waits")
	}
}

// TestSlowBody: a body that does not come in time is handed over, and so is one whose client ends.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	r := open(t, 1, func(c *Config, _ *fakeGate) { c.FirstTimeout = 50 * time.Millisecond })
	begin := waitRequest(10) + "12345"
	c := r.dial(t)
	c.send(begin)
	handed := r.take(t)
	if got := string(handed.Handed.Read); got != begin || !handed.Handed.Expired {
		t.Errorf("handed over with %q, expired %v", got, handed.Handed.Expired)
	}
	handed.leaveGate(r)

	patient := open(t, 1, nil)
	c = patient.dial(t)
	c.send(begin)
	patient.dial(t).ask(keepRequest)
	_ = c.CloseWrite()
	handed = patient.take(t)
	if got := string(handed.Handed.Read); got != begin || handed.Handed.Expired {
		t.Errorf("ended: handed over with %q, expired %v", got, handed.Handed.Expired)
	}
	handed.leaveGate(patient)
}

// TestClientLeavesWhileItWaits: the answerer is told. A client that has closed its sending half gets its answer.
func TestClientLeavesWhileItWaits(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	half := r.dial(t)
	half.post("half")
	w := r.waiting(t)
	_ = half.CloseWrite()
	apptest.Receive(t, "that it has left", w.left)
	w.answer()
	if got := half.receive(); got != "half" {
		t.Errorf("%q", got)
	}
	half.wantEnd()

	gone := r.dial(t)
	gone.post("gone")
	w = r.waiting(t)
	_ = gone.SetLinger(0)
	_ = gone.Close()
	apptest.Receive(t, "that it has left", w.left)
	r.wantOpen(t, 0)
	other := r.dial(t) // may have the same descriptor
	other.post("other")
	next := r.waiting(t)
	w.answer()
	if over := apptest.Receive(t, "its answer", w.ended); over {
		t.Error("the limit counts as over")
	}
	next.answer()
	if got := other.receive(); got != "other" {
		t.Errorf("%q", got)
	}
}

// TestLimitOfWaiting: a request is answered when its limit is over. What becomes known later is dropped.
func TestLimitOfWaiting(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	r.limit.Store(int64(20 * time.Millisecond))
	c := r.dial(t)
	c.post("late")
	w := r.waiting(t)
	if got := c.receive(); got != "late" || !<-w.ended {
		t.Errorf("%q", got)
	}
	r.limit.Store(int64(time.Hour))
	c.post("next")
	next := r.waiting(t)
	w.answer()
	next.answer()
	if got := c.receive(); got != "next" || <-next.ended || len(w.ended) > 0 {
		t.Errorf("the next one: %q", got)
	}
}

// TestEndWhileRequestsWait: the end waits for their answers, but not for longer than its context.
func TestEndWhileRequestsWait(t *testing.T) {
	t.Parallel()
	for _, patient := range []bool{true, false} {
		r := open(t, 2, nil)
		idle, begun, waits := r.dial(t), r.dial(t), r.dial(t)
		idle.ask(keepRequest)
		begun.send(waitRequest(5) + "12")
		waits.post("waits")
		w := r.waiting(t)
		idle.ask(keepRequest)
		if err := r.StopAccepting(false); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.End(ctx)
		}()
		idle.wantEnd()
		handed := r.take(t)
		if got := string(handed.Handed.Read); got != waitRequest(5)+"12" {
			t.Errorf("handed over with %q", got)
		}
		handed.leaveGate(r)
		if patient {
			w.answer()
			if got := waits.receive(); got != "waits" {
				t.Errorf("%q", got)
			}
		} else {
			cancel()
		}
		waits.wantEnd()
		apptest.Receive(t, "the end", ended)
		cancel()
		w.answer()
		r.stop = func() {}
	}
}

// TestWaitingRequestsAreNotStarved: an answer is sent although other connections always have requests.
func TestWaitingRequestsAreNotStarved(t *testing.T) {
	t.Parallel()
	r := open(t, 1, nil)
	done := make(chan struct{})
	var busy sync.WaitGroup
	for range 4 {
		c := r.dial(t)
		busy.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					c.ask(keepRequest)
				}
			}
		})
	}
	c := r.dial(t)
	for range 20 {
		c.post("waits")
		r.waiting(t).answer()
		c.receive()
	}
	close(done)
	busy.Wait()
}

// TestAnswersReachTheirClients: while connections end and others take their descriptors, each client gets its own answers.
func TestAnswersReachTheirClients(t *testing.T) {
	t.Parallel()
	r := open(t, 2, nil)
	stop := make(chan struct{})
	var answering, clients sync.WaitGroup
	answering.Go(func() {
		for {
			select {
			case w := <-r.waiters:
				answering.Go(w.answer)
			case <-stop:
				return
			}
		}
	})
	for i := range 8 {
		clients.Go(func() {
			for n := range 60 {
				c := r.dial(t)
				for m := range 3 {
					body := fmt.Sprintf("%d %d %d", i, n, m)
					c.post(body)
					if (i+n+m)%4 == 0 {
						break
					}
					if got := c.receive(); got != body {
						t.Errorf("%q instead of %q", got, body)
					}
				}
				_ = c.SetLinger(n%2 - 1)
				_ = c.Close()
			}
		})
	}
	clients.Wait()
	r.wantOpen(t, 0)
	close(stop)
	answering.Wait()
}
