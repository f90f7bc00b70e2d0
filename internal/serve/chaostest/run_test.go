package chaostest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
)

// streamState is a stream and what the operator has made of it.
type streamState struct {
	table   string
	key     bool   // the column code is its key
	ack     string // in the file
	path    string // in the file
	aliases []string
	running atomic.Value // the path of the process
}

// current returns the path where the process accepts records, without its slash.
func (s *streamState) current() string { return strings.TrimPrefix(s.running.Load().(string), "/") }

// run is one run: a database, a process, clients and an operator.
type run struct {
	t       *testing.T
	seed    uint64
	replay  string
	random  *rand.Rand // of the operator
	db      *database
	service *apptest.Spillway
	up      bool // the process runs
	file    string
	streams []*streamState
	broken  map[string]string // tables that the operator has changed, and how
	away    map[string]bool   // tables that the operator has renamed
	copies  int
	tally   *tally
	began   time.Time

	ctx     context.Context // ends with the run
	writing context.Context // ends when the clients send no new requests
	stop    context.CancelFunc
	clients sync.WaitGroup
	next    atomic.Int64
	working atomic.Int64 // clients that have not ended

	mu         sync.Mutex
	records    map[int]*record
	last       map[*lane]*record // of requests that are not answered for good
	log        []string          // what the operator did
	violations []string
	discarded  map[int]bool
	replaced   map[int]bool // stored in a database that was replaced by a copy
}

// movingPaths are the paths that one of the streams has, now and then.
var movingPaths = []string{"/moving-0", "/moving-1", "/moving-2"}

// newRun starts the process and the clients.
func newRun(t *testing.T, db *database, seed uint64, replay string) *run {
	r := &run{
		t: t, seed: seed, replay: replay, random: rand.New(rand.NewPCG(seed, 1)), db: db, broken: make(map[string]string), away: make(map[string]bool),
		tally: newTally(), began: time.Now(), records: make(map[int]*record), last: make(map[*lane]*record), discarded: make(map[int]bool), replaced: make(map[int]bool),
		file: filepath.Join(t.TempDir(), "spillway.yaml"),
		streams: []*streamState{
			{table: "plain", path: "/plain"}, {table: "keyed", path: "/keyed", key: true}, {table: "moving", path: movingPaths[0]},
		},
	}
	for _, s := range r.streams {
		s.ack = r.choose("database", "spool")
		if err := db.create(s.table, s.key); err != nil {
			t.Fatal(err)
		}
	}
	r.configure()
	r.service = apptest.Serve(t, binary.Path(t), "--database", db.url, r.file)
	r.up = true
	r.started()
	r.service.WaitReady(t)
	r.ctx = t.Context()
	r.writing, r.stop = context.WithCancel(r.ctx)
	t.Cleanup(func() { // also after a failure
		r.stop()
		r.clients.Wait()
		if t.Failed() {
			t.Logf("To replay: %s\nThe operator:\n%s", r.replay, r.history())
		}
	})
	for i := range 4 * len(r.streams) {
		l := &lane{
			run: r, stream: r.streams[i%len(r.streams)], idempotent: i%2 == 0, random: rand.New(rand.NewPCG(seed, uint64(100+i))),
			client: &http.Client{Transport: &http.Transport{}},
		}
		r.working.Add(1)
		r.clients.Go(func() {
			defer r.working.Add(-1)
			l.work()
		})
	}
	return r
}

// choose returns one of the texts.
func (r *run) choose(texts ...string) string { return texts[r.random.IntN(len(texts))] }

// configure writes the configuration.
func (r *run) configure() {
	var b strings.Builder
	b.WriteString("pool: {max: 12, connect_timeout: 2s, acquire_timeout: 2s}\nhttp: {drain_timeout: 5s}\nstreams:\n")
	for _, s := range r.streams {
		fmt.Fprintf(&b, "  - path: %s\n    table: %s\n    ack: %s\n    timeout: 4s\n    commit_timeout: 2s\n    retry_for: 3s\n    columns: %s\n",
			s.path, s.table, s.ack, columnsConfig)
		if len(s.aliases) > 0 {
			fmt.Fprintf(&b, "    aliases: [%s]\n", strings.Join(s.aliases, ", "))
		}
		if s.key {
			b.WriteString("    key: [code]\n")
		}
	}
	if err := os.WriteFile(r.file, []byte(b.String()), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// started notes that the process has the configuration of the file now.
func (r *run) started() {
	for _, s := range r.streams {
		s.running.Store(s.path)
	}
}

// logf notes what the operator does.
func (r *run) logf(format string, args ...any) {
	line := fmt.Sprintf("%8.3fs ", time.Since(r.began).Seconds()) + fmt.Sprintf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, line)
}

// violate notes what must not be.
func (r *run) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
}

// remember adds new records.
func (r *run) remember(records []*record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range records {
		r.records[record.id] = record
	}
}

// note adds an attempt to the histories of the records of a request.
func (r *run) note(l *lane, request *laneRequest, a attempt, refused map[int]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[l] = request.records[0]
	for i, record := range request.records {
		own := a
		if reason, is := refused[i]; is {
			own.known, own.answer = outcomeRefused, "refused "+reason+": "+a.answer
		}
		record.attempts = append(record.attempts, own)
	}
}

// answered notes that a client does not repeat its request.
func (r *run) answered(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[l] = nil
}

// work executes operations in random order.
func (r *run) work(operations int) {
	all := r.operations()
	for range operations {
		r.pause(100, 1200)
		possible := slices.DeleteFunc(slices.Clone(all), func(o operation) bool { return !o.possible() })
		weight := 0
		for _, o := range possible {
			weight += o.weight
		}
		at := r.random.IntN(weight)
		for _, o := range possible {
			if at -= o.weight; at < 0 {
				r.execute(o)
				break
			}
		}
		if r.t.Failed() {
			return
		}
	}
}

func (r *run) execute(o operation) {
	what, err := o.do()
	switch {
	case err != nil:
		r.logf("%s %s failed: %v", o.name, what, err)
		r.tally.operation(o.name + " (failed)")
	default:
		r.logf("%s %s", o.name, what)
		r.tally.operation(o.name)
	}
}

// pause waits for a random number of milliseconds.
func (r *run) pause(least, most int) {
	queue.Sleep(r.t.Context(), time.Duration(least+r.random.IntN(most-least))*time.Millisecond)
}
