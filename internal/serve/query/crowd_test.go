package query

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/queue"
)

// batching is a source that takes a millisecond for a statement, and longer if slow says so for an argument. A statement with the
// argument bad fails.
type batching struct {
	slow func(arg string) time.Duration
	bad  string

	mu      sync.Mutex
	batches [][]string
	alone   []string
}

var errBad = errors.New("bad")

func (b *batching) Batches() bool { return true }

func (b *batching) Read(ctx context.Context, r feed.Range, rows *feed.Rows) error {
	b.mu.Lock()
	b.alone = append(b.alone, r.Args[0])
	b.mu.Unlock()
	return b.run(ctx, [][]string{r.Args}, []*feed.Rows{rows})
}

func (b *batching) ReadBatch(ctx context.Context, args [][]string, rows []feed.Rows) error {
	var names []string
	var into []*feed.Rows
	for i := range args {
		names, into = append(names, args[i][0]), append(into, &rows[i])
	}
	b.mu.Lock()
	b.batches = append(b.batches, names)
	b.mu.Unlock()
	return b.run(ctx, args, into)
}

func (b *batching) run(ctx context.Context, args [][]string, rows []*feed.Rows) error {
	takes := time.Millisecond
	for _, a := range args {
		if b.slow != nil {
			takes = max(takes, b.slow(a[0]))
		}
	}
	if queue.Sleep(ctx, takes); ctx.Err() != nil {
		return ctx.Err()
	}
	for i, a := range args {
		if a[0] == b.bad {
			return errBad
		}
		rows[i].Begin()
		rows[i].Data = append(rows[i].Data, `{"n":`+a[0]+`}`...)
		if err := rows[i].EndUnkeyed(); err != nil {
			return err
		}
	}
	return nil
}

// crowdOf has clients ask for numbers at once, each for one, and returns how long each waited.
func crowdOf(t *testing.T, q *Query, first, n int, bad string) map[string]time.Duration {
	t.Helper()
	var mu sync.Mutex
	took := map[string]time.Duration{}
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			arg := strconv.Itoa(first + i)
			begin := time.Now()
			a, _, err := q.Ask(t.Context(), begin, []string{arg})
			switch {
			case arg == bad && !errors.Is(err, errBad):
				t.Errorf("%s: %v", arg, err)
			case arg != bad && (err != nil || string(a.Data) != `{"n":`+arg+`}`):
				t.Errorf("%s: %+v, %v", arg, a, err)
			}
			mu.Lock()
			took[arg] = time.Since(begin)
			mu.Unlock()
		})
	}
	group.Wait()
	return took
}

func openCrowd(source feed.Reader) *Query {
	cfg := testConfig()
	cfg.Gate = queue.NewGate(9).Entrance()
	return Open(cfg, source)
}

// TestWaitingRunTogether: executions that find a connection run alone, and the others together, each with its own answer. If one
// of a batch fails, it fails alone, also the next time.
func TestWaitingRunTogether(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "70"} {
		synctest.Test(t, func(t *testing.T) {
			source := &batching{bad: bad}
			q := openCrowd(source)
			defer q.Close()
			crowdOf(t, q, 0, 8, "")
			if n := len(source.alone); n != 8 || len(source.batches) > 0 {
				t.Errorf("%d executions ran alone, and batches %v", n, source.batches)
			}
			crowdOf(t, q, 0, 100, bad)
			if n := len(source.batches); n < 1 || n > 3 {
				t.Errorf("%d batches: %v", n, source.batches)
			}
			stats := q.Stats()
			if stats.Waiting != 0 || (stats.Repeated == 1) != (bad != "") || (stats.Batched == 92) != (bad == "") {
				t.Errorf("%+v", stats)
			}
			<-time.After(failedFor)
			crowdOf(t, q, 50, 100, bad)
			if again := q.Stats(); again.Repeated != stats.Repeated || again.Batched <= stats.Batched {
				t.Errorf("%+v, then %+v", stats, again)
			}
		})
	}
}

// TestSlowOneLeavesOthers: if one execution of a batch is slow, the others run again and are answered soon. It runs alone the
// next time, while others run together.
func TestSlowOneLeavesOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &batching{slow: func(arg string) time.Duration {
			if arg == "550" {
				return time.Second
			}
			return 0
		}}
		q := openCrowd(source)
		defer q.Close()
		for round, most := range []time.Duration{200 * time.Millisecond, 20 * time.Millisecond} {
			took := crowdOf(t, q, 500, 100, "")
			for arg, wait := range took {
				if slow := arg == "550"; slow && wait > 1200*time.Millisecond || !slow && wait > most {
					t.Errorf("round %d: %s took %v", round, arg, wait)
				}
			}
		}
		if stats := q.Stats(); stats.Repeated != 1 {
			t.Errorf("%+v", stats)
		}
	})
}

// TestLeavingBatch: who leaves while a batch runs or waits does not disturb the others. The batch is cancelled when all have left.
func TestLeavingBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &batching{slow: func(string) time.Duration { return 50 * time.Millisecond }}
		q := openCrowd(source)
		defer q.Close()
		leaving, leave := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for i := range 108 {
			group.Go(func() {
				ctx := t.Context()
				if i%2 == 0 || i >= 8 && i < 60 {
					ctx = leaving
				}
				_, _, err := q.Ask(ctx, time.Now(), []string{strconv.Itoa(i)})
				if (ctx == leaving) != errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		<-time.After(20 * time.Millisecond)
		leave()
		group.Wait()
		if stats := q.Stats(); stats.Waiting != 0 || q.crowd.lanes != 0 || len(q.crowd.queue) != 0 {
			t.Errorf("%+v, %d batches run and %d executions wait", stats, q.crowd.lanes, len(q.crowd.queue))
		}
	})
}
