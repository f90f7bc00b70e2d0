package crashtest

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// standbyAway is how long the tests TestStandby… keep the standby away. SPILLWAY_STANDBY_AWAY
// overrides it, for example with 10m; less than half a minute, or 2m and more.
const standbyAway = 3 * time.Second

func awayFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("SPILLWAY_STANDBY_AWAY")
	if text == "" {
		return standbyAway
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("SPILLWAY_STANDBY_AWAY is %q, want a duration", text)
	}
	return d
}

// replicatedPair is a primary with a synchronous standby, and a database of a stream on it.
type replicatedPair struct {
	primary, standby *apptest.PostgresServer
	db               storetest.Database // on the primary
}

func newReplicatedPair(t *testing.T) *replicatedPair {
	t.Helper()
	primary := apptest.Postgres(t, apptest.SynchronousSettings()...)
	db := storetest.PostgresDatabase(t, primary)
	return &replicatedPair{primary: primary, standby: primary.SynchronousStandby(t), db: db}
}

// onStandby returns the database as the standby has it.
func (r *replicatedPair) onStandby() storetest.Database {
	url := strings.Replace(r.db.URL, r.primary.Addr(), r.standby.Addr(), 1)
	return storetest.Database{URL: url, Query: storetest.PostgresQuery(url)}
}

func (r *replicatedPair) bringBack(t *testing.T) {
	t.Helper()
	if err := r.standby.Start(); err != nil {
		t.Fatal(err)
	}
}

// sessions counts the sessions of spillway, and those that wait for the standby.
func (r *replicatedPair) sessions(t *testing.T) (all, waiting int) {
	t.Helper()
	row := r.db.Query(t, "SELECT count(*), count(*) FILTER (WHERE wait_event = 'SyncRep') FROM pg_stat_activity WHERE application_name = 'spillway'")[0]
	var errs [2]error
	all, errs[0] = strconv.Atoi(row[0])
	waiting, errs[1] = strconv.Atoi(row[1])
	if errs[0] != nil || errs[1] != nil {
		t.Fatal(row)
	}
	return all, waiting
}

// watchAway calls check about ten times a second while the standby is away.
func (r *replicatedPair) watchAway(t *testing.T, check func()) {
	t.Helper()
	for end := time.After(awayFor(t)); ; {
		check()
		select {
		case <-end:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

const poolMax = 6

// smallPool is the configuration of a pool of poolMax connections, whose statement_timeout is
// shorter than the standby is away.
var smallPool = fmt.Sprintf("pool: {max: %d, statement_timeout: 1s}\n", poolMax)

// TestStandbyAway: while the synchronous standby is away, no request is answered 200, the
// sessions are no more than the pool has connections, and none is lost or doubled.
func TestStandbyAway(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	r := newReplicatedPair(t)
	s := r.db.ServeReadings(t, &binary, smallPool+apptest.Readings+"    commit_timeout: 1s\n    timeout: 2s\n    retry_for: 2s\n")
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":1}`), 200, `{"stored":1,"ack":"database, on"}`)
	r.standby.Kill()
	var next atomic.Int64
	next.Store(1)
	var mu sync.Mutex
	statuses, done := map[int]int{}, make(chan struct{})
	var clients sync.WaitGroup
	every := max(20*time.Millisecond, awayFor(t)/500) // each request is sent again at the end
	for range 16 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				id := next.Add(1)
				a, err := apptest.TryPost(t.Context(), http.DefaultClient, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, id), "Idempotency-Key", fmt.Sprint(id))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				statuses[a.Status]++
				mu.Unlock()
				select {
				case <-done:
				case <-time.After(every):
				}
			}
		})
	}
	apptest.Await(t, "a COMMIT waits for the standby", func() bool { _, waiting := r.sessions(t); return waiting > 0 })
	most := 0
	r.watchAway(t, func() {
		all, _ := r.sessions(t)
		most = max(most, all)
	})
	close(done)
	clients.Wait()
	if statuses[200] > 0 || statuses[504] == 0 {
		t.Errorf("answers while the standby was away: %v, want 504 and no 200", statuses)
	}
	if most > poolMax {
		t.Errorf("up to %d sessions; the pool has %d connections", most, poolMax)
	}
	r.bringBack(t)
	apptest.Await(t, "records are accepted again", func() bool { return apptest.Post(t, s.URL("readings"), `{"id":0}`).Status == 200 })
	for id := int64(2); id <= next.Load(); id++ {
		apptest.Await(t, "each request is stored", func() bool {
			return apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, id), "Idempotency-Key", fmt.Sprint(id)).Status == 200
		})
	}
	stored := r.db.IDs(t)
	times := make(map[int]int)
	for _, id := range stored {
		times[id]++
	}
	for id := 1; id <= int(next.Load()); id++ {
		if times[id] != 1 {
			t.Errorf("record %d is stored %d times", id, times[id])
		}
	}
	t.Logf("answers %v, up to %d sessions", statuses, most)
}

// TestStandbyAwaySpool: nothing is deleted from the spool before the standby has it.
func TestStandbyAwaySpool(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	r := newReplicatedPair(t)
	s := r.db.ServeReadings(t, &binary, smallPool+apptest.Readings+"    ack: spool\n    commit_timeout: 1s\n")
	const backlog = `spillway_spool_backlog_records{stream="/readings"}`
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":1}`), 1)
	apptest.Await(t, "the record is drained", func() bool { return apptest.Metric(t, s, backlog) == 0 && len(r.db.IDs(t)) == 1 })
	r.standby.Kill()
	want := []int{1}
	most := 0
	r.watchAway(t, func() {
		want = append(want, len(want)+1)
		apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, len(want))), 1)
		if n := apptest.Metric(t, s, backlog); int(n) != len(want)-1 {
			t.Fatalf("%v records wait in the spool, %d are not on the standby", n, len(want)-1)
		}
		all, _ := r.sessions(t)
		most = max(most, all)
	})
	if most > poolMax {
		t.Errorf("up to %d sessions; the pool has %d connections", most, poolMax)
	}
	r.bringBack(t)
	apptest.Await(t, "the spool is drained", func() bool { return apptest.Metric(t, s, backlog) == 0 })
	standby := r.onStandby()
	apptest.Await(t, "the standby has the records", func() bool { return len(standby.IDs(t)) >= len(want) })
	if got := fmt.Sprint(standby.IDs(t)); got != fmt.Sprint(want) {
		t.Errorf("the standby has %s, want %v", got, want)
	}
}

// TestStandbyAwayPopups: events of popups stay in the local log until the standby has them.
func TestStandbyAwayPopups(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	r := newReplicatedPair(t)
	s := apptest.Serve(t, binary.Path(t), "--database", r.db.URL, apptest.PopupConfig(t, smallPool))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	const waiting = "spillway_popup_events_waiting"
	apptest.Await(t, "no event waits", func() bool { return apptest.Metric(t, s, waiting) == 0 })
	r.standby.Kill()
	events, most := 0, 0
	r.watchAway(t, func() {
		_, shown := apptest.AskPopup(t, s, fmt.Sprintf("user=u%d", events))
		if status, body := apptest.PostPopup(t, s.URL("popup/click"), apptest.ShowToken(shown.Show)); status != 204 {
			t.Fatalf("click: %d %s", status, body)
		}
		events += 2
		if n := int(apptest.Metric(t, s, waiting)); n != events {
			t.Fatalf("%d events wait, %d are not on the standby", n, events)
		}
		all, _ := r.sessions(t)
		most = max(most, all)
	})
	if most > poolMax+1 { // and the one that holds the lock
		t.Errorf("up to %d sessions; the pool has %d connections", most, poolMax)
	}
	r.bringBack(t)
	apptest.Await(t, "the events are stored", func() bool { return apptest.Metric(t, s, waiting) == 0 })
	standby := r.onStandby()
	apptest.Await(t, "the standby has the events", func() bool {
		return standby.Query(t, "SELECT count(*) FROM popup_events")[0][0] == strconv.Itoa(events)
	})
}

// TestStandbyAwayPool: while COMMITs of streams and popups wait for the standby, a connection
// of the pool is left for queries.
func TestStandbyAwayPool(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	r := newReplicatedPair(t)
	r.db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	other := strings.NewReplacer("streams:\n", "", "/readings", "/others", "/v1/readings", "/v1/others").Replace(apptest.Readings)
	s := apptest.Serve(t, binary.Path(t), "--database", r.db.URL, apptest.PopupConfig(t, "pool: {max: 3, statement_timeout: 5s, acquire_timeout: 1m}\n"+apptest.Readings+other+
		"queries:\n  - path: /count\n    sql: SELECT count(*) AS n FROM readings WHERE id > :n\n    params: {n: integer}\n    timeout: 1m\n"))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	r.standby.Kill()
	var clients sync.WaitGroup
	defer clients.Wait()
	for i, path := range []string{"readings", "others"} {
		clients.Go(func() {
			if _, err := apptest.TryPost(t.Context(), http.DefaultClient, s.URL(path), fmt.Sprintf(`{"id":%d}`, i+1)); err != nil {
				t.Error(err)
			}
		})
	}
	if a, _ := apptest.AskPopup(t, s, "user=1"); a.Status != 200 {
		t.Errorf("popup: %d %s", a.Status, a.Body)
	}
	apptest.Await(t, "two COMMITs wait for the standby", func() bool { _, waiting := r.sessions(t); return waiting >= 2 })
	questions := 0
	r.watchAway(t, func() {
		questions++
		if a := apptest.Fetch(t, s.URL(fmt.Sprintf("count?n=%d", questions))); a.Status != 200 {
			t.Errorf("question %d: %d %s", questions, a.Status, a.Body)
		}
		if _, waiting := r.sessions(t); waiting != 2 {
			t.Errorf("%d COMMITs wait for the standby", waiting)
		}
	})
	r.bringBack(t)
	clients.Wait()
	for i, path := range []string{"readings", "others"} {
		apptest.Await(t, "records are accepted again", func() bool { return apptest.Post(t, s.URL(path), fmt.Sprintf(`{"id":%d}`, i+3)).Status == 200 })
	}
	apptest.Await(t, "the events are stored", func() bool { return apptest.Metric(t, s, "spillway_popup_events_waiting") == 0 })
}

// TestStandbyBatchFoundAgain kills the primary while a COMMIT waits for the standby. After
// the restart the primary has the record. It is acknowledged only when the standby has it. If
// the standby stays away for longer than commit_timeout, the answer is 504, and the record is
// stored once all the same.
func TestStandbyBatchFoundAgain(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	patience := "10m"
	if awayFor(t) >= 2*time.Minute {
		patience = "50s"
	}
	for name, headers := range map[string][]string{"batch": nil, "key": {"Idempotency-Key", "k"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplicatedPair(t)
			s := r.db.ServeReadings(t, &binary, fmt.Sprintf("pool: {max: %d}\n", poolMax)+apptest.Readings+fmt.Sprintf("    commit_timeout: %s\n    timeout: %[1]s\n    retry_for: 10m\n", patience))
			apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":1}`), 200, `{"stored":1,"ack":"database, on"}`)
			r.standby.Kill()
			answered := make(chan apptest.Answer, 1)
			var client sync.WaitGroup
			client.Go(func() {
				a, err := apptest.TryPost(t.Context(), http.DefaultClient, s.URL("readings"), `{"id":2}`, headers...)
				if err != nil {
					t.Error(err)
				}
				answered <- a
			})
			apptest.Await(t, "the COMMIT waits for the standby", func() bool { _, waiting := r.sessions(t); return waiting > 0 })
			r.primary.Kill()
			if err := r.primary.Start(); err != nil {
				t.Fatal(err)
			}
			apptest.Await(t, "another COMMIT waits for the standby", func() bool { _, waiting := r.sessions(t); return waiting > 0 })
			if got := fmt.Sprint(r.db.IDs(t)); got != "[1 2]" {
				t.Errorf("the primary has %s", got)
			}
			most := 0
			var early []apptest.Answer
			r.watchAway(t, func() {
				all, _ := r.sessions(t)
				most = max(most, all)
				select {
				case a := <-answered:
					early = append(early, a)
				default:
				}
			})
			r.bringBack(t)
			client.Wait()
			if awayFor(t) < 2*time.Minute {
				if len(early) > 0 {
					t.Fatalf("answered %d %s before the standby was back", early[0].Status, early[0].Body)
				}
				apptest.WantAnswer(t, apptest.Receive(t, "the answer", answered), 200, `{"stored":1,"ack":"database, on"}`)
			} else if len(early) != 1 {
				t.Fatal("not answered before the standby was back")
			} else {
				apptest.WantAnswer(t, early[0], 504, "unknown-outcome")
			}
			if most > poolMax {
				t.Errorf("up to %d sessions; the pool has %d connections", most, poolMax)
			}
			apptest.Await(t, "records are accepted again", func() bool {
				return apptest.Post(t, s.URL("readings"), `{"id":3}`, "Idempotency-Key", "three").Status == 200
			})
			if len(headers) > 0 {
				apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":2}`, headers...), 200, `{"stored":1,"ack":"database, on","replayed":true}`)
			}
			for where, db := range map[string]storetest.Database{"primary": r.db, "standby": r.onStandby()} {
				apptest.Await(t, "the "+where+" has the record once", func() bool { return fmt.Sprint(db.IDs(t)) == "[1 2 3]" })
			}
		})
	}
}

// TestStandbyAck: the ack names what a COMMIT waits for.
func TestStandbyAck(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	r := newReplicatedPair(t)
	name := apptest.DatabaseName(r.db.URL)
	r.db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	for _, level := range []string{"remote_apply", "on", "remote_write", "local"} {
		r.db.Query(t, "ALTER DATABASE "+name+" SET synchronous_commit = "+level)
		s := apptest.ServePatiently(t, &binary, apptest.Readings, r.db.URL)
		apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":1}`), 200, `{"stored":1,"ack":"database, `+level+`"}`)
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}
	r.db.Query(t, "ALTER DATABASE "+name+" SET synchronous_commit = remote_apply")
	if err := r.primary.RequireStandby(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	s := apptest.ServePatiently(t, &binary, apptest.Readings, r.db.URL)
	apptest.Await(t, "the ack says that no standby is waited for", func() bool {
		return strings.Contains(string(apptest.Post(t, s.URL("readings"), `{"id":1}`).Body), `"ack":"database, local"`)
	})
}
