package spool

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

// workloadVariable is the environment variable that makes TestPowerCutWorkload work: how the
// process ends, a number, and the directory.
const workloadVariable = "SPILLWAY_POWERCUT_WORKLOAD"

// mark is what a workload notes outside of the storage.
type mark struct {
	Kind   string      `json:"kind"`
	Name   string      `json:"name"`
	ID     int         `json:"id,omitempty"`     // of an entry
	Groups []markGroup `json:"groups,omitempty"` // of markHand and markStore
}

// The kinds of marks.
const (
	markTry   = "try"   // Append was called
	markAck   = "ack"   // Append returned
	markHand  = "hand"  // the destination was called
	markStore = "store" // the destination has stored groups
)

// markGroup is a group that was handed to the destination.
type markGroup struct {
	groupName
	IDs  []int `json:"ids"`
	Dead []int `json:"dead,omitempty"` // of these, the entries that the destination refused
}

// groupName is what a destination recognizes a group by.
type groupName struct {
	Spool    string `json:"spool"`
	Epoch    string `json:"epoch"`
	Sequence uint64 `json:"sequence"`
	Number   uint64 `json:"number"`
}

func (m *mark) line() []byte {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return append(data, '\n')
}

// nameGroup returns how a destination recognizes a group, and the entries in it.
func nameGroup(g queue.Group) (markGroup, error) {
	m := markGroup{groupName: groupName{
		Spool: hex.EncodeToString(g.Spool[:]), Epoch: hex.EncodeToString(g.Epoch[:]), Sequence: g.Sequence, Number: g.Number,
	}}
	for _, e := range g.Entries {
		text, _, _ := strings.Cut(string(e.Payload), " ")
		id, err := strconv.Atoi(text)
		if err != nil || string(e.Payload) != cutPayload(id) {
			return m, fmt.Errorf("group %d of %s has an entry that nobody appended: %.40q", g.Sequence, g.Name, e.Payload)
		}
		m.IDs = append(m.IDs, id)
	}
	return m, nil
}

// cutPayload returns the payload of an entry: most are small.
func cutPayload(id int) string {
	r := rand.New(rand.NewPCG(uint64(id), 1))
	size := r.IntN(600)
	if r.IntN(12) == 0 {
		size = r.IntN(12000)
	}
	filler := strconv.FormatUint(r.Uint64(), 36)
	return fmt.Sprint(id, " ", strings.Repeat(filler, size/len(filler)))
}

// cutEntry returns an entry. Every third one has an idempotency key.
func cutEntry(id int) queue.Entry {
	e := queue.Entry{Payload: []byte(cutPayload(id)), Rows: 1}
	if id%3 == 0 {
		e.Key = fmt.Sprint("key ", id)
		e.Fingerprint[0] = byte(id)
		e.Expires = time.Now().Add(24 * time.Hour)
	}
	return e
}

// workload appends to a spool and drains it, on storage that is being recorded.
type workload struct {
	t     *testing.T
	r     *rand.Rand
	s     *Spool
	mu    sync.Mutex // guards the fields below, and keeps the marks in order
	marks *os.File
	kill  int // marks until the process is to end; 0: it closes the spool
	dying atomic.Bool
	// What the destination has, with the entries that it refused.
	stored map[string]map[groupName]markGroup
	unsure map[entryName]bool // entries that earlier processes did not acknowledge
}

// TestPowerCutWorkload runs in the processes that TestPowerCut records.
func TestPowerCutWorkload(t *testing.T) {
	work, dir, ok := strings.Cut(os.Getenv(workloadVariable), " ")
	if !ok {
		return
	}
	end, text, _ := strings.Cut(work, "-")
	number, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	if end == "repair" {
		if _, flaws, err := Repair(t.Context(), workloadFile(dir), time.Now()); err != nil || len(flaws) > 0 {
			t.Fatalf("repair: %v, %v", flaws, err)
		}
		return
	}
	w := &workload{t: t, r: rand.New(rand.NewPCG(uint64(number), 2)), stored: map[string]map[groupName]markGroup{"/a": {}, "/b": {}}, unsure: map[entryName]bool{}}
	checkpoint := 20
	if end == "fail" {
		checkpoint = 1000 // the log is synced last
	}
	if err := w.open(dir, checkpoint); err != nil {
		t.Fatal(err)
	}
	if end != "close" {
		w.kill = 40 + w.r.IntN(150)
	}
	w.resend()
	w.run(number * 1000)
}

func workloadFile(dir string) string { return filepath.Join(dir, "disk", "data", "spool", "s.db") }

// open reads the marks of earlier processes and opens the spool, which copies the log into
// the file after that many pages.
func (w *workload) open(dir string, checkpoint int) error {
	marks, err := os.OpenFile(filepath.Join(dir, "marks"), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	w.marks = marks
	history, err := os.ReadFile(marks.Name())
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(history)) {
		var m mark
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			return err
		}
		switch m.Kind {
		case markTry:
			w.unsure[entryName{m.Name, m.ID}] = true
		case markAck:
			delete(w.unsure, entryName{m.Name, m.ID})
		case markStore:
			w.keep(m)
		}
	}
	// Steps that a spool takes seldom come often here: checkpoints, and the return of
	// space to the disk. Synced runs on the goroutine that writes.
	cfg, steps := testConfig(), rand.New(rand.NewPCG(w.r.Uint64(), 3))
	cfg.Synced = func(int, int, time.Duration) {
		w.die()
		sql := ""
		switch steps.IntN(12) {
		case 0:
			sql = "PRAGMA wal_checkpoint(TRUNCATE)"
		case 1, 2:
			sql = "PRAGMA incremental_vacuum(3)"
		default:
			return
		}
		if err := sqlitex.ExecuteTransient(w.s.file.writer, sql, nil); err != nil {
			w.t.Errorf("%s: %v", sql, err)
		}
	}
	w.s = openAt(w.t, workloadFile(dir), cfg)
	return sqlitex.ExecuteTransient(w.s.file.writer, fmt.Sprint("PRAGMA wal_autocheckpoint = ", checkpoint), nil)
}

// resend appends the entries with keys again that earlier processes did not acknowledge, as
// their clients do, unless the destination has them.
func (w *workload) resend() {
	for name, groups := range w.stored {
		for _, g := range groups {
			for _, id := range g.IDs {
				delete(w.unsure, entryName{name, id})
			}
		}
	}
	for entry := range w.unsure {
		if e := cutEntry(entry.id); e.Key == "" {
			continue
		} else if _, err := w.s.Append(w.t.Context(), entry.name, e); err != nil {
			w.t.Errorf("append %d again: %v", entry.id, err)
			continue
		}
		w.say(mark{Kind: markAck, Name: entry.name, ID: entry.id})
	}
}

// keep notes what the destination has stored.
func (w *workload) keep(m mark) {
	for _, g := range m.Groups {
		w.stored[m.Name][g.groupName] = g
	}
}

// say writes a mark.
func (w *workload) say(m mark) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.marks.Write(m.line()); err != nil {
		w.t.Error(err)
	}
	if w.kill--; w.kill == 0 {
		w.dying.Store(true)
	}
}

// die kills the process if enough has happened. It runs on the goroutine that writes, so that
// no write is cut off: the trace would not show how much of it was made.
func (w *workload) die() {
	if w.dying.Load() {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
}

// run appends and drains until the process ends.
func (w *workload) run(id int) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var drains sync.WaitGroup
	drain := func(name string) {
		r := rand.New(rand.NewPCG(w.r.Uint64(), 4))
		drains.Go(func() {
			err := w.s.Drain(ctx, name, 4000, destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) { return w.store(r, name, groups) }))
			if err != nil {
				w.t.Error(err)
			}
		})
	}
	drain("/a")
	if w.r.IntN(2) == 0 {
		drain("/b")
	}
	for range 14 {
		var writers sync.WaitGroup
		for range 1 + w.r.IntN(4) {
			name, first, n := []string{"/a", "/b"}[w.r.IntN(2)], id+1, 1+w.r.IntN(4)
			id += n
			writers.Go(func() {
				for i := range n {
					w.append(name, first+i)
				}
			})
		}
		writers.Wait()
	}
	w.mu.Lock()
	alive := w.kill > 0
	w.mu.Unlock()
	if alive { // the marks did not suffice
		w.dying.Store(true)
		w.append("/a", id+1)
	}
	cancel()
	drains.Wait()
	closeSpool(w.t, w.s)
}

func (w *workload) append(name string, id int) {
	w.say(mark{Kind: markTry, Name: name, ID: id})
	if _, err := w.s.Append(context.Background(), name, cutEntry(id)); err != nil {
		w.t.Errorf("append %d: %v", id, err)
		return
	}
	w.say(mark{Kind: markAck, Name: name, ID: id})
}

// errNotNow is the error of a destination that stored nothing, or does not say so.
var errNotNow = errors.New("not now")

// store is the destination of a drain. It stores some of the groups, refuses some of their
// entries, and recognizes groups that it has. Like a table, it outlives the processes.
func (w *workload) store(r *rand.Rand, name string, groups []queue.Group) (queue.Stored, error) {
	hand, stored := mark{Kind: markHand, Name: name}, mark{Kind: markStore, Name: name}
	taken := 1 + r.IntN(len(groups))
	var result queue.Stored
	for i, g := range groups {
		m, err := nameGroup(g)
		if err != nil {
			return queue.Stored{}, err
		}
		hand.Groups = append(hand.Groups, m)
		if i >= taken {
			continue
		}
		before, known := w.stored[name][m.groupName]
		for at, id := range m.IDs {
			if refused := id%7 == 0; refused {
				m.Dead = append(m.Dead, id)
				result.Dead = append(result.Dead, queue.DeadLetter{
					Name: name, Sequence: g.Sequence, At: g.Entries[at].At, Rows: 1, Reason: "refused", Payload: g.Entries[at].Payload,
				})
			}
		}
		if known && fmt.Sprint(before.IDs) != fmt.Sprint(m.IDs) {
			w.t.Errorf("group %d of %s was stored with %v, and has %v", g.Sequence, name, before.IDs, m.IDs)
		}
		stored.Groups = append(stored.Groups, m)
	}
	result.Groups = taken
	w.say(hand)
	outcome := r.IntN(8)
	if outcome == 0 {
		return queue.Stored{}, errNotNow
	}
	w.say(stored)
	w.mu.Lock()
	w.keep(stored)
	w.mu.Unlock()
	if outcome == 1 {
		return queue.Stored{}, errNotNow // the answer is lost
	}
	return result, nil
}
