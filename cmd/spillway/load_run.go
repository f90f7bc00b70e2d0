package main

import (
	"errors"
	"fmt"
	"strings"

	"spillway/internal/load"
	"spillway/internal/result"
)

// loadRun keeps the records of a run while it goes on.
type loadRun struct {
	run      result.Run
	writer   *result.Writer // nil without a result file
	progress *loadProgress
	elapsed  float64 // seconds, to the end of the last step
}

func (c *loadCmd) newLoadRun(env *environment, config *load.Config) (*loadRun, error) {
	r := &loadRun{progress: newLoadProgress(env.stderr, c.ReportInterval, config)}
	r.run.Header = c.header(env)
	if c.Out == "" {
		return r, nil
	}
	var err error
	if r.writer, err = result.Create(c.Out); err != nil {
		return nil, usageError{err}
	}
	return r, r.writer.WriteHeader(r.run.Header)
}

// listener keeps and writes every record. The seconds are kept in the file
// only: a run of days takes no more memory than one of a minute.
func (r *loadRun) listener() load.Listener {
	return load.Listener{
		Step: func(s *result.Step) error {
			r.run.Steps = append(r.run.Steps, result.StepRun{Step: *s})
			r.progress.step(s)
			if r.writer == nil {
				return nil
			}
			return r.writer.WriteStep(*s)
		},
		Second: func(s *load.Second) error {
			r.progress.second(s)
			if r.writer == nil {
				return nil
			}
			return r.writer.WriteSlice(&s.Slice)
		},
		Total: func(t *result.Total) error {
			last := &r.run.Steps[len(r.run.Steps)-1]
			last.Total = *t
			r.elapsed = last.Start + t.Elapsed
			r.progress.total(t)
			if r.writer == nil {
				return nil
			}
			return r.writer.WriteTotal(t)
		},
	}
}

// end closes the books and the file.
func (r *loadRun) end(interrupted bool) error {
	r.progress.clear()
	r.run.End = result.End{Reason: result.Finished, Elapsed: r.elapsed}
	if interrupted {
		r.run.End.Reason = result.Interrupted
	}
	if r.writer == nil {
		return nil
	}
	return errors.Join(r.writer.WriteEnd(r.run.End), r.writer.Close())
}

// missed is a failedError that names the steps that missed the SLO.
func (r *loadRun) missed() error {
	var misses []string
	for i := range r.run.Steps {
		step := &r.run.Steps[i]
		for _, criterion := range step.Total.SLO {
			if !criterion.Met {
				misses = append(misses, fmt.Sprintf("%s at %s", criterion.Text, step.Name))
			}
		}
	}
	if len(misses) == 0 {
		return nil
	}
	return failedError{fmt.Errorf("SLO missed: %s", strings.Join(misses, ", "))}
}
