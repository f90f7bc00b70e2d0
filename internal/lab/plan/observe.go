package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// An observation is a VALID step with the connections that were asked for.
type observation struct {
	source   *Source
	step     *result.StepRun
	rate     float64
	offered  float64 // requests per second that the step offered, at least rate: an overloaded target answers fewer
	open     bool    // of an open loop: it tells whether the SLO is met at its rate
	met      bool
	failed   bool   // it missed a criterion; with too few requests for a percentile a step may neither meet nor miss the SLO
	missed   string // the criteria that were not met, with their figures
	cost     bool   // its usage per request is that of good answers
	usage    *result.Usage
	ceilings []*Ceiling
}

// of returns the step's ceilings of a kind of resource.
func (o *observation) of(resource Resource) []*Ceiling {
	return slices.DeleteFunc(slices.Clone(o.ceilings), func(c *Ceiling) bool { return c.Resource != resource })
}

// used is the share of a pool of cores that processes used, NaN if none was watched.
func (o *observation) used(pool string, processes []*Ceiling) float64 {
	sum, known := 0.0, false
	for _, c := range o.of(ProcessCPU) {
		named := func(p *Ceiling) bool { return p.Host == c.Host && p.Subject == c.Subject }
		if c.pool == pool && slices.ContainsFunc(processes, named) {
			sum, known = sum+c.Utilization, true
		}
	}
	if !known {
		return math.NaN()
	}
	return sum
}

// ceiling is the step's ceiling of a resource, nil if it was not watched.
func (o *observation) ceiling(of *Ceiling) *Ceiling {
	for _, c := range o.of(of.Resource) {
		if c.Host == of.Host && c.Subject == of.Subject {
			return c
		}
	}
	return nil
}

// perIteration is how many requests an iteration of a run has, 1 without iterations. Requests of iterations that failed or did not
// end are counted, too, so that the lowest number of a step is the nearest one.
func perIteration(run *result.Run) float64 {
	least := math.Inf(1)
	for i := range run.Steps {
		if t := &run.Steps[i].Total; t.Iterations != nil && t.Iterations.Completed > 0 {
			least = min(least, float64(t.Completed)/float64(t.Iterations.Completed))
		}
	}
	if math.IsInf(least, 1) {
		return 1
	}
	return least
}

// observe reads the VALID steps of all sources. It is an error if there are none.
func (p *Plan) observe(sources []Source, slo result.SLO) ([]*observation, error) {
	var all []*observation
	other := 0 // VALID steps with other connections
	for i := range sources {
		s := &sources[i]
		use := SourceUse{File: s.File, Target: s.Run.Header.Target, Steps: len(s.Run.Steps)}
		series, requests := s.Run.Series(), perIteration(s.Run)
		for k := range s.Run.Steps {
			step := &s.Run.Steps[k]
			if step.Total.Validity != result.Valid || !(step.Total.Rate() > 0) {
				continue
			}
			if p.settings.Connections != "" && connectionsOf(step) != p.settings.Connections {
				other++
				continue
			}
			o := &observation{
				source: s, step: step, rate: step.Total.Rate(), open: step.Loop == result.LoopOpen,
				offered: max(step.Total.Rate(), step.OfferedHz*requests), cost: !step.Total.Overloaded &&
					step.Total.ErrorShare() <= result.ErrorShareMax,
			}
			if err := o.judge(slo); err != nil {
				return nil, exit.UsageError(err)
			}
			o.ceilings, o.usage = ceilingsOf(s.Run, k, series, p.settings.cpus(s))
			all = append(all, o)
			use.Valid++
			if o.met && o.open {
				use.Met++
			}
		}
		p.Sources = append(p.Sources, use)
	}
	switch {
	case len(all) > 0:
		return all, nil
	case other > 0:
		return nil, exit.NothingValidError(fmt.Errorf("no VALID step has %s connections: measure them with 'spillway load --per-connection %s'",
			p.settings.Connections,
			map[string]string{Short: "1", KeepAlive: "0"}[p.settings.Connections]))
	}
	return nil, exit.NothingValidError(errors.New("no step is VALID: 'spillway report' names the reasons; repeat the runs"))
}

// cpus are the cores of processes as told by the user, otherwise by the source.
func (s *Settings) cpus(source *Source) map[string]Share {
	all := maps.Clone(source.CPUs)
	if all == nil {
		all = map[string]Share{}
	}
	for name, n := range s.CPUs {
		all[name] = Share{Pool: "process " + name, Cores: n, told: true}
	}
	return all
}

// connectionsOf tells whether a step opened a connection per request.
func connectionsOf(step *result.StepRun) string {
	if float64(step.Total.Connects) >= shortConnections*float64(step.Total.Completed) {
		return Short
	}
	return KeepAlive
}

// judge compares the step with the SLO. A step with too few requests for a percentile of the SLO does not meet it.
func (o *observation) judge(slo result.SLO) error {
	criteria, err := slo.Judge(&o.step.Total)
	if err != nil {
		return fmt.Errorf("%s, step %s: %w", o.source.File, o.step.Title(), err)
	}
	times, err := o.step.Total.Latency.Responses()
	if err != nil {
		return fmt.Errorf("%s, step %s: %w", o.source.File, o.step.Title(), err)
	}
	var missed []string
	for _, c := range criteria {
		if !c.Met {
			missed = append(missed, c.Text)
		}
	}
	if o.step.Total.Overloaded {
		missed = append(missed, "the backlog grew") // a longer step misses any limit
	}
	o.failed = len(missed) > 0
	for _, q := range slo.Percentiles() {
		if q.Label == "" && !times.Carries(q.Q) {
			missed = append(missed, fmt.Sprintf("too few requests for p%g", q.Q*100))
		}
	}
	o.missed, o.met = strings.Join(missed, ", "), len(missed) == 0
	return nil
}

// A search is the VALID steps of an open loop of one group: the highest rate that met the SLO, and the lowest above it that did
// not.
type search struct {
	met, missed *observation // nil: none
}

// searches returns the searches of all groups that have a step that met the SLO, by its rate. every has the steps of all, and
// those that tell no costs.
func searches(all, every []*observation) []search {
	groups := map[string]*search{}
	for _, o := range all {
		group := o.group()
		if groups[group] == nil {
			groups[group] = &search{}
		}
		g := groups[group]
		if o.open && o.met && o.cost && (g.met == nil || o.rate > g.met.rate) {
			g.met = o
		}
	}
	for _, o := range every {
		g := groups[o.group()]
		if g != nil && g.met != nil && o.open && o.failed && o.offered > g.met.offered && (g.missed == nil || o.offered < g.missed.offered) {
			g.missed = o
		}
	}
	var found []search
	for _, g := range groups {
		if g.met != nil {
			found = append(found, *g)
		}
	}
	slices.SortFunc(found, func(a, b search) int {
		return cmp.Or(cmp.Compare(a.met.rate, b.met.rate), cmp.Compare(a.met.source.File, b.met.source.File))
	})
	return found
}

// group is what the searches of a step's source have in common.
func (o *observation) group() string { return cmp.Or(o.source.Group, o.source.File) }

// lowestMiss returns the step of an open loop with the lowest rate that missed the SLO, and the step with the highest rate below
// it that met the SLO; nil: none.
func lowestMiss(every []*observation) (missed, met *observation) {
	for _, o := range every {
		if o.open && o.failed && (missed == nil || o.offered < missed.offered) {
			missed = o
		}
	}
	for _, o := range every {
		if missed != nil && o.open && o.met && o.offered < missed.offered && (met == nil || o.rate > met.rate) {
			met = o
		}
	}
	return missed, met
}

// operatingPoint is the step with the highest rate that met the SLO. If several runs found a higher rate that missed it, it is
// that of the median of these runs, the lower one of two, so that one lucky run does not decide.
func operatingPoint(all, every []*observation, slo string) (*observation, error) {
	found := searches(all, every)
	if len(found) == 0 {
		return nil, noOperatingPoint(all, slo)
	}
	bracketed := slices.DeleteFunc(slices.Clone(found), func(s search) bool { return s.missed == nil })
	if n := len(bracketed); n > 0 {
		return bracketed[(n-1)/2].met, nil
	}
	return found[len(found)-1].met, nil
}

func noOperatingPoint(all []*observation, slo string) error {
	open := slices.DeleteFunc(slices.Clone(all), func(o *observation) bool { return !o.open })
	if len(open) == 0 {
		return exit.NothingValidError(errors.New("no VALID step has an open loop, which alone tells the rate that meets an SLO: add a run " +
			"of 'spillway load --rate' or 'spillway peak'"))
	}
	lowest := slices.MinFunc(open, func(x, y *observation) int { return cmp.Compare(x.rate, y.rate) })
	return exit.FailedError(fmt.Errorf("no VALID step met %s: %s in %s missed it (%s); add a run at lower rates", slo, lowest.step.Title(),
		lowest.source.File, lowest.missed))
}
