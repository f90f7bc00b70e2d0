// Package result defines the result of a load run and its file format.
//
// A file is lines of JSON: a header with the command, machine and limits; for each load level a step record, one slice
// record per second and a total record; then an end record. Slices and totals hold counters and encoded histograms, so a
// file grows with time, not with the request rate. docs/reference/json.md describes every field.
//
// Recorder and WriteFile write the stream, Read reads it as a Run, and Merge puts the files of the parts of a load together.
// Series and UsageOf turn samples of watched processes, hosts and databases into figures. The validity of a step is
// decided by package load.
package result

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/sheet"
)

// Name and version in the header. A reader rejects another major version. A minor version only adds fields.
const (
	Format       = "spillway-result"
	VersionMajor = 1
	VersionMinor = 2
)

// A Header is the manifest: the first record of a file.
type Header struct {
	Format  string `json:"format"`  // set in the file
	Version string `json:"version"` // "major.minor", set in the file

	Run       string      `json:"run,omitempty"`   // name of the run, equal in all parts of a load
	Label     string      `json:"label,omitempty"` // name of this run in a comparison
	StartedAt time.Time   `json:"started_at"`      // wall clock of the host; steps and samples count from here
	Command   []string    `json:"command"`         // as typed, redacted by RedactArgs
	Tool      string      `json:"tool"`            // version of spillway
	Go        string      `json:"go"`              // version of Go
	Seed      uint64      `json:"seed"`            // of all random choices
	Target    string      `json:"target"`          // URL, redacted by RedactURL
	SLO       string      `json:"slo,omitempty"`   // as typed, "p99<70ms errors<0.5%"
	Machine   Machine     `json:"machine"`         // the host that made the load
	Hosts     []HostShare `json:"hosts,omitempty"` // on this machine, if each has cores of its own
	Part      *Part       `json:"part,omitempty"`  // of a load in parts; nil: the whole load
	Parts     []Header    `json:"parts,omitempty"` // of a merged run: those of its parts, by number
	Notes     []string    `json:"notes,omitempty"` // what readers must know, as sentences
}

// PartsMax is the largest number of parts of a load.
const PartsMax = 1000

// A Part is the place of a run in a load that several processes make together.
type Part struct {
	Number  int       `json:"number"`   // from 1
	Of      int       `json:"of"`       // parts of the load
	StartAt time.Time `json:"start_at"` // when the first step was to begin in all parts
	Clock   Clock     `json:"clock"`    // of the host
}

// CheckWhole returns an error for a part of a load. What a target used in it was used by all parts, so that only the whole tells
// what a request costs.
func (h *Header) CheckWhole() error {
	if h.Part == nil {
		return nil
	}
	return fmt.Errorf("it is part %d of %d of a load: put the parts together first, as in spillway report --merge PART… -o whole.ndjson",
		h.Part.Number, h.Part.Of)
}

// A Clock is what the kernel knows of the clock of its host.
type Clock struct {
	Synchronized bool    `json:"synchronized"`            // by a program such as chrony
	Error        float64 `json:"error_seconds,omitempty"` // how wrong it is at most; 0: unknown
	Unknown      string  `json:"unknown,omitempty"`       // why the kernel does not tell
}

// String says how far the clock can be relied on: "synchronized to within 300 µs".
func (c Clock) String() string {
	switch {
	case c.Unknown != "":
		return "synchronized or not (" + c.Unknown + ")"
	case c.Synchronized:
		return fmt.Sprintf("synchronized to within %s", sheet.Duration(c.Error))
	}
	return "not synchronized"
}

// Loops of a step.
const (
	LoopOpen   = "open"   // arrivals at a given rate, independent of answers
	LoopClosed = "closed" // each connection sends the next request after an answer
)

// A Step is one load level, written when the level begins.
type Step struct {
	Index         int     `json:"step"` // 0, 1, 2, … in the order run
	Name          string  `json:"name,omitempty"`
	Loop          string  `json:"loop"`                       // LoopOpen or LoopClosed
	Arrival       string  `json:"arrival,omitempty"`          // open loop: constant or poisson
	OfferedHz     float64 `json:"offered_hz,omitempty"`       // open loop: arrivals per second
	ThinkTimes    bool    `json:"think_times,omitempty"`      // users pause between the requests of a flow
	Connections   int     `json:"connections"`                // as requested
	PerConnection int     `json:"per_connection,omitempty"`   // requests per connection; 0: unlimited
	Duration      float64 `json:"duration_seconds,omitempty"` // planned; 0 if limited by Requests
	Requests      int64   `json:"requests,omitempty"`         // planned; 0 if limited by Duration; with a flow, iterations
	Start         float64 `json:"start_seconds"`              // since Header.StartedAt
	Late          float64 `json:"late_seconds,omitempty"`     // of a part: from the planned begin until the step, or its warm-up, began
	Warmup        float64 `json:"warmup_seconds,omitempty"`   // before Start, not counted
	TimeoutLimit  float64 `json:"timeout_seconds,omitempty"`  // after which a request counts as Timeout
	BacklogLimit  int64   `json:"backlog_limit,omitempty"`    // arrivals that may wait for a connection; more are Unsent
}

// LevelName is the name that package load gives a step: "500/s", "64 connections".
func (s *Step) LevelName() string {
	if s.Loop == LoopOpen {
		return fmt.Sprintf("%g/s", s.OfferedHz)
	}
	return fmt.Sprintf("%d connections", s.Connections)
}

// Load is the load level for people: "1,000/s", "64 connections".
func (s *Step) Load() string {
	if s.Loop == LoopOpen {
		return sheet.Rate(s.OfferedHz)
	}
	return sheet.Plural(s.Connections, "connection")
}

// Title is how reports call the step: its name, or else its level.
func (s *Step) Title() string { return cmp.Or(s.Name, s.LevelName()) }

// A Slice is one second of a step. The last one may be shorter.
type Slice struct {
	Step        int     `json:"step"`
	Second      int     `json:"second"`         // 0, 1, 2, … from the start of the step
	Length      float64 `json:"length_seconds"` // 1, except for the last
	Counters            // of this second
	Connections int64   `json:"connections"`        // open at its end
	InFlight    int64   `json:"in_flight"`          // sent and not answered at its end
	Backlog     int64   `json:"backlog"`            // due and not sent at its end
	CPUUser     float64 `json:"cpu_user_seconds"`   // of the load generator
	CPUSystem   float64 `json:"cpu_system_seconds"` // of the load generator
	Latency     Latency `json:"latency"`            // with two significant digits
}

// A Total ends a step. Its histograms have three significant digits and are not sums of the slices.
type Total struct {
	Step     int     `json:"step"`
	Elapsed  float64 `json:"elapsed_seconds"` // measured
	Counters         // of the whole step
	Latency  Latency `json:"latency"`
	// Labels are the named requests of a mix, in its order; empty if there is one request without a name.
	Labels []LabelTotal `json:"labels,omitempty"`
	// Iterations are those of a flow; nil without one.
	Iterations *Iterations `json:"iterations,omitempty"`
	Clamped    int64       `json:"above_range,omitempty"` // latencies above 10 min, counted as 10 min

	Connections ConnectionStats `json:"connections"`
	Little      Little          `json:"little"`
	Cost        Cost            `json:"cost"`
	Hosts       []HostShare     `json:"hosts,omitempty"` // on this machine, if each has cores of its own
	SLO         []Criterion     `json:"slo,omitempty"`

	// Overloaded says that the backlog grew: the target answers fewer requests than arrive, and the latencies depend on
	// the length of the step.
	Overloaded bool `json:"overloaded,omitempty"`

	Validity Validity `json:"validity"`
	Reasons  []Reason `json:"reasons,omitempty"` // why not VALID, the most severe first, and caveats
}

// A LabelTotal is the part of a Total that belongs to one named request of a mix.
type LabelTotal struct {
	Name string `json:"name"`
	Counters
	Latency Latency `json:"latency"`
}

// Iterations counts how often users went through the steps of a flow. An iteration counts in the step in which it ended.
type Iterations struct {
	Completed  int64 `json:"completed"`  // every request was answered as expected
	Failed     int64 `json:"failed"`     // a request failed
	Unfinished int64 `json:"unfinished"` // in progress when the step ended
	Duration   HDR   `json:"duration"`   // of completed ones, from the intended start to the last answer, with think times
}

// Rate is the rate of good answers within the step, per second; 0 if the step took no time.
func (t *Total) Rate() float64 {
	if t.Elapsed == 0 {
		return 0
	}
	return float64(t.Completed) / t.Elapsed
}

// Missed returns the criteria of the SLO that the step did not meet.
func (t *Total) Missed() []Criterion {
	return slices.DeleteFunc(slices.Clone(t.SLO), func(c Criterion) bool { return c.Met })
}

// ConnectionStats describes the connections of a step and how evenly they were served.
type ConnectionStats struct {
	ParallelMax  int64   `json:"parallel_max"`  // highest number open at once
	ParallelMean float64 `json:"parallel_mean"` // mean number open at once
	// Requests per connection, or per slot if connections are short.
	Slots        int64   `json:"slots"`
	RequestsMin  int64   `json:"requests_min"`
	RequestsMax  int64   `json:"requests_max"`
	RequestsMean float64 `json:"requests_mean"`
}

// Little checks Little's law: N = X R.
type Little struct {
	InFlightMean float64 `json:"in_flight_mean"`       // N, sampled independently of the latencies
	Rate         float64 `json:"rate_hz"`              // X, requests that ended per second, also without an answer
	ServiceMean  float64 `json:"service_mean_seconds"` // R, mean time in flight within the step, including connecting
	Ratio        float64 `json:"ratio"`                // N / (X R): 1 if Little's law holds, 0 if not computed
}

// Cost is what the load generator used in a step.
type Cost struct {
	CPUUser       float64 `json:"cpu_user_seconds"`
	CPUSystem     float64 `json:"cpu_system_seconds"`
	Threads       int     `json:"threads"`                // that drive load
	ThreadBusyMax float64 `json:"thread_busy_max"`        // CPU time over elapsed time of the busiest thread, 0 to 1
	RunQueueWait  float64 `json:"run_queue_wait_seconds"` // runnable but not running, all threads
	MemoryMax     int64   `json:"memory_max_bytes"`       // resident
}

// A Criterion is one condition of an SLO with the observed value.
type Criterion struct {
	Text     string  `json:"text"`               // as typed, "p99<70ms"
	Metric   string  `json:"metric"`             // "response_p99_seconds", "error_share", …
	Label    string  `json:"label,omitempty"`    // of the requests that it judges; "": all
	Limit    float64 `json:"limit"`              // in the metric's unit
	Observed float64 `json:"observed"`           // in the metric's unit
	AtLeast  bool    `json:"at_least,omitempty"` // Observed is a lower bound, because requests were not answered
	Met      bool    `json:"met"`
	Default  bool    `json:"default,omitempty"` // not typed: every SLO limits the errors
}

// Figure names what the criterion limits, as typed: "p99".
func (c *Criterion) Figure() string {
	if at := strings.LastIndexAny(c.Text, "<>"); at >= 0 {
		return c.Text[:at]
	}
	return c.Text
}

// Value writes what was observed: "31 ms", ">= 2.01 s".
func (c *Criterion) Value() string {
	unit := sheet.UnitSeconds
	switch c.Metric {
	case MetricErrorShare:
		unit = sheet.UnitShare
	case MetricRate:
		unit = sheet.UnitRate
	}
	if c.AtLeast {
		return sheet.AtLeast(c.Observed, unit)
	}
	return sheet.Text(c.Observed, unit)
}

// Observation names the figure with its value: "p99 31 ms".
func (c *Criterion) Observation() string { return c.Figure() + " " + c.Value() }

// Latency has one histogram per timed interval. Response, Service and FirstByte count every request that was answered
// completely, whatever its status. Connect counts connections. The two of requests without an answer hold how long each
// had waited when it failed or was given up, which is a lower bound of its time.
type Latency struct {
	Response           HDR `json:"response,omitempty"`            // from the intended start to the last byte of the answer
	ResponseUnanswered HDR `json:"response_unanswered,omitempty"` // from the intended start to the failure
	Service            HDR `json:"service,omitempty"`             // from sent to the last byte
	ServiceUnanswered  HDR `json:"service_unanswered,omitempty"`  // from sent to the failure, of requests that were sent

	Lag       HDR `json:"lag,omitempty"`        // open loop: from the intended start until the pacer handled it
	Connect   HDR `json:"connect,omitempty"`    // from connect until the connection is usable, including TLS
	FirstByte HDR `json:"first_byte,omitempty"` // from sent to the first byte of the answer
}

// Responses returns the response times of all requests that were due.
func (l *Latency) Responses() (histogram.Censored, error) {
	return censored(l.Response, l.ResponseUnanswered)
}

// Services returns the service times of all requests that were sent.
func (l *Latency) Services() (histogram.Censored, error) {
	return censored(l.Service, l.ServiceUnanswered)
}

func censored(known, beyond HDR) (c histogram.Censored, err error) {
	if c.Known, err = histogram.Decode(string(known)); err == nil {
		c.Beyond, err = histogram.Decode(string(beyond))
	}
	return c, err
}

// HDR is a V2 compressed HdrHistogram of nanoseconds in base64, "" if empty. Package histogram encodes and decodes it.
type HDR string

// Reasons of an End.
const (
	Finished    = "finished"
	Interrupted = "interrupted"
	UnderWay    = "under way" // only in a snapshot, never in a file
)

// An End is the last record of a complete file.
type End struct {
	Reason  string  `json:"reason"`            // Finished, Interrupted, or a sentence
	Aborted bool    `json:"aborted,omitempty"` // by the run's own --abort
	Elapsed float64 `json:"elapsed_seconds"`
	Search  *Search `json:"search,omitempty"` // of a search for a peak; nil of other runs
}

// A Search is the part of the end of a search for a peak that its steps do not tell.
type Search struct {
	Stopped string  `json:"stopped"`                 // why it ended, as in package peak
	Probes  int     `json:"probes"`                  // steps that count; one more was interrupted
	Seconds float64 `json:"elapsed_seconds"`         // of these steps, with their warm-up
	Unfit   float64 `json:"unfit_seconds,omitempty"` // least time of another probe, if it was more than what was left
}

// A Run is the content of a file.
type Run struct {
	Header  Header
	Steps   []StepRun
	Watches []Watch  // watched hosts
	Samples []Sample // in file order
	End     End
	// CutOff says what is missing if the file ends early, and is "" for a complete file. A step without a total record
	// gets a total summed from its slices.
	CutOff string
}

// A StepRun is a step with all its records.
type StepRun struct {
	Step
	Slices []Slice
	Total  Total
}

// Counters are counts of a slice or a step.
type Counters struct {
	Due        int64         `json:"due"`       // intended starts; in a closed loop equal to Sent
	Sent       int64         `json:"sent"`      // requests written
	Done       int64         `json:"done"`      // answered completely, whatever the status
	Completed  int64         `json:"completed"` // good answers within the time of the record, whenever the requests were due
	Errors     Errors        `json:"errors"`
	Statuses   map[int]int64 `json:"statuses,omitempty"` // HTTP answers by status code
	BytesIn    int64         `json:"bytes_in"`
	BytesOut   int64         `json:"bytes_out"`
	Connects   int64         `json:"connects"`         // connections opened
	Reconnects int64         `json:"reconnects"`       // of these, to replace a broken one
	Reads      int64         `json:"reads,omitempty"`  // SQL, Redis: reading statements
	Writes     int64         `json:"writes,omitempty"` // writing statements
	Others     int64         `json:"others,omitempty"` // other statements
}

// Add adds o to c.
func (c *Counters) Add(o *Counters) {
	c.Due += o.Due
	c.Sent += o.Sent
	c.Done += o.Done
	c.Completed += o.Completed
	for class, n := range o.Errors {
		c.Errors[class] += n
	}
	for status, n := range o.Statuses {
		if c.Statuses == nil {
			c.Statuses = make(map[int]int64, len(o.Statuses))
		}
		c.Statuses[status] += n
	}
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.Connects += o.Connects
	c.Reconnects += o.Reconnects
	c.Reads += o.Reads
	c.Writes += o.Writes
	c.Others += o.Others
}

// Requests is the number of requests that ended: answered, failed or never sent.
func (c *Counters) Requests() int64 { return c.Done + c.Errors.Unanswered() }

// Good is the number of answers with an expected status and no failed check.
func (c *Counters) Good() int64 { return c.Done - c.Errors.of(ErrorClass.Answered) }

// ErrorShareMax is the highest ErrorShare at which a rate or a latency supports a claim.
const ErrorShareMax = 0.01

// ErrorShare is the fraction of requests that failed, 0 to 1.
func (c *Counters) ErrorShare() float64 {
	if c.Requests() == 0 {
		return 0
	}
	return float64(c.Errors.Total()) / float64(c.Requests())
}

// Blame adds a reason, whose verdict counts if it is worse.
func (t *Total) Blame(r Reason) {
	t.Reasons = append(t.Reasons, r)
	if r.Verdict.worse(t.Validity) {
		t.Validity = r.Verdict
	}
}

// Validity says whether a step measured the target or something else.
type Validity string

// Verdicts on a step. Only a Valid step supports a claim about the target.
const (
	Valid            Validity = "VALID"
	GeneratorLimited Validity = "GENERATOR_LIMITED" // the load generator could not offer the load
	HostContended    Validity = "HOST_CONTENDED"    // load generator, target or other processes competed for the host
	NotStationary    Validity = "NOT_STATIONARY"    // the backlog grew or the rate drifted
	TooFewSamples    Validity = "TOO_FEW_SAMPLES"   // too few requests for the requested percentile
	Unjudged         Validity = ""                  // the file ended before the step did
)

// worse orders verdicts, of which Unjudged is the worst. A merged step has the worst verdict of its parts.
func (v Validity) worse(than Validity) bool {
	return than != Unjudged && (v == Unjudged || v.Severity() > than.Severity())
}

// Word is the verdict for people.
func (v Validity) Word() string { return cmp.Or(string(v), "not judged") }

// Severity orders verdicts, from 0 for Valid. That of Unjudged is below.
func (v Validity) Severity() int {
	return slices.Index([]Validity{Valid, TooFewSamples, NotStationary, HostContended, GeneratorLimited}, v)
}
