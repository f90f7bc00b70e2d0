package load

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"spillway/internal/lab/result"
)

// An abort ends a run early when a condition holds for some seconds in a row. It is not
// safe for concurrent use.
type abort struct {
	text    string
	slo     result.SLO // the opposite of the condition
	seconds int
	held    int    // seconds in a row so far
	met     string // the reason of the end, once the condition has held long enough
}

// parseAbort parses a condition as in "errors>20% for 3s", with the figures of an SLO. It
// returns nil for "".
func parseAbort(text string) (*abort, error) {
	if text == "" {
		return nil, nil
	}
	condition, length, found := strings.Cut(text, " for ")
	a := &abort{text: text, seconds: 1}
	if found {
		d, err := time.ParseDuration(strings.TrimSpace(length))
		if err != nil || d < time.Second || d%time.Second != 0 {
			return nil, fmt.Errorf("--abort %q: %q is not a number of seconds like 3s", text, length)
		}
		a.seconds = int(d / time.Second)
	}
	opposite := strings.NewReplacer(">=", "<", ">", "<=", "<=", ">", "<", ">=").Replace(strings.TrimSpace(condition))
	if strings.ContainsAny(opposite, " ,{") {
		return nil, fmt.Errorf("--abort %q: write one condition on all requests, as in 'errors>20%% for 3s'", text)
	}
	var err error
	if a.slo, err = result.ParseSLO(opposite); err != nil {
		return nil, fmt.Errorf("--abort %q: write a figure, > (rate: <) and a limit, as in 'errors>20%% for 3s' or 'p99>1s for 3s'", text)
	}
	return a, nil
}

// follow makes the listener call stop once the condition has held long enough. A nil abort does nothing.
func (a *abort) follow(listener *Listener, stop func()) {
	if a == nil {
		return
	}
	show := listener.Second
	listener.Second = func(s *Second) error {
		reason, err := a.second(&s.Slice)
		if reason != "" {
			a.met = reason
			stop()
		}
		return errors.Join(err, show(s))
	}
}

// end returns why a run ended, and whether it was for this condition. It may be nil.
func (a *abort) end(interrupted bool) (reason string, aborted bool) {
	switch {
	case !interrupted:
		return result.Finished, false
	case a != nil && a.met != "":
		return a.met, true
	}
	return result.Interrupted, false
}

// second takes the next second of the run and returns the reason to abort it, or "".
func (a *abort) second(s *result.Slice) (reason string, err error) {
	judged, err := a.slo.Judge(&result.Total{Elapsed: s.Length, Counters: s.Counters, Latency: s.Latency})
	if err != nil {
		return "", err
	}
	c := judged[0]
	switch {
	case c.Metric != result.MetricRate && s.Requests() == 0 || c.Met:
		a.held = 0
	default:
		a.held++
	}
	if a.held < a.seconds {
		return "", nil
	}
	return fmt.Sprintf("aborted: %s (%s in the last second)", a.text, c.Value()), nil
}
