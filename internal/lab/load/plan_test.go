package load

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway/internal/lab/target"
)

func TestPlan(t *testing.T) {
	f := func(rates, connections string, duration time.Duration, requests int64, sql bool, want ...Step) {
		t.Helper()
		got, err := ParseSteps(rates, connections, duration, requests, sql)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q %q: %s", rates, connections, diff)
		}
	}
	const second = time.Second
	f("", "", 0, 0, false, Step{Connections: 10, Duration: 10 * second})
	f("", "", 0, 50, false, Step{Connections: 10, Requests: 50})
	f("", "1, 4", second, 50, true, Step{Connections: 1, Duration: second, Requests: 50}, Step{Connections: 4, Duration: second, Requests: 50})
	f("100,200.5", "", 2*second, 0, false,
		Step{Rate: 100, Connections: 1000, Duration: 2 * second}, Step{Rate: 200.5, Connections: 1000, Duration: 2 * second})
	f("5", "", 0, 0, true, Step{Rate: 5, Connections: 10, Duration: 10 * second})
	f("5", "1,2", second, 0, false, Step{Rate: 5, Connections: 1, Duration: second}, Step{Rate: 5, Connections: 2, Duration: second})
	f("10", "", 0, 20, false, Step{Rate: 10, Connections: 1000, Requests: 20})

	for _, test := range [][3]string{
		{"x", "", "--rate"},
		{"0", "", "--rate"},
		{"-1", "", "--rate"},
		{"1e9", "", "at most"},
		{"1,,2", "", "--rate"},
		{"1..2/30s", "", "--rate"},
		{"", "0", "--connections"},
		{"", "1,x", "--connections"},
		{"", "100000", "--connections"},
		{"1,2", "3,4", "both lists"},
	} {
		if _, err := ParseSteps(test[0], test[1], second, 0, false); err == nil || !strings.Contains(err.Error(), test[2]) {
			t.Errorf("%q %q: %v, want %q", test[0], test[1], err, test[2])
		}
	}
	if _, err := ParseSteps("", "", -second, 0, false); err == nil {
		t.Error("a negative duration was taken")
	}
}

func FuzzPlan(f *testing.F) {
	f.Add("100,5", "", int64(5))
	f.Add("", "1,4", int64(0))
	f.Fuzz(func(t *testing.T, rates, connections string, milliseconds int64) {
		steps, err := ParseSteps(rates, connections, time.Duration(milliseconds%1e6)*time.Millisecond, 0, false)
		if err != nil {
			return
		}
		for _, s := range steps {
			if s.Connections < 1 || s.Duration <= 0 || s.Rate < 0 || math.IsNaN(s.Rate) {
				t.Fatalf("%+v", s)
			}
		}
	})
}

// TestSplit checks that the parts of a step add up to it, with differences of at most one.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "parts")
		whole := Step{
			Rate: 100, Connections: rapid.IntRange(1, 100).Draw(t, "connections"), Requests: rapid.Int64Range(0, 100).Draw(t, "requests"),
		}
		backlog := rapid.IntRange(0, 100).Draw(t, "backlog")
		var connections []int
		var requests []int64
		sum, waiting := Step{}, 0
		for i := range n {
			own, err := Split([]Step{whole}, backlog, target.Part{Number: i, Of: n})
			if tooMany := whole.Connections < n || whole.Requests > 0 && whole.Requests < int64(n) || backlog > 0 && backlog < n; tooMany != (err != nil) {
				t.Fatalf("%d parts for %+v and a backlog of %d: %v", n, whole, backlog, err)
			}
			if err != nil {
				return
			}
			sum.Connections += own[0].Connections
			sum.Requests += own[0].Requests
			waiting += own[0].backlogLimit(backlog, target.Part{Number: i, Of: n})
			if own[0].Name != "100/s" || own[0].Rate != 100 {
				t.Fatalf("part %d is %+v", i, own[0])
			}
			connections, requests = append(connections, own[0].Connections), append(requests, own[0].Requests)
		}
		if want := whole.backlogLimit(backlog, target.Part{}); waiting != want {
			t.Fatalf("%d may wait in %d parts, %d in the whole", waiting, n, want)
		}
		if sum.Connections != whole.Connections || sum.Requests != whole.Requests ||
			slices.Max(connections)-slices.Min(connections) > 1 || slices.Max(requests)-slices.Min(requests) > 1 {
			t.Fatalf("%+v is split into %v and %v", whole, connections, requests)
		}
	})
}

// TestSplitClosedLoop checks that the connections of all parts have the same number of requests, so that the parts end together.
func TestSplitClosedLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const backlog = 0
		n := rapid.IntRange(1, 64).Draw(t, "parts")
		whole := Step{Connections: rapid.IntRange(n, 60000).Draw(t, "connections"), Requests: rapid.Int64Range(int64(n), math.MaxInt64).Draw(t, "requests")}
		sum := int64(0)
		for i := range n {
			own, err := Split([]Step{whole}, backlog, target.Part{Number: i, Of: n})
			if err != nil {
				t.Fatal(err)
			}
			got, want := own[0].Requests, float64(whole.Requests)*float64(own[0].Connections)/float64(whole.Connections)
			if sum += got; got < 1 || math.Abs(float64(got)-want) > 3+want*1e-9 {
				t.Fatalf("part %d of %d of %+v: %d connections with %d requests, want %.1f", i, n, whole, own[0].Connections, got, want)
			}
		}
		if sum != whole.Requests {
			t.Fatalf("%d requests, want %d", sum, whole.Requests)
		}
	})
}
