package main

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
)

// loadRun keeps the records of a run while it goes on.
type loadRun struct {
	record
	progress *loadProgress
	elapsed  float64 // seconds, to the end of the last step
}

func (c *loadCmd) newLoadRun(env *environment, config *load.Config, w *watchers) (*loadRun, error) {
	r := &loadRun{progress: newLoadProgress(env.stderr, c.ReportInterval, config)}
	r.out, r.clear = env.stderr, r.progress.clear
	r.run.Watches = w.watches()
	r.run.Header = c.header(env)
	return r, r.create(c.Out)
}

// openWatch prepares what the flags name; nil when they name nothing.
func (c *loadCmd) openWatch(env *environment) (*watchers, error) {
	if !c.given() {
		return nil, nil
	}
	var ports []int
	if u, err := url.Parse(c.Target); err == nil && onLoopback(u.Hostname()) && c.Socket == "" {
		if port := portOf(u.Host); port != 0 {
			ports = append(ports, port)
		}
	}
	return c.open(env.ctx, env.log, ports...)
}

func onLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// watch keeps samples beside the load until stop is called.
func (r *loadRun) watch(ctx context.Context, w *watchers) (stop func() error) {
	if w == nil {
		return func() error { return nil }
	}
	return w.run(ctx, r.run.Header.StartedAt, r.sample)
}

// listener keeps and writes every record. The seconds are kept in the file
// only: a run of days takes no more memory than one of a minute.
func (r *loadRun) listener() load.Listener {
	return load.Listener{
		Step: func(s *result.Step) error {
			r.Lock()
			defer r.Unlock()
			r.run.Steps = append(r.run.Steps, result.StepRun{Step: *s})
			r.progress.step(s)
			if r.writer == nil {
				return nil
			}
			return r.writer.WriteStep(*s)
		},
		Second: func(s *load.Second) error {
			r.Lock()
			defer r.Unlock()
			r.progress.second(s)
			if r.writer == nil {
				return nil
			}
			return r.writer.WriteSlice(&s.Slice)
		},
		Total: func(t *result.Total) error {
			r.Lock()
			defer r.Unlock()
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

// end closes the books and the file. Nobody else may use the run any more.
func (r *loadRun) end(interrupted bool) error {
	r.progress.clear()
	r.run.End = result.End{Reason: result.Finished, Elapsed: r.elapsed}
	if interrupted {
		r.run.End.Reason = result.Interrupted
	}
	return r.close()
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
