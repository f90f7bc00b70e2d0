package load

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Merge puts the parts of a load together, as result.Merge does, and completes the verdicts: it judges on the sum what no
// part can judge alone. Its errors are mistakes of the user.
func Merge(parts []*result.Run) (*result.Run, error) {
	merged, err := result.Merge(parts)
	if err != nil {
		return nil, err
	}
	slo, err := result.ParseSLO(merged.Header.SLO)
	if err != nil {
		return nil, err
	}
	late := 0.0
	for i := range merged.Steps {
		if err := judgeSum(slo, &merged.Steps[i]); err != nil {
			return nil, fmt.Errorf("judge step %d: %w", i, err)
		}
		late = max(late, merged.Steps[i].Late)
	}
	merged.Header.Notes = append([]string{clocksOf(merged.Header.Parts, late)}, merged.Header.Notes...)
	return merged, nil
}

// clocksOf states the clocks of the parts and how late the latest step of one began, in seconds.
func clocksOf(parts []result.Header, late float64) string {
	var clocks []string
	for i := range parts {
		clocks = append(clocks, fmt.Sprintf("that of %s is %s", parts[i].PartName(), parts[i].Part.Clock))
	}
	return fmt.Sprintf("The parts of the load began by the clocks of their hosts: %s. No step began more than %s after its planned time.",
		strings.Join(clocks, ", "), sheet.Duration(late))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// judgeSum completes the verdict on the sum of the parts of a step. It returns an error if a histogram cannot be read.
func judgeSum(slo result.SLO, sum *result.StepRun) error {
	t := &sum.Total
	if t.Validity == result.Unjudged {
		return nil // the file of a part ended before the step did
	}
	s := &stepRun{config: &Config{SLO: slo}, step: &Step{
		Rate: sum.OfferedHz, Connections: sum.Step.Connections, Duration: seconds(sum.Duration), Requests: sum.Step.Requests,
	}}
	late, err := s.sumLag(t)
	if err != nil {
		return err
	}
	if late != nil {
		t.Blame(late.because(result.PacerLag))
	}
	if late == nil && t.Overloaded && len(t.Missed()) == 0 {
		t.Blame(result.Reason{
			Code: result.Backlog, Verdict: result.NotStationary,
			Text: "the backlog grew, and latencies depend on the length of the step; use a lower --rate",
		})
	}
	if p := s.tooFew(t); p != nil {
		t.Blame(p.because(result.TooFewAnswers))
	}
	if late != nil {
		t.Overloaded = false // the cause may be the hosts of the parts
	}
	slices.SortStableFunc(t.Reasons, func(a, b result.Reason) int { return b.Verdict.Severity() - a.Verdict.Severity() })
	return nil
}

// sumLag is judgeLag of the sum of the parts, which carries percentiles that no part does. The reason may be another
// program on the host of a part.
func (s *stepRun) sumLag(t *result.Total) (*problem, error) {
	lags, err := histogram.Decode(string(t.Latency.Lag))
	if err != nil {
		return nil, fmt.Errorf("read the pacer lag: %w", err)
	}
	reason := s.lateness(lags, func(label string) histogram.Censored {
		times, errTimes := requestsNamed(t, label).Latency.Responses()
		err = errors.Join(err, errTimes)
		return times
	})
	if err != nil || reason == "" {
		return nil, err
	}
	verdict := result.GeneratorLimited
	if t.Validity == result.HostContended {
		verdict = result.HostContended
	}
	return &problem{verdict, reason + "; use more parts, or stop what else runs on their hosts"}, nil
}
