package redis_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/redis"
)

// A replica removes states that another one writes. Waiting users cost Redis nothing.
func TestPopupCache(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	cfg := redis.PopupConfig{Table: newPopupTable()}
	one, two := startPopups(t, server.URL(""), cfg).waitReady(t), startPopups(t, server.URL(""), cfg).waitReady(t)
	user := "user:7 ü" // a colon, as between the parts of a key
	shown := one.answer(t, user, popupDay)
	if answer := two.answer(t, user, popupDay); shown.Token == "" || answer.Reason != popup.WaitShown {
		t.Fatalf("%+v, then %+v", shown, answer)
	}
	// The announcement may arrive during the read; then the next read is cached.
	apptest.Await(t, "cached", func() bool { two.ask(t, user, popupDay); return two.engine.Stats().Cache.Hits > 0 })
	hits, gets, began := two.engine.Stats().Cache.Hits, reads(t, server.Addr()), time.Now()
	for range 1000 {
		if answer := two.answer(t, user, popupDay); answer.Reason != popup.WaitShown {
			t.Fatalf("%+v", answer)
		}
	}
	if s := two.engine.Stats().Cache; s.Hits != hits+1000 || s.States != 1 {
		t.Errorf("%d hits before, then %+v", hits, s)
	}
	// Each replica reads the mark twice a second, and looks ten times for who moves the events. The requests would be 1000 reads.
	now := reads(t, server.Addr())
	if most := 500 + 2*6*int(time.Since(began)/(500*time.Millisecond)); now-gets > most {
		t.Errorf("%d reads in Redis for 1000 requests, want at most %d", now-gets, most)
	}
	if err := one.engine.Click(t.Context(), shown.Token, user, popupDay); err != nil {
		t.Fatal(err)
	}
	if answer := one.answer(t, user, popupDay); answer.Reason != popup.WaitClicked {
		t.Errorf("where it was clicked: %+v", answer)
	}
	apptest.Await(t, "the other knows of the click", func() bool { return two.ask(t, user, popupDay).Reason == popup.WaitClicked })
}

// reads returns how often a key was read from the server.
func reads(t *testing.T, addr string) (calls int) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "INFO commandstats\r\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "cmdstat_get:calls="); ok {
			count, _, _ := strings.Cut(rest, ",")
			if calls, err = strconv.Atoi(count); err != nil {
				t.Fatal(err)
			}
			return calls
		}
	}
	t.Fatal("the server does not say how often GET was called: ", lines.Err())
	return 0
}

// The cache is cleared when the connection ends and when the server is flushed.
func TestPopupCacheLost(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: newPopupTable()}).waitReady(t)
	for _, loss := range []string{"CLIENT KILL TYPE normal SKIPME yes", "FLUSHALL"} {
		user := "user of " + loss
		r.ask(t, user, popupDay)
		apptest.Await(t, "cached", func() bool {
			return r.ask(t, user, popupDay).Reason == popup.WaitShown && r.engine.Stats().Cache.States > 0
		})
		command(t, server.Addr(), loss)
		apptest.Await(t, loss+" is noticed", func() bool { return r.engine.Stats().Cache.States == 0 })
		r.waitReady(t)
	}
}

// A process that stops answers requests that wait for Redis.
func TestPopupStopUnderLoad(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: newPopupTable()}).waitReady(t)
	done := make(chan error, 64)
	for i := range cap(done) {
		go func() {
			for n := 0; ; n++ {
				if _, err := r.Get(t.Context(), popup.Key{User: fmt.Sprint(i, n), Placement: "home"}); err != nil {
					done <- err // it may fail, and must not hang
					return
				}
			}
		}()
	}
	r.stop()
	for range cap(done) {
		apptest.Receive(t, "the end of a call after the stop", done)
	}
}
