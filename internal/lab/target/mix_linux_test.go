package target

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		requests, err := parseRequests(strings.NewReader(text), "h", "")
		if err != nil {
			t.Fatal(err)
		}
		tg := open(t, Config{URL: "http://127.0.0.1/", Requests: requests})
		if got := tg.Names(); !slices.Equal(got, want) {
			t.Errorf("%.50q: names %q, want %q", text, got, want)
		}
	}
	f("GET /a")
	f("name=a GET /a", "a")
	f("GET /a?x={random(1,2)}\nname=b POST /b body\nPOST /b other\nname=b GET /c", "GET /a?x={random(1,2)}", "b", "POST /b")
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, "GET /%d\nPUT /%d\n", i, i)
	}
	f(many.String()+"name=c GET /c", "GET", "PUT", "c")

	many.Reset()
	for i := range namesMax + 1 {
		fmt.Fprintf(&many, "name=n%d GET /\n", i)
	}
	requests, err := parseRequests(strings.NewReader(many.String()), "h", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{URL: "http://127.0.0.1/", Requests: requests, Timeout: 1}); err == nil || !strings.Contains(err.Error(), "more than 32 names") {
		t.Errorf("%d names: %v", namesMax+1, err)
	}

	redis := open(t, Config{URL: "redis://127.0.0.1/", Commands: []string{"name=read GET a", "SET 'a b' c"}})
	if got, want := redis.Names(), []string{"read", "SET 'a b' c"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	if _, err := parseCommand("name=a{ GET a"); err == nil {
		t.Error("a name with a brace was taken")
	}
}

// TestMixLabels draws requests whose connection is refused too: each outcome has
// the name that was drawn.
func TestMixLabels(t *testing.T) {
	m, err := newMix([]mixEntry{{weight: 1, name: "a"}, {weight: 3, text: "b"}, {weight: 6, name: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	s := newSource()
	var counts [2]int
	for range 10000 {
		counts[m.label(m.draw(s))]++
	}
	if counts[0] < 6800 || counts[0] > 7200 {
		t.Errorf("%d of 10000 are a, want about 7000", counts[0])
	}
	requests, err := parseRequests(strings.NewReader("9 GET /a\nGET /b"), "h", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, insecure := range []string{"http", "https"} {
		tg := open(t, Config{URL: insecure + "://" + refusing(t), Requests: requests})
		seen := map[int]int{}
		var outcomes []Outcome
		if tg.EventLoop() {
			outcomes, _ = drive(t, tg, 1, 200)
		} else {
			outcomes, _ = exchangeAll(t, tg, 200)
		}
		for _, o := range outcomes {
			if o.Err == nil {
				t.Fatalf("outcome %+v", o)
			}
			seen[o.Request]++
		}
		if seen[0] < 140 || seen[1] < 2 || len(seen) != 2 {
			t.Errorf("%s: refused requests by name: %v, want about 180 and 20", insecure, seen)
		}
	}
}
