package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// crashRounds is how many rounds TestCrash takes; make crash asks for 100.
const crashRounds = 4

// crasher is clients, one a lane, that post one record after the other, each with a key of its
// own, whatever becomes of the servers.
type crasher struct {
	next  atomic.Int64
	taken atomic.Int64
	mu    sync.Mutex
	acked map[int][]int // by lane, in the order of the answers
	sent  []int
	open  []crashRecord // not acknowledged; to be sent again
}

type crashRecord struct{ id, lane int }

// run posts in one lane until ctx ends. A record that is not acknowledged is left for the end.
func (c *crasher) run(ctx context.Context, s *apptest.Spillway, lane int) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		id := int(c.next.Add(1))
		a, err := c.post(ctx, client, s, id, lane)
		c.mu.Lock()
		c.sent = append(c.sent, id)
		taken := err == nil && (a.status == http.StatusOK || a.status == http.StatusAccepted)
		if taken {
			c.acked[lane] = append(c.acked[lane], id)
			c.taken.Add(1)
		} else {
			c.open = append(c.open, crashRecord{id, lane})
		}
		c.mu.Unlock()
		if !taken {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

const lanes = 16

func (c *crasher) post(ctx context.Context, client *http.Client, s *apptest.Spillway, id, lane int) (answer, error) {
	return tryPost(ctx, client, s.URL("readings"), fmt.Sprintf(`{"id":%d,"device":%d}`, id, lane), "Idempotency-Key", "key-"+strconv.Itoa(id))
}

// TestCrash kills spillway, its database, or both, or stops spillway, again and again
// under load. What was acknowledged is stored, within a lane in the order of the answers; what was
// not is sent again in the end, and then everything is there once.
func TestCrash(t *testing.T) {
	rounds := crashRounds
	if text := os.Getenv("SPILLWAY_CRASH_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("SPILLWAY_CRASH_ROUNDS is %q, want a number from 1 on", text)
		}
	}
	for _, ack := range []string{"database", "spool"} {
		t.Run("postgres-"+ack, func(t *testing.T) {
			server := apptest.Postgres(t)
			p := postgresPlace(t, server)
			crash(t, server.Server, p, func() streamPlace { return p }, ack, "ALTER TABLE readings ADD COLUMN place bigserial", rounds)
		})
		t.Run("mariadb-"+ack, func(t *testing.T) {
			server := apptest.MariaDB(t, "--innodb-flush-log-at-trx-commit=1")
			again := func() streamPlace { return mariaPlace(t, server) } // its connection has died with the server
			crash(t, server, again(), again, ack, "ALTER TABLE readings ADD COLUMN place bigint AUTO_INCREMENT PRIMARY KEY", rounds)
		})
	}
}

func crash(t *testing.T, server *apptest.Server, p streamPlace, again func() streamPlace, ack, numbered string, rounds int) {
	s := p.serve(t, readings+"    order_by: device\n    ack: "+ack+"\n")
	p.query(t, numbered)
	c := &crasher{acked: make(map[int][]int)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for lane := range lanes {
		load.Go(func() { c.run(ctx, s, lane) })
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range rounds {
		before := c.taken.Load()
		more := 50 + int64(random.IntN(400))
		eventually(t, "records are taken", func() bool { return c.taken.Load() > before+more })
		hit(t, random.IntN(4), s, server)
	}
	before := c.taken.Load()
	eventually(t, "records are taken after the last round", func() bool { return c.taken.Load() > before+50 })
	stop()
	load.Wait()

	for _, r := range c.open {
		eventually(t, "record "+strconv.Itoa(r.id)+" is taken", func() bool {
			a, err := c.post(t.Context(), http.DefaultClient, s, r.id, r.lane)
			return err == nil && (a.status == http.StatusOK || a.status == http.StatusAccepted)
		})
	}
	slices.Sort(c.sent)
	p = again()
	eventually(t, "everything is in the table", func() bool { return len(p.ids(t)) >= len(c.sent) })
	if stored := p.ids(t); !slices.Equal(stored, c.sent) {
		t.Errorf("%d records are stored, %d were sent", len(stored), len(c.sent))
	}
	c.ordered(t, p)
	t.Logf("%d records, %d of them sent again", len(c.sent), len(c.open))
}

// hit does one thing to the servers, and brings them back.
func hit(t *testing.T, what int, s *apptest.Spillway, server *apptest.Server) {
	t.Helper()
	database, program := what == 1 || what == 2, what != 1
	switch {
	case database && program:
		server.Kill()
		s.Kill()
	case database:
		server.Kill()
	case what == 0:
		s.Kill()
	default:
		if err := s.Stop(); err != nil {
			t.Errorf("stop: %v\n%s", err, s.Log(t))
		}
	}
	if database {
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if program {
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
	}
	s.WaitReady(t)
}

// ordered checks that the records of a lane are in the table in the order in which they
// were acknowledged.
func (c *crasher) ordered(t *testing.T, p streamPlace) {
	t.Helper()
	places := make(map[int]int)
	for i, row := range p.query(t, "SELECT id FROM readings ORDER BY place") {
		id, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		places[id] = i
	}
	for lane, acked := range c.acked {
		for i := 1; i < len(acked); i++ {
			if places[acked[i-1]] > places[acked[i]] {
				t.Errorf("lane %d: record %d is stored behind %d, which was sent after its answer", lane, acked[i-1], acked[i])
			}
		}
	}
}
