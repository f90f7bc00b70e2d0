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
		got, err := Plan(rates, connections, duration, requests, sql)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q %q: %s", rates, connections, diff)
		}
	}
	const second = time.Second
	rate := func(from, to float64, over time.Duration) Profile { return Profile{From: from, To: to, Over: over} }
	f("", "", 0, 0, false, Step{Connections: 10, Duration: 10 * second})
	f("", "", 0, 50, false, Step{Connections: 10, Requests: 50})
	f("", "1, 4", second, 50, true, Step{Connections: 1, Duration: second, Requests: 50}, Step{Connections: 4, Duration: second, Requests: 50})
	f("100,200.5", "", 2*second, 0, false,
		Step{Profile: rate(100, 100, 2*second), Connections: 1000, Duration: 2 * second}, Step{Profile: rate(200.5, 200.5, 2*second), Connections: 1000, Duration: 2 * second})
	f("5", "", 0, 0, true, Step{Profile: rate(5, 5, 10*second), Connections: 10, Duration: 10 * second})
	f("5", "1,2", second, 0, false, Step{Profile: rate(5, 5, second), Connections: 1, Duration: second}, Step{Profile: rate(5, 5, second), Connections: 2, Duration: second})
	f("0..3000/30s,3000", "7", second, 0, false,
		Step{Profile: rate(0, 3000, 30*second), Connections: 7, Duration: 30 * second}, Step{Profile: rate(3000, 3000, second), Connections: 7, Duration: second})
	f("10", "", 0, 20, false, Step{Profile: rate(10, 10, 0), Connections: 1000, Requests: 20})

	for _, test := range [][3]string{
		{"x", "", "--rate"},
		{"0", "", "--rate"},
		{"-1", "", "--rate"},
		{"1e9", "", "at most"},
		{"1,,2", "", "--rate"},
		{"1..2/x", "", "not a duration"},
		{"", "0", "--connections"},
		{"", "1,x", "--connections"},
		{"", "100000", "--connections"},
		{"1,2", "3,4", "both lists"},
	} {
		if _, err := Plan(test[0], test[1], second, 0, false); err == nil || !strings.Contains(err.Error(), test[2]) {
			t.Errorf("%q %q: %v, want %q", test[0], test[1], err, test[2])
		}
	}
	if _, err := Plan("1..2", "", 0, 5, false); err == nil || !strings.Contains(err.Error(), "requires a duration") {
		t.Errorf("a ramp without a length: %v", err)
	}
	if _, err := Plan("", "", -second, 0, false); err == nil {
		t.Error("a negative duration was taken")
	}
}

func FuzzPlan(f *testing.F) {
	f.Add("100..3000/30s,5", "", int64(5))
	f.Add("", "1,4", int64(0))
	f.Fuzz(func(t *testing.T, rates, connections string, milliseconds int64) {
		steps, err := Plan(rates, connections, time.Duration(milliseconds%1e6)*time.Millisecond, 0, false)
		if err != nil {
			return
		}
		for _, s := range steps {
			if s.Connections < 1 || s.Duration <= 0 || s.Profile.From < 0 || s.Profile.To < 0 || math.IsNaN(s.Profile.From+s.Profile.To) {
				t.Fatalf("%+v", s)
			}
		}
	})
}

// TestSplit checks that the shares of a step add up to it, with differences of at most one.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "generators")
		whole := Step{
			Profile: Constant(100, time.Second), Connections: rapid.IntRange(1, 100).Draw(t, "connections"), Requests: rapid.Int64Range(0, 100).Draw(t, "requests"),
		}
		var connections []int
		var requests []int64
		sum := Step{}
		for i := range n {
			own, err := Split([]Step{whole}, target.Share{Number: i, Of: n})
			if tooMany := whole.Connections < n || whole.Requests > 0 && whole.Requests < int64(n); tooMany != (err != nil) {
				t.Fatalf("%d generators for %+v: %v", n, whole, err)
			}
			if err != nil {
				return
			}
			sum.Connections += own[0].Connections
			sum.Requests += own[0].Requests
			connections, requests = append(connections, own[0].Connections), append(requests, own[0].Requests)
		}
		if sum.Connections != whole.Connections || sum.Requests != whole.Requests ||
			slices.Max(connections)-slices.Min(connections) > 1 || slices.Max(requests)-slices.Min(requests) > 1 {
			t.Fatalf("%+v is split into %v and %v", whole, connections, requests)
		}
	})
}

// TestSplitClosedLoop checks that the connections of all shares have the same number of requests, so that the shares end together.
func TestSplitClosedLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 64).Draw(t, "generators")
		whole := Step{Connections: rapid.IntRange(n, 60000).Draw(t, "connections"), Requests: rapid.Int64Range(int64(n), math.MaxInt64).Draw(t, "requests")}
		sum := int64(0)
		for i := range n {
			own, err := Split([]Step{whole}, target.Share{Number: i, Of: n})
			if err != nil {
				t.Fatal(err)
			}
			got, want := own[0].Requests, float64(whole.Requests)*float64(own[0].Connections)/float64(whole.Connections)
			if sum += got; got < 1 || math.Abs(float64(got)-want) > 3+want*1e-9 {
				t.Fatalf("share %d of %d of %+v: %d connections with %d requests, want %.1f", i, n, whole, own[0].Connections, got, want)
			}
		}
		if sum != whole.Requests {
			t.Fatalf("%d requests, want %d", sum, whole.Requests)
		}
	})
}
