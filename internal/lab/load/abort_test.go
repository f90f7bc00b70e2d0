package load

import (
	"strings"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

func TestAbort(t *testing.T) {
	slice := func(good, failed int64) *result.Slice {
		s := &result.Slice{Length: 1, Counters: result.Counters{Done: good, Completed: good}}
		s.Errors[result.Timeout] = failed
		l := newLatencies(histogram.NewSlice)
		l.response.RecordN(time.Millisecond, good)
		l.responseUnanswered.RecordN(2*time.Second, failed)
		var err error
		if s.Latency, err = l.encode(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	good, bad, idle := slice(100, 0), slice(50, 50), slice(0, 0)
	for _, c := range []struct {
		text    string
		seconds []*result.Slice
		at      int // second of the abort; -1: none
		want    string
	}{
		{"errors>20% for 3s", []*result.Slice{bad, bad, good, bad, bad, bad}, 5, "aborted: errors>20% for 3s (50 % in the last second)"},
		{"errors>20% for 3s", []*result.Slice{bad, bad, idle, bad, bad}, -1, ""},
		{"errors>50%", []*result.Slice{bad}, -1, ""},
		{"errors>=50%", []*result.Slice{good, bad}, 1, "(50 % in"},
		{"p99>1s for 2s", []*result.Slice{good, bad, bad}, 2, "(>= 1.99 s in"},
		{"rate<60 for 2s", []*result.Slice{good, bad, idle}, 2, "(0/s in"},
	} {
		a, err := parseAbort(c.text)
		if err != nil {
			t.Fatal(err)
		}
		at, reason := -1, ""
		for i := 0; i < len(c.seconds) && at < 0; i++ {
			if reason, err = a.second(c.seconds[i]); err != nil {
				t.Fatal(err)
			} else if reason != "" {
				at = i
			}
		}
		if at != c.at || !strings.Contains(reason, c.want) {
			t.Errorf("%s: at %d, %q, want %d, %q", c.text, at, reason, c.at, c.want)
		}
	}
	for _, text := range []string{"errors", "errors<20%", "rate>5 for 3s", "p99>1s for 3", "p99>1s for 500ms", "p99>1s for 1500ms", "p99>1s errors>1%", "p99{a}>1s", "p99>1 for 3s"} {
		if _, err := parseAbort(text); err == nil || !strings.Contains(err.Error(), "--abort") {
			t.Errorf("%q was taken: %v", text, err)
		}
	}
}
