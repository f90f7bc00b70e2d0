// Package plan turns the measured costs of a request into the machines that a target rate needs.
//
// Ceilings applies the utilization law to one step of a load: the rate at which each watched resource is used up.
// Make joins the steps of one or more runs into a Plan: hosts, cores, connections, ports and bytes for a rate, each with the figure
// that it rests on, and what breaks first.
//
// A plan extrapolates from one application host to several with equal shares of the load. It knows nothing that was not
// watched, and says so. Only VALID steps count, and only steps of an open loop tell which rate meets an SLO. The package reads
// result files, and has no clock and no randomness.
package plan

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// The name and version of the JSON document. A minor version only adds fields.
const (
	Format  = "spillway-plan"
	Version = "1.0"
)

// Settings say what to plan for. Either RateHz or Hosts is above 0.
type Settings struct {
	RateHz      float64            // good answers per second
	Hosts       int                // application hosts whose highest rate is asked
	SLO         string             // "": that of the runs
	Headroom    float64            // part of the rate that is kept free: 0.3
	Connections string             // Short, KeepAlive, or "": as in the runs
	CPUs        map[string]float64 // cores that a process could use, by name, if the run does not tell
	Shared      []string           // processes of which there is one for all application hosts, besides databases and Redis
}

// The connections of a plan.
const (
	Short     = "short"      // a new connection per request
	KeepAlive = "keep-alive" // connections are kept open
)

// A Source is a run to plan from.
type Source struct {
	File string // named in figures
	Run  *result.Run
	// Group is equal in the files of one search for a peak.
	Group string
	CPUs  map[string]Share // of processes by name, if the run does not tell
}

// A Share is the cores of a process.
type Share struct {
	Pool  string // the same for all processes that share these cores
	Cores float64
	told  bool // by the user: it counts more than what the run tells
}

// A Plan is what a rate needs.
type Plan struct {
	Format      string       `json:"format"`
	Version     string       `json:"version"`
	RateHz      float64      `json:"rate_hz"`
	SLO         string       `json:"slo"`
	Headroom    float64      `json:"headroom_share"`
	Connections string       `json:"connections"`
	Sources     []SourceUse  `json:"sources"`
	Capacity    *Capacity    `json:"capacity,omitempty"` // of Settings.Hosts
	Lines       []Line       `json:"lines"`
	Breaks      []Break      `json:"breaks"` // by rate: what is used up as the load grows
	NotMeasured []string     `json:"not_measured"`
	Notes       []string     `json:"notes,omitempty"`
	settings    Settings     // as checked
	basis       *observation // the step that most figures rest on
	hosts       float64      // application hosts of the plan
}

// A SourceUse tells which steps of a file a plan used.
type SourceUse struct {
	File   string `json:"file"`
	Target string `json:"target"`
	Steps  int    `json:"steps"`
	Valid  int    `json:"valid"` // and of the connections that were asked for
	Met    int    `json:"met"`   // VALID steps of an open loop that met the SLO
}

// A Capacity is the highest rate of a number of application hosts.
type Capacity struct {
	Hosts          int      `json:"hosts"`
	RateHz         Estimate `json:"rate_hz"`               // at which the SLO is met, without headroom
	WithHeadroomHz float64  `json:"rate_with_headroom_hz"` // RateHz / (1 + headroom)
	Binding        string   `json:"binding"`               // what limits it
}

// An Estimate is a figure with its interval.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// A Line is one need.
type Line struct {
	Name    string   `json:"name"`              // "application hosts", "database CPU", …
	Subject string   `json:"subject,omitempty"` // processes or database
	Need    Estimate `json:"need"`
	Unit    string   `json:"unit"`    // of Need
	Formula string   `json:"formula"` // the arithmetic
	Figures []Figure `json:"figures"` // that it rests on
	Note    string   `json:"note,omitempty"`
}

// A Figure is a measured value with its range over VALID steps at half of its rate and more.
type Figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"` // seconds, share, …
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Steps int     `json:"steps"`
	File  string  `json:"file"`
	Step  string  `json:"step"`
	// AtMost: Value is an upper bound, because the counter is too coarse.
	AtMost bool `json:"at_most,omitempty"`
}

// Make plans. A wrong setting has the exit code 2, runs without a VALID step 4, and runs in which no VALID step met the SLO 1.
func Make(sources []Source, settings Settings) (*Plan, error) {
	slo, text, err := settings.check(sources)
	if err != nil {
		return nil, exit.UsageError(err)
	}
	p := &Plan{
		Format: Format, Version: Version, RateHz: settings.RateHz, SLO: text, Headroom: settings.Headroom,
		Lines: []Line{}, Breaks: []Break{}, NotMeasured: []string{}, settings: settings,
	}
	every, err := p.observe(sources, slo)
	if err != nil {
		return nil, err
	}
	if p.basis, err = operatingPoint(watchedOf(every), every, text); err != nil {
		return nil, err
	}
	every = p.alike(every, p.basis)
	all := watchedOf(every)
	if p.basis, err = operatingPoint(all, every, text); err != nil {
		return nil, err
	}
	p.Connections = connectionsOf(p.basis.step)
	b := builder{plan: p, all: all, every: every, basis: p.basis}
	if err := b.build(); err != nil {
		return nil, err
	}
	return p, nil
}

// Rates that a plan is for, in requests per second.
const (
	rateMin = 1e-6
	rateMax = 1e15
)

// check returns the SLO, and its text.
func (s *Settings) check(sources []Source) (result.SLO, string, error) {
	var none result.SLO
	bad := func(v float64) bool { return !(v >= 0) || math.IsInf(v, 0) }
	switch {
	case bad(s.RateHz) || s.Hosts < 0 || (s.RateHz > 0) == (s.Hosts > 0):
		return none, "", errors.New("plan needs either --rate R, requests per second above 0, or --hosts N")
	case s.RateHz > 0 && (s.RateHz < rateMin || s.RateHz > rateMax):
		return none, "", fmt.Errorf("--rate %g: write requests per second from %g to %g", s.RateHz, rateMin, rateMax)
	case bad(s.Headroom) || s.Headroom > 10:
		return none, "", errors.New("--headroom: write a part of the rate from 0% to 1000%, as 30%")
	case s.Connections != "" && s.Connections != Short && s.Connections != KeepAlive:
		return none, "", fmt.Errorf("--connections %s: use %s or %s", s.Connections, Short, KeepAlive)
	case len(sources) == 0:
		return none, "", errors.New("plan needs --from RUN, a result file of 'spillway load -o RUN --watch …'")
	}
	for _, source := range sources {
		if one, other := workload(sources[0].Run), workload(source.Run); one != other {
			return none, "", fmt.Errorf("%s loads %s and %s loads %s: plan each workload alone", sources[0].File, one, source.File, other)
		}
	}
	text := s.SLO
	if text == "" {
		text = sources[0].Run.Header.SLO
		for _, source := range sources {
			if source.Run.Header.SLO != text {
				return none, "", fmt.Errorf("the runs have different SLOs (%q, %q): give the one to plan for with --slo", text, source.Run.Header.SLO)
			}
		}
	}
	slo, err := result.ParseSLO(text)
	if err == nil && strings.TrimSpace(text) == "" {
		err = errors.New("the runs have no SLO: give the one to plan for, as --slo 'p99<70ms'")
	}
	return slo, text, err
}

// workload tells what a run loads: the target without its address, which may differ between runs.
func workload(run *result.Run) string {
	u, err := url.Parse(run.Header.Target)
	if err != nil {
		return run.Header.Target
	}
	return u.Scheme + ":" + u.RequestURI()
}
