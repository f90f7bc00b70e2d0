package load

import (
	"bytes"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// TestProgressLine checks the line for each interval.
func TestProgressLine(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, 2*time.Second, 3, false)
	p.Step(&result.Step{Index: 1, Name: "100/s", Duration: 4})
	for i := range 4 {
		s := &Second{Elapsed: time.Duration(i+1) * time.Second, Response: histogram.NewSlice(), Unanswered: histogram.NewSlice()}
		s.Slice.Length, s.Slice.Completed = 1, 100
		s.Slice.Errors[result.Timeout] = int64(i)
		s.Response.RecordN(time.Millisecond, 1000)
		s.Unanswered.RecordN(2*time.Second, int64(20*(i/2)))
		p.Second(s)
	}
	want := "step 2 of 3: 100/s, 4 s\n" +
		"[   2 s]     100/s  p50      1 ms  p99      1 ms  errors 1 (timeout 1)  left 2 s\n" +
		"[   4 s]     100/s  p50      1 ms  p99 >= 1.99 s  errors 5 (timeout 5)  left 0 s\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
