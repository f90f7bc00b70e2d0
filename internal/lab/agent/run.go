package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
)

// Run runs every step on all agents. When ctx ends or an agent is lost, the current
// step ends early and is the last one.
func (g *Group) Run(ctx context.Context, zero time.Time, listener load.Listener) (end string, err error) {
	g.start = g.clock.now().Add(-time.Since(zero))
	for i := range g.config.Steps {
		if err := g.step(ctx, i, listener); err != nil {
			return result.Interrupted, err
		}
		if g.stop {
			break
		}
	}
	g.until(ctx, func(r *remote) bool { return r.ended })
	if lost := g.losses(); len(lost) > 0 {
		return strings.Join(lost, "; "), nil
	}
	switch {
	case g.full:
		return fmt.Sprintf("a step was longer than the %d seconds of all agents that the coordinator holds", slicesMax), nil
	case g.stop:
		return result.Interrupted, nil
	}
	return result.Finished, nil
}

// losses lists the agents that were lost, with the reasons.
func (g *Group) losses() []string {
	var texts []string
	for _, r := range g.remotes {
		if r.lost != nil {
			texts = append(texts, "agent "+r.name+" "+r.lost.text)
		}
	}
	return texts
}

// step runs a step, unless the run ends before it begins.
func (g *Group) step(ctx context.Context, i int, listener load.Listener) error {
	g.until(ctx, func(r *remote) bool { return r.ready > i })
	if g.stop {
		return nil
	}
	if err := g.begin(i); err != nil {
		return err
	}
	description := g.config.Describe(i, g.began.Add(g.config.Steps[i].Warmup).Sub(g.start))
	if err := listener.Step(description); err != nil {
		return err
	}
	g.border(listener, i)
	var failed error
	held := 0
	g.each(ctx, func(r *remote) bool { return r.finished > i }, func() {
		if failed == nil {
			failed = g.show(i, listener)
		}
		held = 0
		for _, r := range g.remotes {
			if step := r.step(i); step != nil {
				held += len(step.Slices)
			}
		}
		if held > slicesMax {
			g.full = true
			g.halt()
		}
	})
	if listener.Border != nil && (g.stop || g.config.Steps[i].Duration == 0) {
		listener.Border(time.Now())
	}
	merged, err := g.merge(i, description)
	if err != nil {
		return fmt.Errorf("merge the records of the agents: %w", err)
	}
	for k := range merged.Slices {
		if err := listener.Slice(&merged.Slices[k]); err != nil {
			return err
		}
	}
	for _, r := range g.remotes {
		if step := r.step(i); step != nil {
			step.Slices = nil // they are in the file
		}
	}
	if failed != nil {
		return failed
	}
	return listener.Total(&merged.Total)
}

// border tells the listener when the step begins to count and when it ends, as far
// as that is known.
func (g *Group) border(listener load.Listener, i int) {
	if listener.Border == nil {
		return
	}
	from := time.Now().Add(g.began.Add(g.config.Steps[i].Warmup).Sub(g.clock.now()))
	listener.Border(from)
	if d := g.config.Steps[i].Duration; d > 0 {
		listener.Border(from.Add(d))
	}
}

// begin tells every agent when the step begins.
func (g *Group) begin(i int) error {
	trip := time.Duration(0)
	for _, r := range g.remotes {
		_, half := r.offsets.Best()
		trip = max(trip, 2*half)
	}
	g.began, g.shown = g.clock.now().Add(lead+2*trip), 0
	for _, r := range g.remotes {
		ahead, _ := r.offsets.Best()
		line, err := encode(command{Begin: &begin{Step: i, At: g.began.Add(ahead)}})
		if err != nil {
			return err
		}
		r.late = 0
		r.send(line, g.clock.now())
	}
	return nil
}

// until takes events until done holds for every agent that is not lost.
func (g *Group) until(ctx context.Context, done func(*remote) bool) { g.each(ctx, done, func() {}) }

// each is until that calls then after every event. It tells the agents to stop when
// ctx ends or one is lost. Those that have not stopped after stopMax are lost.
func (g *Group) each(ctx context.Context, done func(*remote) bool, then func()) {
	interrupted := ctx.Done()
	patience := time.NewTimer(stopMax)
	defer patience.Stop()
	for {
		if !g.stop && len(g.losses()) > 0 {
			g.halt()
			patience.Reset(stopMax)
		}
		if !slices.ContainsFunc(g.remotes, func(r *remote) bool { return r.lost == nil && !r.ended && !done(r) }) {
			return
		}
		select {
		case e := <-g.events:
			g.take(e)
			then()
		case <-interrupted:
			interrupted = nil
			g.halt()
			patience.Reset(stopMax)
		case <-patience.C:
			if !g.stop {
				patience.Reset(stopMax)
				continue
			}
			for _, r := range g.remotes {
				if !done(r) {
					r.lose("did not stop", false, g.clock.now())
				}
			}
		}
	}
}

// halt tells every agent to stop.
func (g *Group) halt() {
	if g.stop {
		return
	}
	g.stop = true
	line, err := encode(command{Stop: true})
	if err != nil {
		panic("bug: " + err.Error())
	}
	for _, r := range g.remotes {
		r.send(line, g.clock.now())
	}
}

// show passes the seconds on that all agents have reported.
func (g *Group) show(i int, listener load.Listener) error {
	for {
		var shares []*result.Slice
		for _, r := range g.remotes {
			slice := r.second(i, g.shown)
			switch {
			case slice != nil:
				shares = append(shares, slice)
			case r.lost == nil && r.finished <= i:
				return nil // it comes later
			}
		}
		if len(shares) == 0 {
			return nil
		}
		sum := load.Second{Step: i, Response: histogram.NewSlice(), Unanswered: histogram.NewSlice()}
		sum.Slice.Step, sum.Slice.Second = i, g.shown
		for _, slice := range shares {
			if err := addSlice(&sum, slice); err != nil {
				return err
			}
		}
		if err := encodeSum(&sum); err != nil {
			return err
		}
		sum.Elapsed = time.Duration(g.shown)*time.Second + time.Duration(sum.Slice.Length*float64(time.Second))
		g.shown++
		if listener.Second == nil {
			continue
		}
		if err := listener.Second(&sum); err != nil {
			return err
		}
	}
}

// second returns a second of step i, nil if it has not come.
func (r *remote) second(i, second int) *result.Slice {
	step := r.step(i)
	if step == nil {
		return nil
	}
	k, found := slices.BinarySearchFunc(step.Slices, second, func(s result.Slice, second int) int { return s.Second - second })
	if !found {
		return nil
	}
	return &step.Slices[k]
}

// addSlice adds what the progress shows of a second.
func addSlice(sum *load.Second, slice *result.Slice) error {
	times, err := slice.Latency.Responses()
	if err != nil {
		return fmt.Errorf("read a second: %w", err)
	}
	sum.Response.Merge(times.Known)
	sum.Unanswered.Merge(times.Beyond)
	sum.Slice.Add(&slice.Counters)
	sum.Slice.Length = max(sum.Slice.Length, slice.Length)
	sum.Slice.Connections += slice.Connections
	sum.Slice.InFlight += slice.InFlight
	sum.Slice.Backlog += slice.Backlog
	return nil
}

// encodeSum sets the response times of the sum.
func encodeSum(sum *load.Second) error {
	response, err := sum.Response.Encode()
	if err != nil {
		return err
	}
	beyond, err := sum.Unanswered.Encode()
	sum.Slice.Latency = result.Latency{Response: result.HDR(response), ResponseUnanswered: result.HDR(beyond)}
	return err
}

// merge returns the sum of the shares of a step that came completely.
func (g *Group) merge(i int, description *result.Step) (*result.StepRun, error) {
	var runs []*result.Run
	var reasons []result.Reason
	for _, r := range g.remotes {
		if r.late > lateMax {
			reasons = append(reasons, result.Reason{
				Code: result.NotTogether, Verdict: result.GeneratorLimited,
				Text: fmt.Sprintf("agent %s began %v late: its host or its network is too slow", r.name, r.late.Round(time.Millisecond)),
			})
		}
		if r.lost != nil || r.finished <= i {
			reasons = append(reasons, result.Reason{
				Code: result.ShareAbsent, Verdict: result.GeneratorLimited, Text: g.absence(i, r, r.finished > i),
			})
		}
		if r.finished <= i {
			continue
		}
		header, step := r.records.Run().Header, *r.step(i)
		header.Machine.Host = "agent " + r.name
		header.StartedAt, step.Start = g.start, description.Start // the common start; r.late is how far this agent was from it
		if g.stop {
			step.Duration = 0 // no share is as long as planned
		}
		runs = append(runs, &result.Run{Header: header, Steps: []result.StepRun{step}, End: result.End{Reason: result.Finished}})
	}
	merged := &result.StepRun{Total: result.Total{Step: i, Validity: result.Valid}}
	if len(runs) > 0 {
		all, err := result.Merge(runs)
		if err != nil {
			return nil, err
		}
		merged = &all.Steps[0]
	}
	merged.Step = *description
	if len(runs) == 0 {
		merged.Total.Validity, merged.Total.Reasons = result.GeneratorLimited, reasons
		return merged, nil
	}
	return merged, g.judge(i, &merged.Total, reasons)
}

// absence says why an agent is not there at the end of a step. The others did not
// finish if it was lost after its share.
func (g *Group) absence(i int, r *remote, finished bool) string {
	consequence := "its share is not in the sum"
	if finished {
		consequence = "the others were stopped"
	}
	if r.lost == nil {
		return fmt.Sprintf("agent %s ended before the step did; %s", r.name, consequence)
	}
	return fmt.Sprintf("agent %s %s %.0f s into the step; %s", r.name, r.lost.text,
		max(r.lost.at.Sub(g.began)-g.config.Steps[i].Warmup, 0).Seconds(), consequence)
}

// judge completes the verdict on a merged step: what an agent can not judge alone.
func (g *Group) judge(i int, t *result.Total, reasons []result.Reason) error {
	if len(reasons) > 0 {
		t.Validity, t.Reasons = result.GeneratorLimited, append(reasons, t.Reasons...)
	}
	var err error
	if t.SLO, err = g.config.SLO.Judge(t); err != nil {
		return err
	}
	return g.config.JudgeSum(i, t)
}
