package experiment

import "spillway/internal/lab/result"

// timelineGap is what stands between two levels of a timeline, in seconds: the wait between them is left out.
const timelineGap = 1

// A timeline joins the levels of a turn into one run.
type timeline struct {
	variant string
	run     *result.Run
	end     float64
}

// add puts a level behind those before.
func (t *timeline) add(level *result.Run, name string) {
	if t.run == nil {
		t.run = &result.Run{Header: level.Header, End: result.End{Reason: result.Finished}, Watches: level.Watches}
		t.run.Header.Label = t.variant
	} else {
		t.end += timelineGap
	}
	step := level.Steps[0]
	shift := t.end - step.Start
	step.Index, step.Start, step.Name = len(t.run.Steps), t.end, name
	t.end += step.Total.Elapsed
	for _, sample := range level.Samples {
		sample.At += shift
		if sample.At >= step.Start && sample.At <= t.end {
			t.run.Samples = append(t.run.Samples, sample)
		}
	}
	t.run.Steps = append(t.run.Steps, step)
	t.run.End.Elapsed = t.end
}
