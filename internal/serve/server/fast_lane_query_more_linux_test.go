//go:build linux && !portable

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
	"spillway/internal/serve/token"
)

// TestFastLaneQueryPause: a paused value is not executed in event loops either.
func TestFastLaneQueryPause(t *testing.T) {
	t.Parallel()
	var texts [2]string
	for i, loops := range []int{1, -1} {
		l, h, q := heldLane(t, loops, 100*time.Millisecond)
		q.Pause([]string{"1"}, true)
		texts[i] = l.converse(t, input{[]string{get("/held?a=1")}, false}).text
		if begun, dropped := h.state(); begun+dropped > 0 {
			t.Errorf("loops %d: %d reads, %d dropped", loops, begun, dropped)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("%q\nand without loops\n%q", texts[0], texts[1])
	}
}

// TestFastLaneQueryNobody: an execution that the loop could not end is not begun elsewhere for clients that have left.
func TestFastLaneQueryNobody(t *testing.T) {
	t.Parallel()
	l, h, q := heldLane(t, 1, time.Hour)
	c := l.dialLane(t, 0)
	_, _ = io.WriteString(c, get("/held?a=1"))
	apptest.Await(t, "it waits", func() bool { return q.Stats().Waiting == 1 })
	_ = c.SetLinger(0)
	_ = c.Close()
	apptest.Await(t, "nobody wants it", func() bool {
		unwanted := make(chan bool, 1)
		h.post(func() { unwanted <- h.reads[0].Unwanted })
		return <-unwanted
	})
	h.post(func() { h.reads[0].Done(feed.ErrElsewhere) })
	apptest.Receive(t, "the end of what runs for nobody", h.ended)
}

// TestFastLaneQueryWaiters: the limit of waiting requests holds for those that share an execution.
func TestFastLaneQueryWaiters(t *testing.T) {
	t.Parallel()
	l, h, q := heldLane(t, 1, time.Hour)
	for range 6 {
		_, _ = io.WriteString(l.dialLane(t, 0), get("/held?a=1"))
	}
	apptest.Await(t, "three are refused", func() bool { return q.Stats().Refused == 3 })
	if n := q.Stats().Waiting; n > 3 {
		t.Errorf("%d requests wait; waiters_max is 3", n)
	}
	h.answerAll()
}

// TestFastLaneClaims: event loops verify keys and JWTs, and have claims as arguments. The regular server waits for keys of JWTs.
func TestFastLaneClaims(t *testing.T) {
	secret := []byte("0123456789abcdef0123456789abcdef")
	key, err := token.NewKey("", token.HS256, secret)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewSet(token.SetConfig{
		Fetch:   func(context.Context) ([]byte, error) { return nil, errors.New("down") },
		Timeout: time.Nanosecond, Log: slog.New(slog.DiscardHandler),
	})
	fast, regular := startLanes(t, func(c *Config) {
		c.Tokens, c.ReadKeys = token.NewVerifier(token.Config{Keys: []token.Key{key}, Set: set}), []string{"a"}
		c.Queries[0].Access = Any
		own := openQuery(t, &answers{rows: 2}, func(c *query.Config) {
			c.TTL, c.CacheBytes, c.Params = 0, 0, []param.Param{{Name: "claim.sub", Type: param.Text}}
		})
		c.Queries = append(c.Queries, QueryRoute{Paths: []string{"/own"}, Query: own, Access: Token})
	})
	bearer := func(claims string) string { return "Authorization: Bearer " + signedHS256(secret, claims) + "\r\n" }
	until := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	good := bearer(fmt.Sprintf(`{"sub":"ann","exp":%d}`, until(time.Hour)))
	for text, asked := range map[string]bool{
		get("/own", good):                                                false,
		get("/own?claim.sub=bob", good):                                  false,
		get("/own"):                                                      false,
		get("/own", "Authorization: Bearer a\r\n"):                       false,
		get("/own", good[:len(good)-4]+"\r\n"):                           false,
		get("/own", bearer(`{"sub":"ann","exp":1}`)):                     false,
		get("/own", bearer(fmt.Sprintf(`{"exp":%d}`, until(time.Hour)))): false,
		get("/live?a=1", good):                                           false,
		get("/live?a=1", "Authorization: Bearer a\r\n"):                  false,
		get("/live?a=1", "Authorization: Bearer b\r\n"):                  false,
		get("/live?a=1"):                                                 false,
		get("/own", "Authorization: Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ.e30.AAAA\r\n"): true, // a key that only the set can have
	} {
		agree(t, fast, regular, text)
		before := fast.regular.Load()
		if d := difference(t, fast, regular, input{[]string{text}, true}); d != "" {
			t.Error(d)
		}
		if got := fast.regular.Load() != before; got != asked {
			t.Errorf("%s: the regular server was asked: %v", text, got)
		}
	}
	sameRequests(t, fast, regular)
}

// largeReader reads many rows, and counts how often it is asked to in a loop.
type largeReader struct {
	answers
	begun atomic.Int64
}

// Begin implements feed.LoopReader.
func (l *largeReader) Begin(loop *front.Loop, r *feed.LoopRead) error {
	l.begun.Add(1)
	loop.After(func() { r.Done(l.answers.Read(context.Background(), r.Range, &r.Rows)) })
	return nil
}

// Drop implements feed.LoopReader.
func (*largeReader) Drop(*front.Loop, *feed.LoopRead) bool { return true }

// TestFastLaneLargeAnswers: after a large answer, requests do not wait in loops for a while. Small ones always do.
func TestFastLaneLargeAnswers(t *testing.T) {
	t.Parallel()
	for rows, want := range map[int]int64{1: 200, 5000: 4} {
		r := &largeReader{answers: answers{rows: rows}}
		cfg := query.Config{
			Definition: feed.Definition{Name: "/large", Params: []param.Param{{Name: "a", Type: "text"}}},
			Limit:      feed.Limit{Rows: 10_000, Bytes: 8 << 20}, Timeout: time.Hour, WaitersMax: 3,
		}
		q := query.Open(cfg, r)
		t.Cleanup(q.Close)
		l := startLane(t, 1, func(c *Config) { c.Queries = []QueryRoute{{Paths: []string{"/large"}, Query: q}} })
		for i := range 200 {
			text := l.converse(t, input{[]string{get("/large?a=" + strconv.Itoa(i))}, false}).text
			if !strings.HasPrefix(text, "HTTP/1.1 200 ") {
				t.Fatalf("%.200q", text)
			}
		}
		if got := r.begun.Load(); got != want {
			t.Errorf("of 200 answers of %d rows, %d were read in loops, want %d", rows, got, want)
		}
	}
}
