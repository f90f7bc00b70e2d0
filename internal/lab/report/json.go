package report

import (
	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
)

// A Document is one run in the JSON format. Several runs are an object with a list "runs".
type Document struct {
	Format   string         `json:"format"` // "spillway-load"
	Version  string         `json:"version"`
	Headline string         `json:"headline"`
	Caveat   string         `json:"caveat,omitempty"`
	Label    string         `json:"label"`
	Header   result.Header  `json:"run"`
	Steps    []DocumentStep `json:"steps"`
	End      *result.End    `json:"end"` // null if the file is cut off
	CutOff   string         `json:"cut_off,omitempty"`

	Watches     []result.Watch `json:"watches,omitempty"`
	Watch       *result.Usage  `json:"watch,omitempty"` // over the whole run, if it has no steps
	WatchErrors []WatchError   `json:"watch_errors,omitempty"`
	Search      *peak.Document `json:"search,omitempty"` // of a search for a peak
}

// A DocumentStep is one load level in a Document.
type DocumentStep struct {
	Step          int     `json:"step"`
	Name          string  `json:"name,omitempty"`
	Loop          string  `json:"loop"`
	Arrival       string  `json:"arrival,omitempty"`
	OfferedHz     float64 `json:"offered_hz"` // 0 in a closed loop
	Connections   int     `json:"connections"`
	ThinkTimes    bool    `json:"think_times,omitempty"`
	PerConnection int     `json:"per_connection"` // 0: unlimited
	Elapsed       float64 `json:"elapsed_seconds"`

	DocumentAnswers
	Lag       Figures `json:"lag"`
	Connect   Figures `json:"connect"`
	FirstByte Figures `json:"first_byte"`
	Clamped   int64   `json:"above_range,omitempty"`

	Labels     []DocumentLabel `json:"labels,omitempty"`     // one per named request of a mix
	Iterations *Iterations     `json:"iterations,omitempty"` // of a flow

	ConnectionStats result.ConnectionStats `json:"connection_stats"`
	Little          result.Little          `json:"little"`
	Cost            result.Cost            `json:"cost"`
	Hosts           []result.HostShare     `json:"hosts,omitempty"`
	CPUPerRequest   float64                `json:"cpu_seconds_per_request"`
	SLO             []result.Criterion     `json:"slo,omitempty"`
	Overloaded      bool                   `json:"overloaded,omitempty"`
	Validity        result.Validity        `json:"validity"`
	Reasons         []string               `json:"reasons,omitempty"`
	ReasonCodes     []result.ReasonCode    `json:"reason_codes,omitempty"` // one per reason
	Watch           *result.Usage          `json:"watch,omitempty"`
}

// DocumentAnswers are the requests of a step, or of one of its named requests.
type DocumentAnswers struct {
	Requests int64 `json:"requests"` // answered, failed or never sent
	result.Counters
	Rate       float64 `json:"rate_hz"` // good answers within the step
	ErrorTotal int64   `json:"error_total"`
	ErrorShare float64 `json:"error_share"`
	Response   Figures `json:"response"`
	Service    Figures `json:"service"`
}

// A DocumentLabel is the part of a step that belongs to one named request.
type DocumentLabel struct {
	Name string `json:"name"`
	DocumentAnswers
	SLO []result.Criterion `json:"slo,omitempty"` // the criteria with this name; those of the step have them too
}

// documentVersion gets a new first number if a field changes its meaning or is removed.
const documentVersion = "1.2"

func (r *run) document() Document {
	h := r.headline()
	d := Document{
		Format: "spillway-load", Version: documentVersion, Headline: h.Text, Caveat: h.Caveat,
		Label: r.label, Header: r.Header, CutOff: r.CutOff, Steps: []DocumentStep{},
		Watches: r.Watches, Watch: r.usage, WatchErrors: r.watchErrors(),
	}
	if r.search != nil {
		d.Search = r.search.Document("")
	}
	if r.CutOff == "" {
		d.End = &r.End
	}
	for _, s := range r.steps {
		d.Steps = append(d.Steps, s.document())
	}
	return d
}

func (s *step) document() DocumentStep {
	t := &s.Total
	d := DocumentStep{
		Step: s.Index, Name: s.Name, Loop: s.Loop, Arrival: s.Arrival, OfferedHz: s.OfferedHz,
		Connections: s.Step.Connections, ThinkTimes: s.ThinkTimes, PerConnection: s.PerConnection, Elapsed: t.Elapsed,
		DocumentAnswers: s.answers(), Lag: figuresOf(exact(s.lag)), Connect: figuresOf(exact(s.connect)),
		FirstByte: figuresOf(exact(s.firstByte)), Clamped: t.Clamped,
		ConnectionStats: t.Connections, Little: t.Little, Cost: t.Cost, Hosts: t.Hosts, CPUPerRequest: s.cpuPerRequest(),
		SLO: t.SLO, Overloaded: t.Overloaded, Validity: t.Validity, Reasons: t.Sentences(), ReasonCodes: t.Codes(), Watch: s.usage,
		Iterations: s.iterations,
	}
	for _, l := range s.labels {
		d.Labels = append(d.Labels, DocumentLabel{Name: l.request, DocumentAnswers: l.answers(), SLO: l.Total.SLO})
	}
	return d
}

func (s *step) answers() DocumentAnswers {
	t := &s.Total
	return DocumentAnswers{
		Requests: t.Requests(), Counters: t.Counters, Rate: t.Rate(), ErrorTotal: t.Errors.Total(), ErrorShare: t.ErrorShare(),
		Response: s.figures, Service: figuresOf(s.service),
	}
}

func documents(runs []*run) any {
	if len(runs) == 1 {
		return runs[0].document()
	}
	all := struct {
		Runs []Document `json:"runs"`
	}{Runs: []Document{}}
	for _, r := range runs {
		all.Runs = append(all.Runs, r.document())
	}
	return all
}
