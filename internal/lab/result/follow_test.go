package result

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSnapshot: the sums of a snapshot cover every second, its slices the last ones, and later seconds do not change it.
func TestSnapshot(t *testing.T) {
	run := sampleRun(t, "a", sampleStart)
	r, err := NewRecorder("", run.Header, nil, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	r.Follow()
	step := &run.Steps[0]
	if err := r.Step(&step.Step); err != nil {
		t.Fatal(err)
	}
	const seconds = followedSlices + 50
	var before *Snapshot
	for i := range seconds {
		slice := step.Slices[i%3]
		slice.Second = i
		if err := r.Slice(&slice); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			before = r.Snapshot()
		}
	}
	if got := before.Run.Steps[0].Total; got.Done != 30 || got.Statuses[502] != 3 || count(t, got.Latency.Response) != 30 || got.Elapsed != 3 {
		t.Errorf("after 3 seconds: %+v", got.Counters)
	}
	s := r.Snapshot()
	if got := s.Run.Steps[0]; len(got.Slices) != followedSlices || got.Slices[0].Second != 50 || got.Total.Done != 10*seconds || s.Run.End.Reason != UnderWay {
		t.Errorf("%d slices from %d, %d requests, %s", len(got.Slices), got.Slices[0].Second, got.Total.Done, s.Run.End.Reason)
	}
	if s.Sums.Done != 10*seconds || count(t, s.Sums.Latency.Response) != 10*seconds || s.Last.Second != seconds-1 {
		t.Errorf("sums %+v, last second %d", s.Sums.Counters, s.Last.Second)
	}
	if err := r.Total(&step.Total); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Close(End{Reason: Finished}); err != nil {
		t.Fatal(err)
	}
	s = r.Snapshot()
	if diff := cmp.Diff(step.Total, s.Run.Steps[0].Total); diff != "" || s.Run.End.Reason != Finished || s.Sums.Done != 10*seconds {
		t.Errorf("%s after the end, sums %d:\n%s", s.Run.End.Reason, s.Sums.Done, diff)
	}
}
