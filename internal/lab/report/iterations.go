package report

import (
	"fmt"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Iterations are the iterations of a flow that ended in a step.
type Iterations struct {
	Completed  int64   `json:"completed"`
	Failed     int64   `json:"failed"`
	Unfinished int64   `json:"unfinished"` // in progress when the step ended
	Rate       float64 `json:"rate_hz"`    // completed per second
	Duration   Figures `json:"duration"`   // of completed ones, with think times
}

// iterationsOf returns the iterations of a step, nil without a flow.
func iterationsOf(t *result.Total) (*Iterations, error) {
	if t.Iterations == nil {
		return nil, nil
	}
	duration, err := histogram.Decode(string(t.Iterations.Duration))
	if err != nil {
		return nil, fmt.Errorf("duration of iterations: %w", err)
	}
	i := &Iterations{
		Completed: t.Iterations.Completed, Failed: t.Iterations.Failed, Unfinished: t.Iterations.Unfinished, Duration: figuresOf(exact(duration)),
	}
	if t.Elapsed > 0 {
		i.Rate = float64(i.Completed) / t.Elapsed
	}
	return i, nil
}

// text describes the iterations in one line.
func (i *Iterations) text() string {
	line := fmt.Sprintf("iterations of the flow: %s completed (%s), %s failed, %s in progress at the end",
		sheet.Integer(i.Completed), sheet.Rate(i.Rate), sheet.Integer(i.Failed), sheet.Integer(i.Unfinished))
	if i.Duration.Mean != nil {
		line += fmt.Sprintf("; mean duration %s, p50 %s, p99 %s", i.Duration.text(figureMean), i.Duration.text(figureP50),
			i.Duration.text(figureP99))
	}
	return line
}
