//go:build linux && !portable

package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
)

// batchedAnswers is answers whose executions run together. Those of bad arguments fail, and those of the argument "block" last until
// block is closed.
type batchedAnswers struct {
	answers
	block chan struct{}
}

func (*batchedAnswers) Batches() bool { return true }

func (a *batchedAnswers) Read(ctx context.Context, r feed.Range, to *feed.Rows) error {
	switch r.Args[0] {
	case "bad":
		return fmt.Errorf("read: %w", feed.ErrTooLarge)
	case "block":
		select {
		case <-a.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return a.answers.Read(ctx, r, to)
}

func (a *batchedAnswers) ReadBatch(ctx context.Context, args [][]string, rows []feed.Rows) error {
	for i := range args {
		if err := a.Read(ctx, feed.Range{Args: args[i]}, &rows[i]); err != nil {
			return err
		}
	}
	return nil
}

// TestFastLaneQueries: while there are many connections, queries that run together wait in event loops, and are answered like those
// of the regular server. A client that leaves cancels its execution.
func TestFastLaneQueries(t *testing.T) {
	source := &batchedAnswers{answers: answers{rows: 3}, block: make(chan struct{})}
	fresh := openQuery(t, source, func(c *query.Config) { c.TTL, c.WaitersMax = 0, 1000 })
	fast, regular := startLanes(t, func(c *Config) {
		c.Queries = append(c.Queries, QueryRoute{Paths: []string{"/fresh"}, Query: fresh, Columns: feed.Columns{"id", "of"}})
	})
	for range crowdLeast {
		c, err := net.Dial("tcp", fast.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	apptest.Await(t, "all connections are open", func() bool { return fast.crowded() })
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	defer client.CloseIdleConnections()
	ask := func(l *lane, target string) string {
		response, err := client.Get("http://" + l.address + target)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		for _, name := range []string{"Date", "Age", "X-Request-Id", "Retry-After"} {
			response.Header.Del(name)
		}
		return l.comparable(fmt.Sprint(response.Status, response.Header, string(body), err))
	}
	var clients sync.WaitGroup
	for i := range 100 {
		clients.Go(func() {
			target := fmt.Sprintf("/fresh?a=%d", i)
			switch i % 10 {
			case 7:
				target = "/fresh?a=bad"
			case 8:
				target += "&fields=of"
			}
			if got, want := ask(fast, target), ask(regular, target); got != want {
				t.Errorf("%s: %s\nwant %s", target, got, want)
			}
		})
	}
	clients.Wait()
	if n := fast.regular.Load(); n > 0 {
		t.Errorf("the regular server was asked %d times", n)
	}
	if got, want := ask(fast, "/fresh"), ask(regular, "/fresh"); got != want {
		t.Errorf("without its parameter: %s\nwant %s", got, want)
	}

	client.CloseIdleConnections() // some are the regular server's
	ctx, leave := context.WithCancel(t.Context())
	clients.Go(func() {
		if _, err := apptest.TryFetch(ctx, client, "http://"+fast.address+"/fresh?a=block"); err == nil {
			t.Error("a client that left has an answer")
		}
	})
	apptest.Await(t, "a request waits", func() bool { return fresh.Stats().Waiting == 1 })
	leave()
	apptest.Await(t, "its execution is cancelled", func() bool { return fresh.Stats().Waiting == 0 })
	clients.Wait()
}
