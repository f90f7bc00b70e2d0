package stream

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naive is a simple model of the queue: one list, searched from the front.
type naive struct {
	waiting []*ticket
	running [][]*ticket
	ordered bool
}

// mayGo reports whether a request may join a batch now. With an order, no request of the same
// lane may wait before it or be in another batch.
func (n *naive) mayGo(t *ticket, batch []*ticket) bool {
	if !n.ordered {
		return n.waiting[0] == t
	}
	for _, before := range n.waiting {
		if before == t {
			break
		}
		if before.lanes&t.lanes != 0 {
			return false
		}
	}
	for _, other := range n.running {
		for _, r := range other {
			if r.lanes&t.lanes != 0 && !slices.Contains(batch, r) {
				return false
			}
		}
	}
	return true
}

func (n *naive) anyMayGo() bool {
	return slices.ContainsFunc(n.waiting, func(t *ticket) bool { return n.mayGo(t, nil) })
}

// drawRecords draws records of one number. No records stand for a request with only a key.
func drawRecords(t *rapid.T, schema *Schema) *Records {
	records := &Records{columns: schema.headings}
	for n := range rapid.Uint64Range(0, 5).Draw(t, "records") {
		records.grow()[0] = value{n: rapid.Uint64Range(n, 20).Draw(t, "n"), set: true}
		records.indexes = append(records.indexes, int32(n))
	}
	return records
}

// TestQueue compares the queue with the model. A batch contains only requests that may join
// it, in order and within the limits. It is empty only if no request may join. No request is
// lost.
func TestQueue(t *testing.T) {
	schema := mustSchema(t, Definition{OrderBy: "n", Columns: []Column{{Name: "n", Type: Integer}}})
	rapid.Check(t, func(t *rapid.T) {
		ordered := rapid.Bool().Draw(t, "ordered")
		committers := rapid.IntRange(1, 5).Draw(t, "committers")
		q := newLaneQueue(committers, ordered)
		model := &naive{ordered: ordered}
		held := map[int]uint64{} // by batch
		rows, bytes := 0, 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				lanes := uint64(1)
				if ordered {
					lanes = drawRecords(t, schema).lanes(len(q.lanes), schema.orderBy)
				}
				r := &ticket{rows: rapid.IntRange(1, 6).Draw(t, "rows"), bytes: rapid.IntRange(0, 60).Draw(t, "bytes"), lanes: lanes}
				q.push(r)
				model.waiting = append(model.waiting, r)
				rows, bytes = rows+r.rows, bytes+r.bytes
			},
			"take": func(t *rapid.T) {
				could := len(model.waiting) > 0 && model.anyMayGo()
				taken, lanes := q.take(10, 100)
				if (len(taken) > 0) != could {
					t.Fatalf("took %d where something may go: %v", len(taken), could)
				}
				sum, size := 0, 0
				for i, r := range taken {
					if !model.mayGo(r, taken) {
						t.Fatalf("request %d of the batch may not go yet", i)
					}
					model.waiting = slices.DeleteFunc(model.waiting, func(w *ticket) bool { return w == r })
					sum, size = sum+r.rows, size+r.bytes
				}
				if len(taken) > 1 && (sum > 10 || size > 100) {
					t.Fatalf("a batch of %d rows and %d bytes", sum, size)
				}
				rows, bytes = rows-sum, bytes-size
				if len(taken) > 0 {
					model.running = append(model.running, taken)
					held[len(model.running)-1] = lanes
				}
			},
			"release": func(t *rapid.T) {
				n := rapid.IntRange(0, max(0, len(model.running)-1)).Draw(t, "batch")
				if lanes, ok := held[n]; ok {
					q.release(lanes)
					model.running[n] = nil
					delete(held, n)
				}
			},
			"": func(t *rapid.T) {
				if q.rows != rows || q.bytes != bytes || q.empty() != (len(model.waiting) == 0) {
					t.Fatalf("%d rows, %d bytes, want %d and %d", q.rows, q.bytes, rows, bytes)
				}
				count := 0
				for _, r := range model.waiting {
					count += bits.OnesCount64(r.lanes)
				}
				for i := range q.lanes {
					count -= len(q.lanes[i].tickets) - q.lanes[i].head
				}
				if count != 0 {
					t.Fatalf("the lanes hold %d too few", count)
				}
			},
		})
	})
}

// TestBisect refuses a random set of rows. Bisection must find exactly these with a limited
// number of inserts, and insert the others in order.
func TestBisect(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 300).Draw(t, "rows")
		bad := map[int]bool{}
		for range rapid.IntRange(0, 20).Draw(t, "bad") {
			bad[rapid.IntRange(0, max(0, n-1)).Draw(t, "row")] = true
		}
		var stored, refused []int
		calls := 0
		insert := func(rows []Row) (*RowRefusal, error) {
			calls++
			for _, r := range rows {
				if bad[r.Row] {
					return &RowRefusal{Reason: "bad"}, nil
				}
			}
			for _, r := range rows {
				stored = append(stored, r.Row)
			}
			return nil, nil
		}
		few := rapid.IntRange(0, 20).Draw(t, "few")
		alone := 0
		singly := func(rows []Row) error {
			if len(rows) > max(1, few) {
				t.Fatalf("%d rows one by one, where at most %d are few", len(rows), few)
			}
			for _, r := range rows {
				alone++
				if bad[r.Row] {
					refused = append(refused, r.Row)
				} else {
					stored = append(stored, r.Row)
				}
			}
			return nil
		}
		rows := make([]Row, n)
		for i := range rows {
			rows[i].Row = i
		}
		if err := new(Batch).Bisect(rows, few, insert, singly); err != nil {
			t.Fatal(err)
		}
		good := 0
		for row := range n {
			if !bad[row] {
				if stored[good] != row {
					t.Fatalf("row %d is not stored in its place", row)
				}
				good++
			}
		}
		if good != len(stored) || good+len(refused) != n || !slices.IsSorted(refused) || calls > 4*n/max(1, few)+1 || alone > n {
			t.Fatalf("%d stored, %d refused, of %d, in %d calls and %d alone", len(stored), len(refused), n, calls, alone)
		}
	})
}
