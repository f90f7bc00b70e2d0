// Command freshness measures how long after its commit an order shows on page 1.
// One connection inserts orders one by one at random moments, and one HTTP
// connection fetches page 1 without pause. Each order's delay runs from the
// return of its commit to the end of the first answer that holds it. The load
// beside it comes from another program. It deletes the orders at the end.
//
// It prints one JSON document: every delay in seconds, those never seen counted
// apart.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/valyala/fasthttp"
)

const (
	insert = `INSERT INTO orders (users_id, goods_name) VALUES ((SELECT id FROM users LIMIT 1), md5($1::text)) RETURNING id`
	remove = `DELETE FROM orders WHERE id = ANY($1)`
	giveUp = 10 * time.Second // an order that is not seen for this long after the last commit is lost

)

// watch notes when each id was committed and first seen. Safe for concurrent use.
type watch struct {
	mu        sync.Mutex
	committed map[int64]time.Time
	seen      map[int64]time.Time
}

// see notes the ids of an answer that was complete at that time.
func (w *watch) see(ids []int64, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if _, again := w.seen[id]; !again {
			w.seen[id] = at
		}
	}
}

func (w *watch) commit(id int64, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.committed[id] = at
}

// delays returns the delay of each committed order that was seen, and how many were not.
func (w *watch) delays() (seconds []float64, missing int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, at := range w.committed {
		seen, ok := w.seen[id]
		if !ok {
			missing++
			continue
		}
		seconds = append(seconds, seen.Sub(at).Seconds())
	}
	return seconds, missing
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("stop", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	database := flag.String("database", "", "PostgreSQL URL of the freight data")
	address := flag.String("url", "", "URL of page 1")
	orders := flag.Int("orders", 1000, "orders to insert")
	pause := flag.Duration("pause", 60*time.Millisecond, "mean pause between two inserts, uniform from 0 to twice this")
	seed := flag.Uint64("random-seed", 1, "seed of the pauses")
	flag.Parse()

	conn, err := pgx.Connect(ctx, *database)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.Background())

	w := &watch{committed: map[int64]time.Time{}, seen: map[int64]time.Time{}}
	polling, stop := context.WithCancel(ctx)
	polled := make(chan error, 1)
	polls := 0
	go func() {
		var err error
		polls, err = poll(polling, *address, w)
		polled <- err
	}()
	random := rand.New(rand.NewPCG(*seed, 0))
	ids, err := write(ctx, conn, w, *orders, func() time.Duration { return time.Duration(random.Int64N(int64(2**pause) + 1)) })
	if err == nil {
		err = settle(ctx, w)
	}
	stop()
	err = errors.Join(err, <-polled)
	if _, e := conn.Exec(context.Background(), remove, ids); e != nil {
		err = errors.Join(err, fmt.Errorf("delete the orders inserted: %w", e))
	}
	if err != nil {
		return err
	}
	seconds, missing := w.delays()
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"delays_seconds": seconds, "missing": missing, "polls": polls})
}

// write inserts n orders and returns the ids of those committed, also with an error.
func write(ctx context.Context, conn *pgx.Conn, w *watch, n int, pause func() time.Duration) ([]int64, error) {
	var ids []int64
	for i := range n {
		if err := wait(ctx, pause()); err != nil {
			return ids, err
		}
		var id int64
		if err := conn.QueryRow(ctx, insert, fmt.Sprint("freshness ", i)).Scan(&id); err != nil {
			return ids, fmt.Errorf("insert order %d: %w", i, err)
		}
		w.commit(id, time.Now())
		ids = append(ids, id)
	}
	return ids, nil
}

// settle returns when every order was seen, or after giveUp.
func settle(ctx context.Context, w *watch) error {
	for deadline := time.Now().Add(giveUp); time.Now().Before(deadline); {
		if _, missing := w.delays(); missing == 0 {
			return nil
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// poll fetches page 1 on one connection until ctx ends and returns how often.
func poll(ctx context.Context, address string, w *watch) (int, error) {
	client := &fasthttp.Client{MaxConnsPerHost: 1, ReadTimeout: giveUp}
	var request fasthttp.Request
	var response fasthttp.Response
	request.SetRequestURI(address)
	var page struct {
		Data []struct {
			ID int64 `json:"id"`
		} `json:"data"`
	}
	polls := 0
	for ; ctx.Err() == nil; polls++ {
		if err := client.Do(&request, &response); err != nil {
			return polls, fmt.Errorf("fetch page 1: %w", err)
		}
		at := time.Now()
		if code := response.StatusCode(); code != fasthttp.StatusOK {
			return polls, fmt.Errorf("page 1 answered with status %d", code)
		}
		if err := json.Unmarshal(response.Body(), &page); err != nil {
			return polls, fmt.Errorf("read page 1: %w", err)
		}
		ids := make([]int64, len(page.Data))
		for i, order := range page.Data {
			ids[i] = order.ID
		}
		w.see(ids, at)
	}
	return polls, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
