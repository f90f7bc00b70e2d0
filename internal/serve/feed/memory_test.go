package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"spillway/internal/serve/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table is a simple model of a feed's database: a sorted list of ids, of which the largest is
// the newest, and counters of the statements.
type table struct {
	mu      sync.Mutex
	ids     []int // ascending
	note    map[int]string
	down    error
	latency time.Duration
	reads   int // Read of whole windows
	pages   int // other Reads
	walks   int // Keys
	walked  int // the largest Skip seen
}

func newTable(n int) *table {
	t := &table{note: map[int]string{}}
	for i := range n {
		t.ids = append(t.ids, 10*(i+1))
	}
	return t
}

func (t *table) insert(id int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, found := slices.BinarySearch(t.ids, id); !found {
		t.ids = slices.Insert(t.ids, i, id)
	}
}

func (t *table) remove(id int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, found := slices.BinarySearch(t.ids, id); found {
		t.ids = slices.Delete(t.ids, i, i+1)
	}
}

func (t *table) set(change func(*table)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(t)
}

// newest returns the ids newest first.
func (t *table) newest() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := slices.Clone(t.ids)
	slices.Reverse(ids)
	return ids
}

func key(id int) Key { return Key(AppendKey(nil, KeyInteger, strconv.AppendInt(nil, int64(id), 10))) }

func id(k Key) int {
	v, err := k.Values(1)
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(v[0].Text)
	if err != nil {
		panic(err)
	}
	return n
}

func (t *table) enter(ctx context.Context) error {
	t.mu.Lock()
	latency, down := t.latency, t.down
	t.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return down
}

// run returns the ids of r, by brute force.
func (t *table) run(r Range) []int {
	ids := t.newest()
	if r.After != "" {
		after := id(r.After)
		ids = slices.DeleteFunc(ids, func(i int) bool { return i >= after })
	}
	if r.Until != "" {
		until := id(r.Until)
		ids = slices.DeleteFunc(ids, func(i int) bool { return i < until })
	}
	ids = ids[min(r.Skip, len(ids)):]
	return ids[:min(r.Limit, len(ids))]
}

func (t *table) Read(ctx context.Context, r Range, rows *Rows) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	for _, i := range t.run(r) {
		rows.Begin()
		t.mu.Lock()
		rows.Data = fmt.Appendf(rows.Data, `{"id":%d,"note":%q}`, i, t.note[i])
		t.mu.Unlock()
		rows.End(key(i))
	}
	t.set(func(t *table) {
		if r.After == "" && r.Skip == 0 {
			t.reads++
		} else {
			t.pages++
		}
		t.walked = max(t.walked, r.Skip)
	})
	return nil
}

func (t *table) Keys(ctx context.Context, r Range, every int) (Walk, error) {
	if err := t.enter(ctx); err != nil {
		return Walk{}, err
	}
	var w Walk
	for _, i := range t.run(r) {
		w.Count++
		w.Last = key(i)
		if w.Count%every == 0 {
			w.Keys = append(w.Keys, w.Last)
		}
	}
	t.set(func(t *table) { t.walks++ })
	return w, nil
}

func (t *table) Check(context.Context, int) error { return nil }

var errDown = errors.New("connection refused")

func testConfig() Config {
	return Config{
		Definition: Definition{Name: "/list", SQL: "SELECT id FROM t", Key: []KeyColumn{{Name: "id"}}},
		Window:     200,
		Refresh:    100 * time.Millisecond,
		IdleAfter:  2 * time.Second,
		StaleMax:   10 * time.Second,
		Timeout:    2 * time.Second,
		Limit:      10,
		LimitMax:   100,
		OffsetMax:  1_000_000,
		WaitersMax: 1000,
		WindowsMax: 3,
		SweepShare: 0.5,
		Gate:       queue.NewGate(4).Entrance(),
		Log:        slog.New(slog.DiscardHandler),
	}
}

// open returns a feed on t, which is closed at the end of the test.
func open(tb testing.TB, t *table, change func(*Config)) *Feed {
	tb.Helper()
	cfg := testConfig()
	if change != nil {
		change(&cfg)
	}
	f := Open(cfg, t)
	tb.Cleanup(f.Close)
	return f
}

// get requests one page and returns its ids.
func get(tb testing.TB, f *Feed, r Request) ([]int, Page) {
	tb.Helper()
	p, err := f.Page(context.Background(), time.Now(), r)
	if err != nil {
		tb.Fatalf("Page(%+v): %v", r, err)
	}
	return ids(tb, p), p
}

// ids parses the ids of a page.
func ids(tb testing.TB, p Page) []int {
	tb.Helper()
	var got []int
	rest := string(p.Data)
	for rest != "" {
		var i int
		var note string
		if _, err := fmt.Sscanf(rest, `{"id":%d,"note":%q}`, &i, &note); err != nil {
			tb.Fatalf("page %q: %v", p.Data, err)
		}
		got = append(got, i)
		rest = rest[len(fmt.Sprintf(`{"id":%d,"note":%q}`, i, note)):]
		if rest != "" {
			if rest[0] != ',' {
				tb.Fatalf("page %q: no comma", p.Data)
			}
			rest = rest[1:]
		}
	}
	if len(got) != p.Rows {
		tb.Fatalf("page says %d rows and holds %d", p.Rows, len(got))
	}
	return got
}
