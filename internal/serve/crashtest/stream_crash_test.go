package crashtest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// writers are clients that post one record per request, without pauses, until a request
// fails.
type writers struct {
	path     string
	next     *atomic.Int64 // the next record's id
	accepted atomic.Int64
	mu       sync.Mutex
	stored   []int // acknowledged ids
	unknown  []int // ids without an answer
}

// run posts with 16 clients until the process ends. With keyed, requests have idempotency keys.
func (w *writers) run(ctx context.Context, t *testing.T, s *apptest.Spillway, keyed bool) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	defer client.CloseIdleConnections()
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for w.one(ctx, t, client, s, keyed) {
			}
		})
	}
	group.Wait()
}

func (w *writers) one(ctx context.Context, t *testing.T, client *http.Client, s *apptest.Spillway, keyed bool) bool {
	id := int(w.next.Add(1))
	a, err := w.post(ctx, client, s, id, keyed)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.unknown = append(w.unknown, id)
		return false
	case a.Status == http.StatusServiceUnavailable:
		return true // the record was not stored
	case a.Status != http.StatusOK && a.Status != http.StatusAccepted:
		t.Errorf("%d %s", a.Status, a.Body)
		return false
	}
	w.stored = append(w.stored, id)
	w.accepted.Add(1)
	return a.Header.Get("Connection") != "close"
}

func (w *writers) post(ctx context.Context, client *http.Client, s *apptest.Spillway, id int, keyed bool) (apptest.Answer, error) {
	var headers []string
	if keyed {
		headers = []string{"Idempotency-Key", "key-" + strconv.Itoa(id)}
	}
	return apptest.TryPost(ctx, client, s.URL(w.path), fmt.Sprintf(`{"id":%d,"device":%d}`, id, id%7), headers...)
}

// checkStored checks that every id of some is in all, which is sorted.
func checkStored(t *testing.T, some, all []int) {
	t.Helper()
	for _, id := range some {
		if _, found := slices.BinarySearch(all, id); !found {
			t.Errorf("record %d was acknowledged but is not stored", id)
		}
	}
}

// TestStreamCrash kills the process under load, three times if the test may be long. Acknowledged records must be
// stored. Unanswered ones are sent again with their keys. Every record is then stored once.
func TestStreamCrash(t *testing.T) {
	t.Parallel()
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for name, db := range map[string]storetest.Database{"sqlite": storetest.SQLiteDatabase(t), "postgres": storetest.PostgresDatabase(t, postgres.Get(t))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := db.ServeReadings(t, &binary, apptest.Patient(apptest.Readings+"    order_by: device\n"))
			var next atomic.Int64
			var all []int
			for range rounds {
				w := &writers{path: "readings", next: &next}
				var load sync.WaitGroup
				load.Go(func() { w.run(t.Context(), t, s, true) })
				apptest.Await(t, "records are stored", func() bool { return w.accepted.Load() > 100 })
				s.Kill()
				load.Wait()
				if err := s.Start(); err != nil {
					t.Fatal(err)
				}
				s.WaitReady(t)
				stored := db.IDs(t)
				checkStored(t, w.stored, stored)
				for _, id := range w.unknown {
					a, err := w.post(t.Context(), http.DefaultClient, s, id, true)
					if err != nil || a.Status != http.StatusOK {
						t.Errorf("record %d again: %d %s %v", id, a.Status, a.Body, err)
					}
				}
				all = append(append(all, w.stored...), w.unknown...)
			}
			slices.Sort(all)
			if stored := db.IDs(t); !slices.Equal(stored, all) {
				t.Errorf("%d records are stored, want each of the %d that were sent once", len(stored), len(all))
			}
			t.Logf("%d records", len(all))
		})
	}
}

// TestStreamStop ends the process with SIGTERM under load. Every accepted record must be
// stored, also those acknowledged in memory.
func TestStreamStop(t *testing.T) {
	t.Parallel()
	for _, ack := range []string{"database", "memory"} {
		t.Run(ack, func(t *testing.T) {
			t.Parallel()
			db := storetest.PostgresDatabase(t, postgres.Get(t))
			s := db.ServeReadings(t, &binary, apptest.Patient(apptest.Readings+"    ack: "+ack+"\n"))
			w := &writers{path: "readings", next: new(atomic.Int64)}
			var load sync.WaitGroup
			load.Go(func() { w.run(t.Context(), t, s, false) })
			apptest.Await(t, "records are accepted", func() bool { return w.accepted.Load() > 500 })
			if err := s.Stop(); err != nil { // an exit code other than 0 is an error
				t.Errorf("stop: %v\n%s", err, s.Log(t))
			}
			load.Wait()
			stored := db.IDs(t)
			checkStored(t, w.stored, stored)
			if n := len(stored); n > len(w.stored)+len(w.unknown) || len(slices.Compact(stored)) != n {
				t.Errorf("%d stored, %d acknowledged, %d unknown", n, len(w.stored), len(w.unknown))
			}
		})
	}
}
