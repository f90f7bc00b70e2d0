package crashtest

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
	"spillway/internal/serve/queue"
	"spillway/internal/serve/storetest"
)

// crashRounds is the number of rounds of TestCrash per database and ack level.
// SPILLWAY_CRASH_ROUNDS overrides it. With more than 50 rounds, one outage of the database
// lasts longOutage.
const (
	crashRounds = 5
	outage      = time.Second
	longOutage  = time.Minute
)

// crashClients are clients, one per lane. Each posts one record after another and ignores
// failures of the servers.
type crashClients struct {
	keyed    bool // every record has its own key, and is sent again at the end if it was not acknowledged
	next     atomic.Int64
	accepted atomic.Int64
	mu       sync.Mutex
	acked    map[int][]int       // by lane, in the order of their answers
	refused  []crashRecord       // the answer says that they were not stored
	unknown  []crashRecord       // the outcome is unknown
	answers  map[string]struct{} // statuses of the answers to refused records
}

type crashRecord struct{ id, lane int }

// run posts records in one lane until ctx ends.
func (c *crashClients) run(ctx context.Context, s *apptest.Spillway, lane int) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		r := crashRecord{int(c.next.Add(1)), lane}
		a, err := c.post(ctx, client, s, r)
		accepted := c.record(r, a, err)
		switch {
		case accepted:
		case err != nil: // the process is down
			queue.Sleep(ctx, 50*time.Millisecond)
		default:
			queue.Sleep(ctx, 5*time.Millisecond)
		}
	}
}

// resend posts records again until each is accepted.
func (c *crashClients) resend(t *testing.T, s *apptest.Spillway, records []crashRecord) {
	t.Helper()
	work := make(chan crashRecord, len(records))
	for _, r := range records {
		work <- r
	}
	close(work)
	var group sync.WaitGroup
	for range lanes {
		group.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for r := range work {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				a, err := c.post(ctx, client, s, r)
				for ctx.Err() == nil && (err != nil || a.Status != http.StatusOK && a.Status != http.StatusAccepted) {
					queue.Sleep(ctx, 20*time.Millisecond)
					a, err = c.post(ctx, client, s, r)
				}
				if ctx.Err() != nil {
					t.Errorf("record %d is not accepted within 2 minutes: status %d, %v", r.id, a.Status, err)
				}
				cancel()
			}
		})
	}
	group.Wait()
}

// record stores the outcome of a record.
func (c *crashClients) record(r crashRecord, a apptest.Answer, err error) (accepted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil || a.Status == http.StatusGatewayTimeout:
		c.unknown = append(c.unknown, r)
	case a.Status == http.StatusOK || a.Status == http.StatusAccepted:
		c.acked[r.lane] = append(c.acked[r.lane], r.id)
		c.accepted.Add(1)
		return true
	default:
		c.answers[fmt.Sprint(a.Status)] = struct{}{}
		c.refused = append(c.refused, r)
	}
	return false
}

const lanes = 16

func (c *crashClients) post(ctx context.Context, client *http.Client, s *apptest.Spillway, r crashRecord) (apptest.Answer, error) {
	var headers []string
	if c.keyed {
		headers = []string{"Idempotency-Key", "key-" + strconv.Itoa(r.id)}
	}
	return apptest.TryPost(ctx, client, s.URL("readings"), fmt.Sprintf(`{"id":%d,"device":%d}`, r.id, r.lane), headers...)
}

// crashTest is one database and ack level.
type crashTest struct {
	openDatabase   func() storetest.Database
	server         *apptest.Server // nil: SQLite
	ack            string
	addOrderColumn string // statement that adds orderColumn; empty if the table has it
	orderColumn    string
	keyless        bool
	disk           *apptest.SmallDisk // disk of the spool; nil: the machine's
	pair           *failover          // the server and its standby; nil: there is no standby
	faults         []string
	outage         time.Duration // length of the next outage; 0: outage
}

// TestCrash injects faults under load: it kills spillway, its database or both, stops
// spillway or the database, and fills the spool's disk. Acknowledged records must be stored
// in the order of their answers, refused ones not at all, and those with an unknown outcome
// at most once. With keys, records without an acknowledgement are sent again at the end, and
// every record must then be stored exactly once.
func TestCrash(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	rounds := crashRounds
	if text := os.Getenv("SPILLWAY_CRASH_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("SPILLWAY_CRASH_ROUNDS is %q, want a number of at least 1", text)
		}
	}
	both := []string{"kill", "kill database", "kill both", "stop", "database down"}
	for _, ack := range []string{"database", "spool"} {
		for _, keyless := range []bool{false, true} {
			name := ack + map[bool]string{true: "-keyless"}[keyless]
			t.Run("postgres-"+name, func(t *testing.T) {
				t.Parallel()
				server := apptest.Postgres(t)
				db := storetest.PostgresDatabase(t, server)
				c := &crashTest{
					openDatabase: func() storetest.Database { return db }, server: server.Server, ack: ack, keyless: keyless, faults: both,
					addOrderColumn: "ALTER TABLE readings ADD COLUMN arrival bigserial", orderColumn: "arrival",
				}
				if ack == "spool" && keyless {
					c.disk, c.faults = apptest.NewSmallDisk(t, 20), []string{"kill", "disk full", "kill both", "disk full and kill", "database down"}
				}
				c.run(t, rounds)
			})
		}
		for _, keyless := range []bool{false, true} {
			name := ack + map[bool]string{true: "-keyless"}[keyless]
			t.Run("standby-"+name, func(t *testing.T) {
				t.Parallel()
				crashStandby(t, ack, keyless).run(t, rounds)
			})
		}
		t.Run("mysql-"+ack, func(t *testing.T) {
			t.Parallel()
			server := apptest.MySQL(t, "--innodb-flush-log-at-trx-commit=1")
			c := &crashTest{
				openDatabase: func() storetest.Database { return storetest.MariaDatabase(t, server) }, // a new connection, because the server was restarted
				server:       server, ack: ack, faults: both,
				addOrderColumn: "ALTER TABLE readings ADD COLUMN arrival bigint AUTO_INCREMENT PRIMARY KEY", orderColumn: "arrival",
			}
			c.run(t, rounds)
		})
		t.Run("sqlite-"+ack, func(t *testing.T) {
			t.Parallel()
			db := storetest.SQLiteDatabase(t)
			c := &crashTest{openDatabase: func() storetest.Database { return db }, ack: ack, keyless: ack == "spool", faults: []string{"kill", "stop"}, orderColumn: "rowid"}
			c.run(t, rounds)
		})
	}
}

func (x *crashTest) run(t *testing.T, rounds int) {
	db := x.openDatabase()
	var args []string
	if x.disk != nil {
		args = []string{"--data", x.disk.Path}
	}
	s := db.ServeReadings(t, &binary, "http: {drain_timeout: 1m}\n"+apptest.Readings+"    order_by: device\n    ack: "+x.ack+"\n", args...)
	if x.addOrderColumn != "" {
		db.Query(t, x.addOrderColumn)
	}
	c := &crashClients{keyed: !x.keyless, acked: make(map[int][]int), answers: make(map[string]struct{})}
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
	var faults []string
	for range rounds {
		if len(faults) == 0 { // every fault once before any is repeated
			faults = slices.Clone(x.faults)
			random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		}
		before := c.accepted.Load()
		more := 50 + int64(random.IntN(400))
		apptest.Await(t, "records are accepted", func() bool { return c.accepted.Load() > before+more })
		x.inject(t, faults[0], s, c)
		faults = faults[1:]
	}
	before := c.accepted.Load()
	apptest.Await(t, "records are accepted after the last round", func() bool { return c.accepted.Load() > before+50 })
	stop()
	load.Wait()
	x.check(t, s, c)
}

// check compares the stored records with the answers.
func (x *crashTest) check(t *testing.T, s *apptest.Spillway, c *crashClients) {
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
		c.resend(t, s, again)
		for _, r := range again {
			acked = append(acked, r.id)
		}
		unknown, refused = nil, nil
	}
	slices.Sort(acked)
	db := x.openDatabase()
	// Draining the records of a long outage takes time. Each wait requires progress.
	const backlog = `spillway_spool_backlog_records{stream="/readings"}`
	for left := apptest.Metric(t, s, backlog); left > 0; {
		before := left
		apptest.Await(t, "more records are drained", func() bool {
			left = apptest.Metric(t, s, backlog)
			return left < before
		})
	}
	apptest.Await(t, "all records are drained", func() bool {
		return apptest.Metric(t, s, backlog) == 0 && len(db.IDs(t)) >= len(acked)
	})
	stored := db.IDs(t)
	checkStored(t, acked, stored)
	times := make(map[int]int)
	for _, id := range stored {
		times[id]++
	}
	for _, id := range refused {
		if times[id] > 0 {
			t.Errorf("record %d was refused but is stored", id)
		}
	}
	for _, id := range slices.Concat(acked, unknown) {
		if times[id] > 1 {
			t.Errorf("record %d is stored %d times", id, times[id])
		}
		delete(times, id)
	}
	if len(times) > 0 {
		t.Errorf("%d stored records were neither acknowledged nor have an unknown outcome", len(times))
	}
	c.checkOrder(t, db, x.orderColumn)
	t.Logf("%d stored, %d acknowledged, %d unknown, %d refused with %v", len(stored), len(acked), len(c.unknown), len(c.refused), slices.Sorted(maps.Keys(c.answers)))
}

// inject injects one fault, then restarts the servers.
func (x *crashTest) inject(t *testing.T, fault string, s *apptest.Spillway, c *crashClients) {
	t.Helper()
	switch fault {
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
		x.waitDown(t, s, c)
	case "standby away", "promote", "promote after outage":
		x.injectPair(t, fault, c)
	case "disk full", "disk full and kill":
		x.server.Kill() // otherwise the drain frees space in the file
		before := apptest.Metric(t, s, diskFull)
		x.disk.Fill(t)
		apptest.Await(t, "the spool refuses records because of the full disk", func() bool { return apptest.Metric(t, s, diskFull) > before })
		if fault != "disk full" {
			s.Kill()
		}
		x.disk.Empty(t)
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

// diskFull counts the requests that the spool refused because its disk is full.
const diskFull = `spillway_spool_overloads_total{limit="disk"}`

// waitDown waits while the database is down. With a spool, records must be accepted during
// that time, unless a small disk is full.
func (x *crashTest) waitDown(t *testing.T, s *apptest.Spillway, c *crashClients) {
	t.Helper()
	length := max(outage, x.outage)
	x.outage = 0 // the long outage occurs once
	before, full := c.accepted.Load(), 0.0
	if x.disk != nil {
		full = apptest.Metric(t, s, diskFull)
	}
	pause(t, length)
	if x.ack == "spool" {
		apptest.Await(t, "records are accepted without a database", func() bool {
			return c.accepted.Load() > before+50 || x.disk != nil && apptest.Metric(t, s, diskFull) > full
		})
	}
}

// pause waits. A longer wait is as good.
func pause(t *testing.T, length time.Duration) {
	t.Helper()
	select {
	case <-time.After(length):
	case <-t.Context().Done():
	}
}

// checkOrder checks that the records of each lane are stored in the order in which they were
// acknowledged.
func (c *crashClients) checkOrder(t *testing.T, db storetest.Database, orderColumn string) {
	t.Helper()
	positions := make(map[int]int)
	for i, row := range db.Query(t, "SELECT id FROM readings ORDER BY "+orderColumn) {
		id, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		positions[id] = i
	}
	for lane, acked := range c.acked {
		for i := 1; i < len(acked); i++ {
			if positions[acked[i-1]] > positions[acked[i]] {
				t.Errorf("lane %d: record %d is stored after %d, which was sent later", lane, acked[i-1], acked[i])
			}
		}
	}
}
