package result

import (
	"errors"
	"fmt"
)

// MaxSeconds bounds every length of time in a file: 30 days.
const MaxSeconds = 30 * 24 * 3600

var errNegative = errors.New("a count or a time is negative")

// check refuses figures that no run can have made, so that those who compute with them need not.
func (s *Step) check() error {
	if s.Connections < 0 || s.PerConnection < 0 || s.OfferedHz < 0 || s.OfferedEndHz < 0 || s.Requests < 0 {
		return fmt.Errorf("step %d: %w", s.Index, errNegative)
	}
	return checkSeconds(s.Start, s.Duration, s.Warmup, s.TimeoutLimit)
}

func (s *Slice) check() error {
	if s.Second < 0 || s.Second > MaxSeconds {
		return fmt.Errorf("second %d is outside of any run", s.Second)
	}
	if s.Connections < 0 || s.InFlight < 0 || s.Backlog < 0 {
		return fmt.Errorf("second %d: %w", s.Second, errNegative)
	}
	if err := s.Counters.check(); err != nil {
		return fmt.Errorf("second %d: %w", s.Second, err)
	}
	return checkSeconds(s.Length)
}

func (t *Total) check() error {
	if err := t.Counters.check(); err != nil {
		return fmt.Errorf("total of step %d: %w", t.Step, err)
	}
	return checkSeconds(t.Elapsed)
}

func (c *Counters) check() error {
	for _, n := range []int64{c.Due, c.Sent, c.Done, c.BytesIn, c.BytesOut, c.Connects, c.Reconnects, c.Reads, c.Writes, c.Others} {
		if n < 0 {
			return errNegative
		}
	}
	for _, n := range c.Errors {
		if n < 0 {
			return errNegative
		}
	}
	return nil
}

func checkSeconds(times ...float64) error {
	for _, t := range times {
		if t < 0 || t > MaxSeconds {
			return fmt.Errorf("%g s is outside of any run", t)
		}
	}
	return nil
}
