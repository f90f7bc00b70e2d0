//go:build linux && !portable

package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

// loopRows are rows that can be read in event loops, unless exactly 7 are asked for. With 6, the database is overloaded.
type loopRows struct{ rows }

// number6 and number7 are the limits of these reads: one more row than the request has asked for.
const (
	number6 = 6 + 1
	number7 = 7 + 1
)

func (s *loopRows) Read(ctx context.Context, r feed.Range, to *feed.Rows) error {
	if r.Limit == number6 {
		return queue.Overtime(time.Minute, time.Second)
	}
	return s.rows.Read(ctx, r, to)
}

// Begin implements feed.LoopReader.
func (s *loopRows) Begin(loop *front.Loop, r *feed.LoopRead) error {
	switch r.Range.Limit {
	case number6:
		return queue.Overtime(time.Minute, time.Second)
	case number7:
		return feed.ErrElsewhere
	}
	loop.After(func() { r.Done(s.fill(r)) })
	return nil
}

// Drop implements feed.LoopReader.
func (*loopRows) Drop(*front.Loop, *feed.LoopRead) bool { return true }

// fill has a read take its rows.
func (s *loopRows) fill(r *feed.LoopRead) error {
	var rows feed.Rows
	if err := s.rows.Read(context.Background(), r.Range, &rows); err != nil {
		return err
	}
	for i := range rows.Len() {
		if err := r.Handler().Row(loopRow{rows.Slice(i, i+1), rows.Keys[i]}); err != nil {
			return err
		}
	}
	return r.End(new(feed.NullKeys))
}

type loopRow struct {
	object []byte
	key    feed.Key
}

func (r loopRow) AppendObject(dst []byte) []byte       { return append(dst, r.object...) }
func (r loopRow) AppendKey(dst []byte) ([]byte, error) { return append(dst, r.key...), nil }

// cursorAfter returns the cursor of the list's row at an offset, of 5000.
func cursorAfter(offset int) string {
	c := listConfig()
	c.Window = 5000
	f := feed.Open(c, &rows{n: 5000})
	defer f.Close()
	p, err := f.Page(context.Background(), time.Now(), feed.Request{Offset: offset, Limit: 1})
	if err != nil {
		panic(err)
	}
	return p.Next
}

// pageRequests are requests for pages beyond the window of lists, which wait in event loops.
func pageRequests() map[string]string {
	all := map[string]string{
		"offset across the end": get("/list?offset=195"),
		"offset at the end":     get("/list?offset=200&limit=3"),
	}
	for _, list := range []string{"/list", "/bare", "/alias/list"} {
		for _, after := range []int{199, 2500, 4989, 4990, 4998} {
			for _, limit := range []int{1, 6, 7, 10, 100} {
				all[fmt.Sprintf("%s after %d, %d", list, after, limit)] = get(fmt.Sprintf("%s?before=%s&limit=%d", list, cursorAfter(after), limit))
			}
		}
	}
	target := "/list?before=" + cursorAfter(300)
	for name, text := range map[string]string{
		"HEAD": strings.Replace(get(target), "GET", "HEAD", 1), "1.0": "GET " + target + " HTTP/1.0\r\nHost: a\r\n\r\n",
		"close": get(target, "Connection: close\r\n"), "gzip": get(target, "Accept-Encoding: gzip\r\n"), "tag *": get(target, "If-None-Match: *\r\n"),
		"fields": get(target + "&fields=id"), "origin": get(target, "Origin: https://app.example\r\n", "X-Request-Id: trace-1\r\n"),
	} {
		all["page, "+name] = text
	}
	return all
}

// TestFastLanePages: pages beyond the window wait in event loops, and are answered like those of the regular server.
func TestFastLanePages(t *testing.T) {
	fast, regular := startLanes(t, nil)
	agree(t, fast, regular, get("/list"))
	agree(t, fast, regular, get("/bare"))
	for name, text := range pageRequests() {
		before := fast.regular.Load()
		if d := difference(t, fast, regular, input{[]string{text}, true}); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if fast.regular.Load() != before {
			t.Errorf("%s: the regular server was asked", name)
		}
	}
	sameRequests(t, fast, regular)
	for _, text := range []string{
		get("/list?before=x"), get("/list?before=" + cursorAfter(300)[1:]), get("/list?offset=1&before=" + cursorAfter(300)), get("/list?offset=3000"),
		get("/list?limit=101&before=" + cursorAfter(300)), get("/list?fields=x&before=" + cursorAfter(300)),
	} {
		agree(t, fast, regular, text)
	}
}

// heldPages is a feed's source whose reads of older pages end when the test says so.
type heldPages struct {
	heldReader
	list loopRows
}

func (h *heldPages) Keys(ctx context.Context, r feed.Range, every int) (feed.Walk, error) {
	return h.list.Keys(ctx, r, every)
}
func (*heldPages) Check(context.Context, int) error { return nil }
func (*heldPages) Columns() []feed.Column           { return nil }

func (h *heldPages) Read(ctx context.Context, r feed.Range, to *feed.Rows) error {
	if r.After != "" {
		select {
		case <-h.release:
		case <-ctx.Done():
			h.ended <- ctx.Err()
			return ctx.Err()
		}
	}
	return h.list.Read(ctx, r, to)
}

// Begin implements feed.LoopReader.
func (h *heldPages) Begin(loop *front.Loop, r *feed.LoopRead) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loop = loop; r.Range.Limit == number7 {
		return feed.ErrElsewhere
	}
	h.reads = append(h.reads, r)
	return nil
}

// answerAll ends all reads.
func (h *heldPages) answerAll() {
	h.post(func() {
		h.mu.Lock()
		reads := h.reads
		h.reads = nil
		h.mu.Unlock()
		for _, r := range reads {
			r.Done(h.list.fill(r))
		}
	})
}

// unwanted waits until nobody wants the first read.
func (h *heldPages) unwanted(t *testing.T) {
	t.Helper()
	apptest.Await(t, "nobody wants it", func() bool {
		unwanted := make(chan bool, 1)
		h.post(func() { unwanted <- h.reads[0].Unwanted })
		return <-unwanted
	})
}

// pagesLane is a lane with a feed at /held, whose window is read.
func pagesLane(t *testing.T, loops int, change func(*feed.Config)) (*lane, *heldPages, *feed.Feed) {
	t.Helper()
	h := &heldPages{heldReader: heldReader{release: make(chan struct{}), ended: make(chan error, 10)}, list: loopRows{rows{n: 5000}}}
	cfg := listConfig()
	cfg.WaitersMax = 3
	if change != nil {
		change(&cfg)
	}
	f := feed.Open(cfg, h)
	t.Cleanup(f.Close)
	l := startLane(t, loops, func(c *Config) { c.Feeds = []FeedRoute{{Paths: []string{"/held"}, Feed: f}} })
	apptest.Await(t, "the window is read", func() bool { // a busy machine needs longer than the feed's timeout
		return strings.HasPrefix(l.converse(t, input{[]string{get("/held?a=1")}, false}).text, "HTTP/1.1 200 ")
	})
	return l, h, f
}

// heldPage asks for a page of the lane.
func heldPage(after, limit int) string {
	return get(fmt.Sprintf("/held?a=1&before=%s&limit=%d", cursorAfter(after), limit))
}

// TestFastLanePageLimit: a request for a page is answered when it has waited for the feed's timeout, in a loop and elsewhere.
func TestFastLanePageLimit(t *testing.T) {
	t.Parallel()
	var texts [2]string
	for i, loops := range []int{1, -1} {
		l, h, f := pagesLane(t, loops, func(c *feed.Config) { c.Timeout = 20 * time.Millisecond })
		before := f.Stats().Refused
		for range 3 {
			texts[i] += l.converse(t, input{[]string{heldPage(300, 2), heldPage(300, 7)}, false}).text
		}
		if _, dropped := h.state(); loops > 0 && dropped != 3 {
			t.Errorf("%d reads were dropped", dropped)
		}
		apptest.AwaitState(t, "all were refused", func() (string, bool) {
			s := f.Stats()
			return fmt.Sprintf("%+v", s), s.Refused == before+6 && s.Waiting == 0 && s.DatabasePages == 0
		})
	}
	if texts[0] != texts[1] || strings.Count(texts[0], "HTTP/1.1 503 ") != 6 {
		t.Errorf("%q\nand without loops\n%q", texts[0], texts[1])
	}
}

// TestFastLanePageShares: requests for the same page share a read, too many are refused, and a stop waits for those that wait.
func TestFastLanePageShares(t *testing.T) {
	t.Parallel()
	l, h, f := pagesLane(t, 1, nil)
	var clients []net.Conn
	for i, after := range []int{300, 300, 400} {
		c := l.dialLane(t, 0)
		_, _ = io.WriteString(c, heldPage(after, 2))
		clients = append(clients, c)
		apptest.Await(t, "so many requests wait", func() bool { return f.Stats().Waiting == i+1 })
	}
	if text := l.converse(t, input{[]string{heldPage(300, 2)}, false}).text; !strings.HasPrefix(text, "HTTP/1.1 503 ") {
		t.Errorf("one too many: %q", text)
	}
	if begun, _ := h.state(); begun != 2 || f.Stats().Coalesced != 1 || f.Stats().Refused != 1 {
		t.Errorf("%d reads, %+v", begun, f.Stats())
	}
	l.stopNow()
	apptest.Await(t, "it drains", l.Draining)
	h.answerAll()
	for i, id := range []int{4699, 4699, 4599} {
		text := readAll(t, clients[i])
		if !strings.Contains(text, fmt.Sprintf(`{"data":[{"id":%d},{"id":%d}],"next":"`, id, id-1)) || !strings.Contains(text, "Connection: close") {
			t.Errorf("%d: %q", i, text)
		}
	}
	if s := f.Stats(); s.Waiting != 0 || s.DatabasePages != 3 {
		t.Errorf("%+v", s)
	}
}

// TestFastLanePageClientLeaves: a page whose clients have left is not wanted any more, and a read outside of the loop ends.
func TestFastLanePageClientLeaves(t *testing.T) {
	t.Parallel()
	l, h, f := pagesLane(t, 1, nil)
	wait := func(n int) {
		t.Helper()
		apptest.Await(t, "so many requests wait", func() bool { return f.Stats().Waiting == n })
	}
	var clients []*net.TCPConn
	for i, limit := range []int{2, 2, 7} {
		c := l.dialLane(t, 0)
		_, _ = io.WriteString(c, heldPage(300, limit))
		clients = append(clients, c)
		wait(i + 1)
	}
	for _, c := range clients {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	if err := apptest.Receive(t, "the end of the read elsewhere", h.ended); err == nil {
		t.Error("it was not cancelled")
	}
	h.unwanted(t)
	wait(0)
	h.post(func() { h.reads[0].Done(feed.ErrElsewhere); h.reads = nil })
	apptest.Receive(t, "the end of what runs for nobody", h.ended)
	c := l.dialLane(t, 0)
	_, _ = io.WriteString(c, strings.Replace(heldPage(300, 2), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
	wait(1)
	h.answerAll()
	if text := readAll(t, c); !strings.Contains(text, `{"id":4699}`) {
		t.Errorf("%q", text)
	}
}

// TestFastLanePagePause: the pages of a paused value are not read in event loops either.
func TestFastLanePagePause(t *testing.T) {
	t.Parallel()
	var texts [2]string
	for i, loops := range []int{1, -1} {
		l, h, f := pagesLane(t, loops, nil)
		f.Pause(nil, true)
		texts[i] = l.converse(t, input{[]string{heldPage(300, 2)}, false}).text
		if begun, dropped := h.state(); begun+dropped > 0 {
			t.Errorf("loops %d: %d reads, %d dropped", loops, begun, dropped)
		}
	}
	if texts[0] != texts[1] || !strings.HasPrefix(texts[0], "HTTP/1.1 503 ") {
		t.Errorf("%q\nand without loops\n%q", texts[0], texts[1])
	}
}

// TestFastLanePageTurns: of one value, no more statements run at once than may, in loops and elsewhere together.
func TestFastLanePageTurns(t *testing.T) {
	t.Parallel()
	l, h, f := pagesLane(t, 1, func(c *feed.Config) {
		c.Params, c.ValueCalls = []param.Param{{Name: "a", Type: param.Text}}, 1
	})
	var clients []net.Conn
	for i, after := range []int{300, 400} {
		c := l.dialLane(t, 0)
		_, _ = io.WriteString(c, strings.Replace(heldPage(after, 2), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
		clients = append(clients, c)
		apptest.Await(t, "so many requests wait", func() bool { return f.Stats().Waiting == i+1 })
	}
	select {
	case h.release <- struct{}{}:
		t.Error("two reads of one value at once")
	default:
	}
	h.answerAll()
	if text := readAll(t, clients[0]); !strings.Contains(text, `{"id":4699}`) {
		t.Errorf("%q", text)
	}
	close(h.release) // the other one runs elsewhere
	if text := readAll(t, clients[1]); !strings.Contains(text, `{"id":4599}`) {
		t.Errorf("%q", text)
	}
	if begun, _ := h.state(); begun != 0 || f.Stats().Waiting != 0 || f.Stats().DatabasePages != 2 {
		t.Errorf("%d reads, %+v", begun, f.Stats())
	}
}

// TestFastLanePageWithoutWindow: the older pages of a value without a window wait in event loops too.
func TestFastLanePageWithoutWindow(t *testing.T) {
	t.Parallel()
	l, h, f := pagesLane(t, 1, func(c *feed.Config) {
		c.Params, c.WindowsMax = []param.Param{{Name: "a", Type: param.Text}}, 1
	})
	c := l.dialLane(t, 0)
	_, _ = io.WriteString(c, strings.Replace(heldPage(300, 2), "a=1", "a=2", 1))
	apptest.Await(t, "a read has begun", func() bool { begun, _ := h.state(); return begun == 1 })
	h.mu.Lock()
	args := h.reads[0].Args
	h.mu.Unlock()
	if s := f.Stats(); args[0] != "2" || s.Waiting != 1 || s.Windows != 1 {
		t.Errorf("%q, %+v", args, s)
	}
	_ = c.CloseWrite()
	h.answerAll()
	if text := readAll(t, c); !strings.Contains(text, `{"id":4699}`) {
		t.Errorf("%q", text)
	}
}
