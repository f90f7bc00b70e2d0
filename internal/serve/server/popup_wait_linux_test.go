//go:build linux && !portable

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

// eventSpool is a popup.Spool that answers each entry with fails, when held is closed. If it refuses, it takes none.
type eventSpool struct {
	popup.Spool
	refuses, fails error
	held           chan struct{}
	began          chan struct{} // gets one for each entry that was taken
	answering      sync.WaitGroup
}

func newEventSpool(t *testing.T) *eventSpool {
	s := &eventSpool{held: make(chan struct{}), began: make(chan struct{}, 100)}
	t.Cleanup(s.answering.Wait)
	return s
}

// eventWait is an entry of an eventSpool.
type eventWait struct{ queue.Ticket }

func (w *eventWait) Appended(ctx context.Context) (bool, error) { return false, w.Wait(ctx) }

func (s *eventSpool) Begin(_ context.Context, _ string, _ queue.Entry, ready func() (wake func())) (queue.Appending, error) {
	if s.refuses != nil {
		return nil, s.refuses
	}
	w := &eventWait{}
	w.Open(ready, false)
	s.answering.Go(func() {
		<-s.held
		queue.Wake(w.Answer(s.fails, nil))
	})
	s.began <- struct{}{}
	return w, nil
}

// popupLanes starts two lanes whose popups are recorded in spools.
func popupLane(t *testing.T, loops int, spool *eventSpool, change func(*popup.Config)) *lane {
	t.Helper()
	now := time.Unix(1_700_000_000, 0).UTC()
	campaign, held := popupCampaign(1), popupCampaign(2)
	campaign.Variants = []popup.Variant{{Name: "big", Weight: 1, Payload: []byte(`{"text":"HELLO"}`)}}
	campaign.Target, held.Holdout = `country != "CN"`, 99.999999
	return startLane(t, loops, func(c *Config) {
		cfg := popup.Config{
			Store: popup.NewMemory(1000, popup.NewEventLog(spool, nil, time.Hour)), Now: func() time.Time { return now }, ConvertTTL: time.Hour,
		}
		if change != nil {
			change(&cfg)
		}
		route := popupRouteOf(t, cfg, campaign, held)
		c.Popup = &route
	})
}

// TestFastLanePopups: a popup that is due waits in its event loop, and is answered like by the regular server.
func TestFastLanePopups(t *testing.T) {
	full := &queue.Overload{Limit: queue.LimitSpool, RetryAfter: time.Second}
	for name, c := range map[string]struct {
		refuses, fails error
		change         func(*popup.Config)
		elsewhere      bool
		want           string
	}{
		"recorded":            {want: `{"campaign":1,"variant":"big","payload":{"text":"HELLO"},"show":"`},
		"spool full":          {refuses: full, want: "503"},
		"disk full":           {fails: full, want: "503"},
		"unknown":             {fails: queue.ErrUnknown, want: "503"},
		"closed":              {refuses: queue.ErrClosed, want: "503"},
		"full, shown anyway":  {refuses: full, change: func(c *popup.Config) { c.ShowAnyway = true }, want: `{"campaign":1,"variant":"big","payload":{"text":"HELLO"}}`},
		"fails, shown anyway": {fails: errors.New("x"), change: func(c *popup.Config) { c.ShowAnyway = true }, want: `{"campaign":1,"variant":"big","payload":{"text":"HELLO"}}`},
		"limited": {change: func(c *popup.Config) {
			c.Limits, c.Placements = []popup.Limit{{Within: time.Hour, Shows: 1}}, []string{"home", "checkout"}
		}, want: `"show":"`},
		"user's row": {change: func(c *popup.Config) {
			c.UserRow = func(context.Context, string) ([]byte, error) { return []byte(`{"country":"FR"}`), nil }
		}, elsewhere: true, want: `"show":"`},
	} {
		t.Run(name, func(t *testing.T) {
			var lanes [2]*lane
			for i, loops := range []int{1, -1} {
				spool := newEventSpool(t)
				spool.refuses, spool.fails = c.refuses, c.fails
				close(spool.held)
				lanes[i] = popupLane(t, loops, spool, c.change)
			}
			fast, regular := lanes[0], lanes[1]
			for i, text := range []string{
				get("/popup?user=7"), get("/popup?user=7"), get("/popup?user=8&country=FR", "Connection: close\r\n"), get("/popup?user=9&country=CN"),
				get("/popup?user=7&placement=home"), get("/popup?user=10") + get("/popup?user=11"), "GET /popup?user=12 HTTP/1.0\r\nHost: a\r\n\r\n",
				get("/popup?user=13", "X-Request-Id: trace-1\r\n", "Origin: https://app.example\r\n"), get("/popup?user=14&age=x"), get("/popup?user=14"),
			} {
				in := input{[]string{text}, true}
				if d := difference(t, fast, regular, in); d != "" {
					t.Error(d)
				}
				if n := fast.regular.Load(); i == 4 && (n > 0) != c.elsewhere {
					t.Errorf("the regular server was asked %d times", n)
				}
			}
			if text := fast.converse(t, input{[]string{get("/popup?user=20")}, true}).text; !strings.Contains(text, c.want) {
				t.Errorf("%s, want %s", text, c.want)
			}
			agree(t, fast, regular, get("/popup?user=14"), get("/popup?user=15"), get("/list"), get("/popup?user=15"))
			regular.converse(t, input{[]string{get("/popup?user=20")}, true})
			sameRequests(t, fast, regular)
		})
	}
}

// TestFastLanePopupLeaves: a popup counts as shown although its client has left, and a stop waits for one that is being recorded.
func TestFastLanePopupLeaves(t *testing.T) {
	t.Parallel()
	spool := newEventSpool(t)
	l := popupLane(t, 1, spool, nil)
	gone, stays := l.dialLane(t, 0), l.dialLane(t, 0)
	_, _ = io.WriteString(gone, get("/popup?user=1"))
	apptest.Receive(t, "the event", spool.began)
	_ = gone.SetLinger(0)
	_ = gone.Close()
	apptest.Await(t, "the connection is closed", func() bool { return l.listener.Load().open.Load() == 1 })
	if text := l.converse(t, input{[]string{get("/popup?user=1", "Connection: close\r\n")}, true}).text; !strings.Contains(text, "wait-shown") {
		t.Errorf("asked again: %s", text)
	}
	_, _ = io.WriteString(stays, get("/popup?user=2"))
	apptest.Receive(t, "the event", spool.began)
	l.stopNow()
	apptest.Await(t, "it drains", l.Draining)
	close(spool.held)
	if text := readAll(t, stays); !strings.Contains(text, `"show":"`) || l.regular.Load() > 0 {
		t.Errorf("%q, and %d requests were answered elsewhere", text, l.regular.Load())
	}
}

// TestFastLanePopupLimit: an event that is not on the disk in time is not shown, and the user is asked for again.
func TestFastLanePopupLimit(t *testing.T) {
	t.Parallel()
	var texts [2]string
	for i, loops := range []int{1, -1} {
		spool := newEventSpool(t)
		l := popupLane(t, loops, spool, func(c *popup.Config) {
			c.Store = popup.NewMemory(9, popup.NewEventLog(spool, nil, 20*time.Millisecond))
			c.Log = slog.New(slog.DiscardHandler)
		})
		for _, user := range []string{"1", "1", "2"} {
			texts[i] += l.converse(t, input{[]string{get("/popup?user=" + user)}, true}).text
		}
		close(spool.held)
		texts[i] += l.converse(t, input{[]string{get("/popup?user=1")}, true}).text
	}
	if texts[0] != texts[1] || strings.Count(texts[0], "HTTP/1.1 503 ") != 3 || !strings.Contains(texts[0], `"show":"`) {
		t.Errorf("%q, and without loops %q", texts[0], texts[1])
	}
}

// TestFastLanePopupOnce: of many requests of one user at once, one is shown the popup.
func TestFastLanePopupOnce(t *testing.T) {
	t.Parallel()
	spool := newEventSpool(t)
	close(spool.held)
	l := popupLane(t, 2, spool, nil)
	for user := range 20 {
		texts := make([]string, 8)
		var asking sync.WaitGroup
		for i := range texts {
			asking.Go(func() {
				texts[i] = l.converse(t, input{[]string{get(fmt.Sprintf("/popup?user=u%d", user))}, true}).text
			})
		}
		asking.Wait()
		all := strings.Join(texts, "")
		if n := strings.Count(all, `"show":"`); n != 1 || strings.Count(all, "wait-shown") != len(texts)-1 {
			t.Errorf("user %d: %d shows: %s", user, n, all)
		}
	}
}

// TestFastLanePopupReturns: a connection that has left the lane returns although its popups are due, because they can wait there.
func TestFastLanePopupReturns(t *testing.T) {
	t.Parallel()
	spool := newEventSpool(t)
	close(spool.held)
	l := popupLane(t, 1, spool, nil)
	texts := []string{get("/probe/database")}
	for user := range laneStreak + 10 {
		texts = append(texts, get(fmt.Sprintf("/popup?user=%d", user)))
	}
	if text := l.converse(t, input{texts, true}).text; strings.Count(text, `"show":"`) != laneStreak+10 {
		t.Errorf("%s", text)
	}
	if n := l.regular.Load(); n > laneStreak+1 {
		t.Errorf("the regular server was asked %d times", n)
	}
}
