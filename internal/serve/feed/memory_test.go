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
	values  func(ctx context.Context, args []string) error // nil: every value is good
	reads   int                                            // Read of whole windows
	pages   int                                            // other Reads
	walks   int                                            // Keys
	walked  int                                            // the largest Skip seen
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

// counted returns the number of statements that counted rows.
func (t *table) counted() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.walks
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

func (t *table) enter(ctx context.Context, args []string) error {
	t.mu.Lock()
	latency, down, values := t.latency, t.down, t.values
	t.mu.Unlock()
	if values != nil {
		if err := values(ctx, args); err != nil {
			return err
		}
	}
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return down
}

// run returns the ids of r.
func (t *table) run(r Range) []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, end := 0, len(t.ids)
	if r.After != "" {
		end, _ = slices.BinarySearch(t.ids, id(r.After))
	}
	if r.Until != "" {
		first, _ = slices.BinarySearch(t.ids, id(r.Until))
	}
	end -= r.Skip
	var ids []int
	for i := end - 1; i >= first && len(ids) < r.Limit; i-- {
		ids = append(ids, t.ids[i])
	}
	return ids
}

func (t *table) Read(ctx context.Context, r Range, rows *Rows) error {
	if err := t.enter(ctx, r.Args); err != nil {
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
	if err := t.enter(ctx, r.Args); err != nil {
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

func (t *table) Columns() []Column { return nil }

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
		SweepBytes: 64 << 20,
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
