package result

import (
	"maps"
	"slices"
)

// followedSlices is how many seconds a snapshot has at most.
const followedSlices = 300

// followed is what a Recorder keeps for those who read the run while it is under way.
type followed struct {
	slices int // kept
	sums   Total
	last   Slice
}

// Snapshot is a run while it is under way.
type Snapshot struct {
	// Run has the last 300 slices. The total of the current step is the sum of its slices so far, without a verdict.
	// End.Reason is UnderWay until the run has ended.
	Run *Run
	// Sums are the counters and response times of all slices. They only grow.
	Sums Total
	Last Slice // the latest second
}

// Follow keeps what Snapshot needs. Call it before the first step.
func (r *Recorder) Follow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.followed == nil {
		r.followed = &followed{}
		r.run.End.Reason = UnderWay
	}
}

// add adds a second to the current step.
func (f *followed) add(run *Run, s *Slice) error {
	step := &run.Steps[len(run.Steps)-1]
	t := &step.Total
	t.Step, t.Validity = s.Step, Unjudged
	t.addSlice(s)
	var err error
	if t.Latency, err = mergeLatencies([]Latency{t.Latency, s.Latency}); err != nil {
		return err
	}
	f.sums.Add(&s.Counters)
	responses := Latency{Response: s.Latency.Response, ResponseUnanswered: s.Latency.ResponseUnanswered}
	if f.sums.Latency, err = mergeLatencies([]Latency{f.sums.Latency, responses}); err != nil {
		return err
	}
	f.last = *s
	step.Slices = append(step.Slices, *s)
	if f.slices++; f.slices > followedSlices {
		first := slices.IndexFunc(run.Steps, func(s StepRun) bool { return len(s.Slices) > 0 })
		run.Steps[first].Slices = run.Steps[first].Slices[1:]
		f.slices--
	}
	return nil
}

// Snapshot returns a copy of the run so far. Follow must have been called.
func (r *Recorder) Snapshot() *Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := r.run
	run.Header.Notes = slices.Clone(run.Header.Notes)
	run.Samples = slices.Clone(run.Samples)
	run.Steps = slices.Clone(run.Steps)
	for i := range run.Steps {
		run.Steps[i].Slices = slices.Clone(run.Steps[i].Slices)
		run.Steps[i].Total.Statuses = maps.Clone(run.Steps[i].Total.Statuses) // the next second changes the map
	}
	sums := r.followed.sums
	sums.Statuses = nil
	return &Snapshot{Run: &run, Sums: sums, Last: r.followed.last}
}
