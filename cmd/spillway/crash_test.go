package main

import (
	"context"
	"fmt"
	"maps"
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

// crashRounds is how many rounds TestCrash takes with each database and ack level; make
// crash asks for 100, and then one outage of the database takes longOutage.
const (
	crashRounds = 5
	outage      = time.Second
	longOutage  = time.Minute
)

// crasher is clients, one a lane, that post one record after the other, whatever becomes of
// the servers.
type crasher struct {
	keyed   bool // each with a key of its own: what is not acknowledged is sent again in the end
	next    atomic.Int64
	taken   atomic.Int64
	mu      sync.Mutex
	acked   map[int][]int       // by lane, in the order of the answers
	refused []crashRecord       // not stored, as the answer says
	unknown []crashRecord       // nobody knows
	answers map[string]struct{} // of what was refused, by status
}

type crashRecord struct{ id, lane int }

// run posts in one lane until ctx ends.
func (c *crasher) run(ctx context.Context, s *apptest.Spillway, lane int) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		r := crashRecord{int(c.next.Add(1)), lane}
		a, err := c.post(ctx, client, s, r)
		taken := c.book(r, a, err)
		if !taken {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// book notes what became of a record.
func (c *crasher) book(r crashRecord, a answer, err error) (taken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil || a.status == http.StatusGatewayTimeout:
		c.unknown = append(c.unknown, r)
	case a.status == http.StatusOK || a.status == http.StatusAccepted:
		c.acked[r.lane] = append(c.acked[r.lane], r.id)
		c.taken.Add(1)
		return true
	default:
		c.answers[fmt.Sprint(a.status)] = struct{}{}
		c.refused = append(c.refused, r)
	}
	return false
}

const lanes = 16

func (c *crasher) post(ctx context.Context, client *http.Client, s *apptest.Spillway, r crashRecord) (answer, error) {
	var headers []string
	if c.keyed {
		headers = []string{"Idempotency-Key", "key-" + strconv.Itoa(r.id)}
	}
	return tryPost(ctx, client, s.URL("readings"), fmt.Sprintf(`{"id":%d,"device":%d}`, r.id, r.lane), headers...)
}

// crashTest is one database and ack level.
type crashTest struct {
	place    func() streamPlace
	server   *apptest.Server // nil: SQLite
	ack      string
	numbered string // makes a column that numbers the rows as they come; empty: there is one
	number   string
	keyless  bool
	disk     *smallDisk // where the spool is; nil: on the machine's
	hits     []string
	outage   time.Duration // the next one's length; 0: the short one
}

// TestCrash kills spillway, its database, or both, stops spillway, lets the database be away and
// the spool's disk be full, again and again under load. What was acknowledged is stored, within
// a lane in the order of the answers; what was refused is not; what nobody knows is there
// at most once. With keys what was not acknowledged is sent again in the end, and then
// everything is there once.
func TestCrash(t *testing.T) {
	t.Parallel()
	rounds := crashRounds
	if text := os.Getenv("SPILLWAY_CRASH_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("SPILLWAY_CRASH_ROUNDS is %q, want a number from 1 on", text)
		}
	}
	both := []string{"kill", "kill database", "kill both", "stop", "database down"}
	for _, ack := range []string{"database", "spool"} {
		for _, keyless := range []bool{false, true} {
			name := ack + map[bool]string{true: "-keyless"}[keyless]
			t.Run("postgres-"+name, func(t *testing.T) {
				t.Parallel()
				server := apptest.Postgres(t)
				p := postgresPlace(t, server)
				c := &crashTest{
					place: func() streamPlace { return p }, server: server.Server, ack: ack, keyless: keyless, hits: both,
					numbered: "ALTER TABLE readings ADD COLUMN place bigserial", number: "place",
				}
				if ack == "spool" && keyless {
					c.disk, c.hits = newSmallDisk(t, 20), []string{"kill", "disk full", "kill both", "disk full and kill", "database down"}
				}
				c.run(t, rounds)
			})
		}
		t.Run("mariadb-"+ack, func(t *testing.T) {
			t.Parallel()
			server := apptest.MariaDB(t, "--innodb-flush-log-at-trx-commit=1")
			c := &crashTest{
				place:  func() streamPlace { return mariaPlace(t, server) }, // its connection dies with the server
				server: server, ack: ack, hits: both,
				numbered: "ALTER TABLE readings ADD COLUMN place bigint AUTO_INCREMENT PRIMARY KEY", number: "place",
			}
			c.run(t, rounds)
		})
		t.Run("sqlite-"+ack, func(t *testing.T) {
			t.Parallel()
			p := sqlitePlace(t)
			c := &crashTest{place: func() streamPlace { return p }, ack: ack, keyless: ack == "spool", hits: []string{"kill", "stop"}, number: "rowid"}
			c.run(t, rounds)
		})
	}
}

func (x *crashTest) run(t *testing.T, rounds int) {
	p := x.place()
	var args []string
	if x.disk != nil {
		args = []string{"--data", x.disk.path}
	}
	s := p.serve(t, readings+"    order_by: device\n    ack: "+x.ack+"\n", args...)
	if x.numbered != "" {
		p.query(t, x.numbered)
	}
	c := &crasher{keyed: !x.keyless, acked: make(map[int][]int), answers: make(map[string]struct{})}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for lane := range lanes {
		load.Go(func() { c.run(ctx, s, lane) })
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	if rounds > 50 {
		x.outage = longOutage
	}
	var hits []string
	for range rounds {
		if len(hits) == 0 { // all of them before one comes again
			hits = slices.Clone(x.hits)
			random.Shuffle(len(hits), func(i, j int) { hits[i], hits[j] = hits[j], hits[i] })
		}
		before := c.taken.Load()
		more := 50 + int64(random.IntN(400))
		eventually(t, "records are taken", func() bool { return c.taken.Load() > before+more })
		x.hit(t, hits[0], s, c)
		hits = hits[1:]
	}
	before := c.taken.Load()
	eventually(t, "records are taken after the last round", func() bool { return c.taken.Load() > before+50 })
	stop()
	load.Wait()
	x.check(t, s, c)
}

// check compares the table with the answers.
func (x *crashTest) check(t *testing.T, s *apptest.Spillway, c *crasher) {
	t.Helper()
	again := slices.Concat(c.refused, c.unknown)
	var acked, unknown, refused []int
	for _, ids := range c.acked {
		acked = append(acked, ids...)
	}
	for _, r := range c.unknown {
		unknown = append(unknown, r.id)
	}
	for _, r := range c.refused {
		refused = append(refused, r.id)
	}
	if c.keyed {
		for _, r := range again {
			eventually(t, "record "+strconv.Itoa(r.id)+" is taken", func() bool {
				a, err := c.post(t.Context(), http.DefaultClient, s, r)
				return err == nil && (a.status == http.StatusOK || a.status == http.StatusAccepted)
			})
			acked = append(acked, r.id)
		}
		unknown, refused = nil, nil
	}
	slices.Sort(acked)
	p := x.place()
	// What came in a long outage takes a while to store, in which the drain never stands still.
	const backlog = `spillway_spool_backlog_records{stream="/readings"}`
	for left := metric(t, s, backlog); left > 0; {
		before := left
		eventually(t, "more is drained", func() bool {
			left = metric(t, s, backlog)
			return left < before
		})
	}
	eventually(t, "everything is drained", func() bool {
		return metric(t, s, backlog) == 0 && len(p.ids(t)) >= len(acked)
	})
	stored := p.ids(t)
	contained(t, acked, stored)
	times := make(map[int]int)
	for _, id := range stored {
		times[id]++
	}
	for _, id := range refused {
		if times[id] > 0 {
			t.Errorf("record %d was refused and is stored", id)
		}
	}
	for _, id := range slices.Concat(acked, unknown) {
		if times[id] > 1 {
			t.Errorf("record %d is stored %d times", id, times[id])
		}
		delete(times, id)
	}
	if len(times) > 0 {
		t.Errorf("%d records are stored that nobody sent, or sent in vain", len(times))
	}
	c.ordered(t, p, x.number)
	t.Logf("%d stored, %d acknowledged, %d unknown, %d refused with %v", len(stored), len(acked), len(c.unknown), len(c.refused), slices.Sorted(maps.Keys(c.answers)))
}

// hit does one thing to the servers, and brings them back.
func (x *crashTest) hit(t *testing.T, what string, s *apptest.Spillway, c *crasher) {
	t.Helper()
	switch what {
	case "kill":
		s.Kill()
	case "stop":
		if err := s.Stop(); err != nil {
			t.Errorf("stop: %v\n%s", err, s.Log(t))
		}
	case "kill database":
		x.server.Kill()
	case "kill both":
		x.server.Kill()
		s.Kill()
	case "database down":
		x.server.Kill()
		x.away(t, s, c)
	case "disk full", "disk full and kill":
		x.server.Kill() // what is drained at once needs no more room than the file has
		before := metric(t, s, diskFull)
		x.disk.fill(t)
		eventually(t, "the full disk is met", func() bool { return metric(t, s, diskFull) > before })
		if what != "disk full" {
			s.Kill()
		}
		x.disk.empty(t)
	}
	if x.server != nil {
		if err := x.server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
}

// diskFull counts what the spool refuses because its disk is full.
const diskFull = `spillway_spool_overloads_total{limit="disk"}`

// away waits while the database is down. With a spool records are taken meanwhile, as many
// as a small disk holds: what came in the long outage may still be there.
func (x *crashTest) away(t *testing.T, s *apptest.Spillway, c *crasher) {
	t.Helper()
	length := max(outage, x.outage)
	x.outage = 0 // the next one is short again
	before, full := c.taken.Load(), 0.0
	if x.disk != nil {
		full = metric(t, s, diskFull)
	}
	select {
	case <-time.After(length):
	case <-t.Context().Done():
	}
	if x.ack == "spool" {
		eventually(t, "records are taken without a database", func() bool {
			return c.taken.Load() > before+50 || x.disk != nil && metric(t, s, diskFull) > full
		})
	}
}

// ordered checks that the records of a lane are in the table in the order in which they
// were acknowledged.
func (c *crasher) ordered(t *testing.T, p streamPlace, number string) {
	t.Helper()
	places := make(map[int]int)
	for i, row := range p.query(t, "SELECT id FROM readings ORDER BY "+number) {
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
