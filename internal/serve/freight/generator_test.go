package freight

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// full is the data set of the freight measurements: about 10.8 million orders.
var full = Dataset{Users: 1_000_000, Days: 366, PerDay: 30_000, Seed: 1}

func TestValidate(t *testing.T) {
	t.Parallel()
	f := func(d Dataset, want string) {
		t.Helper()
		err := d.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Validate(%s) = %v, want %q", d, err, want)
		}
	}
	f(full, "")
	f(Demo(), "")
	f(Dataset{Users: 1, Days: 1}, "")
	f(Dataset{Users: 100_000_000, Days: 3660, PerDay: 500_000, Seed: math.MaxInt64}, "")
	f(Dataset{Users: 0, Days: 1}, "--users must be 1 to 100000000, not 0")
	f(Dataset{Users: -1, Days: 1}, "--users must be")
	f(Dataset{Users: 100_000_001, Days: 1}, "--users must be")
	f(Dataset{Users: 1, Days: 0}, "--days must be 1 to 3660, not 0")
	f(Dataset{Users: 1, Days: 3661}, "--days must be")
	f(Dataset{Users: 1, Days: 1, PerDay: -1}, "--per-day must be 0 to the number of users (1), not -1")
	f(Dataset{Users: 1, Days: 1, PerDay: 2}, "--per-day must be")
	f(Dataset{Users: 100_000_000, Days: 3660, PerDay: 600_000}, "--days x --per-day must be at most 2000000000, not 2196000000")
	f(Dataset{Users: 1, Days: 1, Seed: math.MaxInt64 + 1}, "--random-seed must be")
}

func TestOrderCount(t *testing.T) {
	t.Parallel()
	if got := NewGenerator(Demo()).OrderCount(); got != 200_000 {
		t.Errorf("the demo has %d orders, its comment says 200,000", got)
	}
	if got := NewGenerator(full).OrderCount(); got != 10_801_319 {
		t.Errorf("the full data set has %d orders, the manual says 10,801,319", got)
	}
}

// TestGolden pins the rows: a data set must stay the same from release to release.
func TestGolden(t *testing.T) {
	t.Parallel()
	g := NewGenerator(Dataset{Users: 1000, Days: 366, PerDay: 50, Seed: 1})
	hash := sha256.New()
	writeRows(hash, userRows(g))
	writeRows(hash, orderRows(g))
	const want = "89d67c4988fa9bedd783ef11366a543e8d0491ad8cfac807744d72c1101821c3"
	if got := fmt.Sprintf("%x", hash.Sum(nil)); got != want {
		t.Errorf("hash of the rows is %s, want %s", got, want)
	}
	users, orders := userRows(g), orderRows(g)
	first := slices.Concat(users[0], orders[0], orders[len(orders)-1])
	readable := []string{
		"1", "13800000001", "13800000001", "2016-09-07 23:39:50",
		"1", "2015-12-02 01:20:58", "744", "4a42d7a0d374db8f83666b9221484974",
		"17890", "2016-11-30 23:58:05", "814", "644cafb54362d517573f0ae6070ea83f",
	}
	if diff := cmp.Diff(readable, first); diff != "" {
		t.Errorf("first user, first and last order (-want +got):\n%s", diff)
	}
}

// userRows returns the users as a database returns them.
func userRows(g *Generator) [][]string {
	var rows [][]string
	for u := range g.Users() {
		mobile := string(u.Mobile(nil))
		rows = append(rows, []string{fmt.Sprint(u.ID), mobile, mobile, string(appendTime(nil, u.Created))})
	}
	return rows
}

// orderRows returns the orders as a database returns them.
func orderRows(g *Generator) [][]string {
	var rows [][]string
	for o := range g.Orders() {
		rows = append(rows, []string{fmt.Sprint(o.ID), string(appendTime(nil, o.Created)), fmt.Sprint(o.UserID), string(o.Goods[:])})
	}
	return rows
}

func writeRows(w io.Writer, rows [][]string) {
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "|"))
	}
}

func drawDataset(t *rapid.T) Dataset {
	d := Dataset{
		Users: rapid.IntRange(1, 300).Draw(t, "users"),
		Days:  rapid.IntRange(1, 400).Draw(t, "days"),
		Seed:  rapid.Uint64Range(0, math.MaxInt64).Draw(t, "seed"),
	}
	d.PerDay = rapid.IntRange(0, d.Users).Draw(t, "per day")
	return d
}

// TestRules checks every row against a simple implementation of the documented rules.
func TestRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawDataset(t)
		g := NewGenerator(d)
		registered := make(map[int]time.Time)
		first := time.Date(2015, time.December, 1, 0, 0, 0, 0, time.UTC)
		for u := range g.Users() {
			at := time.Unix(u.Created, 0).UTC()
			if u.ID != len(registered)+1 || at.Before(first) || at.After(first.AddDate(0, 0, 364)) {
				t.Fatalf("user %d of %d registered at %s", u.ID, len(registered)+1, at)
			}
			if got, want := string(u.Mobile(nil)), fmt.Sprint(13800000000+u.ID); got != want {
				t.Fatalf("mobile %s, want %s", got, want)
			}
			registered[u.ID] = at
		}
		if len(registered) != d.Users {
			t.Fatalf("%d users", len(registered))
		}
		byDay := checkOrders(t, g, registered)
		for day := range d.Days {
			midnight := first.AddDate(0, 0, day)
			eligible := 0
			for _, at := range registered {
				if at.Before(midnight) {
					eligible++
				}
			}
			if got, want := byDay[midnight], min(d.PerDay, eligible); got != want {
				t.Fatalf("%d orders on %s, want %d", got, midnight, want)
			}
			delete(byDay, midnight)
		}
		if len(byDay) > 0 {
			t.Fatalf("orders on other days: %v", byDay)
		}
	})
}

// checkOrders checks the rules that concern one order or two, and counts by day.
func checkOrders(t *rapid.T, g *Generator, registered map[int]time.Time) map[time.Time]int {
	byDay := make(map[time.Time]int)
	seen := make(map[string]bool)
	var last Order
	for o := range g.Orders() {
		at := time.Unix(o.Created, 0).UTC()
		midnight := at.Truncate(24 * time.Hour)
		if o.ID != last.ID+1 || o.Created < last.Created {
			t.Fatalf("order %d at %d comes after order %d at %d", o.ID, o.Created, last.ID, last.Created)
		}
		if by, ok := registered[o.UserID]; !ok || !by.Before(midnight) {
			t.Fatalf("order %d of %s by user %d, registered at %s", o.ID, at, o.UserID, by)
		}
		pair := fmt.Sprint(midnight, o.UserID)
		if seen[pair] {
			t.Fatalf("user %d ordered twice on %s", o.UserID, midnight)
		}
		if strings.Trim(string(o.Goods[:]), "0123456789abcdef") != "" {
			t.Fatalf("goods %q", o.Goods)
		}
		seen[pair] = true
		byDay[midnight]++
		last = o
	}
	if last.ID != g.OrderCount() {
		t.Fatalf("%d orders, announced %d", last.ID, g.OrderCount())
	}
	return byDay
}

// TestDaysStandAlone checks that a day's orders do not depend on the days generated before.
func TestDaysStandAlone(t *testing.T) {
	t.Parallel()
	g := NewGenerator(Dataset{Users: 500, Days: 100, PerDay: 30, Seed: 9})
	want := slices.Collect(g.Orders())
	var got []Order
	var sample sampler
	for day := 99; day >= 0; day-- {
		got = append(slices.Collect(g.day(day, &sample)), got...)
	}
	if !slices.Equal(want, got) {
		t.Errorf("the days' orders, generated backwards (-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestStreamsDiffer(t *testing.T) {
	t.Parallel()
	seen := make(map[uint64]string)
	for seed := range uint64(100) {
		for number := range uint64(100) {
			name := fmt.Sprint(seed, "/", number)
			first := stream(seed, number).Uint64()
			if other, ok := seen[first]; ok {
				t.Fatalf("streams %s and %s start with the same number", name, other)
			}
			seen[first] = name
		}
	}
}

// TestPickIsUniform counts how often each number and each pair of neighbours is
// drawn. The source is seeded, so the test always sees the same draws.
func TestPickIsUniform(t *testing.T) {
	t.Parallel()
	const n, count, rounds = 40, 10, 40_000
	random := stream(3, 14)
	var sample sampler
	var single, pair [n]int
	for range rounds {
		picked := slices.Clone(sample.pick(random, count, n))
		slices.Sort(picked)
		for i, number := range picked {
			single[number]++
			if i > 0 && picked[i-1] == number-1 {
				pair[number]++
			}
		}
	}
	within := func(what string, number, got int, p float64) {
		t.Helper()
		if off := math.Abs(float64(got)-rounds*p) / math.Sqrt(rounds*p*(1-p)); off > 4.5 {
			t.Errorf("%s %d drawn %d times, %.1f standard deviations off", what, number, got, off)
		}
	}
	for number := range n {
		within("number", number, single[number], float64(count)/n)
		if number > 0 {
			within("pair", number, pair[number], float64(count*(count-1))/(n*(n-1)))
		}
	}
}

func BenchmarkOrders(b *testing.B) {
	g := NewGenerator(full)
	b.ResetTimer()
	for b.Loop() {
		for range g.Orders() {
		}
	}
	b.ReportMetric(float64(g.OrderCount())*float64(b.N)/b.Elapsed().Seconds(), "orders/s")
}
