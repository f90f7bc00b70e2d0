// Package result is what a load run leaves behind: a stream of records and the file they are kept in.
//
// A file is lines of JSON: one header (what was run, where and with which limits), then for each load level a step
// record, one slice record a second and a total record, then an end record. Slices and totals carry counters and
// encoded histograms, never a record per request, so a file grows with time and not with the rate. It is readable a
// year later with any JSON tool and any HdrHistogram tool; docs/results-format.md names every field and its unit.
//
// Writer writes the stream, Read reads it as a Run, Merge makes one Run of the files that several hosts wrote of the
// same run. The package judges nothing: whoever measured states the validity of a step and its reasons.
package result

import (
	"time"
)

// The name and version that a header carries. A reader refuses another major version; a minor version only adds fields.
const (
	Format       = "spillway-result"
	VersionMajor = 1
	VersionMinor = 1
)

// A Header is the manifest: the first record of a file.
type Header struct {
	Format  string `json:"format"`  // set by Writer
	Version string `json:"version"` // "major.minor", set by Writer

	Run       string    `json:"run,omitempty"`   // identity of the run; the same in the files of all its hosts
	Label     string    `json:"label,omitempty"` // how the user calls this run in a comparison
	StartedAt time.Time `json:"started_at"`      // wall clock of the host, when the first step began
	Command   []string  `json:"command"`         // as typed, secrets redacted: see RedactArgs
	Tool      string    `json:"tool"`            // version of spillway
	Go        string    `json:"go"`              // version of Go
	Seed      uint64    `json:"seed"`            // of every random choice in the run
	Target    string    `json:"target"`          // URL, secrets redacted: see RedactURL
	SLO       string    `json:"slo,omitempty"`   // as typed, "p99<70ms errors<0.5%"
	Machine   Machine   `json:"machine"`         // the host that made the load
	Parts     []Part    `json:"parts,omitempty"` // the files that a merged run was made of
	Notes     []string  `json:"notes,omitempty"` // what a reader of the figures must know, as plain sentences
}

// A Part is one host's share of a merged run.
type Part struct {
	Header Header `json:"header"`
	// StartOffset is how much later than the first host this one began, in seconds, by the wall clocks of the two. It
	// holds both the difference in start and the difference between the clocks; nothing is corrected by it.
	StartOffset float64 `json:"start_offset_seconds"`
}

// Loops of a step.
const (
	LoopOpen   = "open"   // arrivals by the clock, whatever the target does
	LoopClosed = "closed" // each connection asks again when it is answered
)

// A Step is one load level, written when it begins.
type Step struct {
	Index         int     `json:"step"` // 0, 1, 2, … in the order run
	Name          string  `json:"name,omitempty"`
	Loop          string  `json:"loop"`                       // LoopOpen or LoopClosed
	Arrival       string  `json:"arrival,omitempty"`          // open loop: constant, poisson or ramp
	OfferedHz     float64 `json:"offered_hz,omitempty"`       // open loop: arrivals a second; a ramp's first
	OfferedEndHz  float64 `json:"offered_end_hz,omitempty"`   // a ramp's last
	Connections   int     `json:"connections"`                // as asked for
	PerConnection int     `json:"per_connection,omitempty"`   // requests on one connection; 0 = for ever
	Duration      float64 `json:"duration_seconds,omitempty"` // planned; 0 when stopped by Requests
	Requests      int64   `json:"requests,omitempty"`         // planned; 0 when stopped by Duration
	Start         float64 `json:"start_seconds"`              // since Header.StartedAt
	Warmup        float64 `json:"warmup_seconds,omitempty"`   // ran before Start and is counted nowhere
	TimeoutLimit  float64 `json:"timeout_seconds,omitempty"`  // after which a request counts as timed out
	BacklogLimit  int64   `json:"backlog_limit,omitempty"`    // arrivals that may wait for a connection; beyond it: unsent
}

// A Slice is one second of a step. The last one may be shorter.
type Slice struct {
	Step        int     `json:"step"`
	Second      int     `json:"second"`         // 0, 1, 2, … from the start of the step
	Length      float64 `json:"length_seconds"` // 1 but for the last
	Counters            // what happened in this second
	Connections int64   `json:"connections"`        // open at its end
	InFlight    int64   `json:"in_flight"`          // sent and not answered at its end
	Backlog     int64   `json:"backlog"`            // due and not sent at its end
	CPUUser     float64 `json:"cpu_user_seconds"`   // of the generator's process
	CPUSystem   float64 `json:"cpu_system_seconds"` // of the generator's process
	Latency     Latency `json:"latency"`            // at slice precision (two digits)
}

// A Total closes a step. Its histograms are at full precision (three digits), not sums of the slices.
type Total struct {
	Step     int     `json:"step"`
	Elapsed  float64 `json:"elapsed_seconds"` // measured
	Counters         // over the whole step
	Latency  Latency `json:"latency"`
	Clamped  int64   `json:"above_range,omitempty"` // latencies above 10 min, counted there

	Connections ConnectionStats `json:"connections"`
	Little      Little          `json:"little"`
	Cost        Cost            `json:"cost"`
	SLO         []Criterion     `json:"slo,omitempty"`

	Validity Validity `json:"validity"`
	Reasons  []string `json:"reasons,omitempty"` // why not VALID, or what to keep in mind, as plain sentences
}

// Rate is the answered requests a second over the whole step; 0 when it took no time.
func (t *Total) Rate() float64 {
	if t.Elapsed == 0 {
		return 0
	}
	return float64(t.Done) / t.Elapsed
}

// ConnectionStats says how many connections were open and how evenly they were served.
type ConnectionStats struct {
	ParallelMax  int64   `json:"parallel_max"`  // open at once, at most
	ParallelMean float64 `json:"parallel_mean"` // open at once, averaged over time
	// Fairness over the connections (or connection slots, when each connection is short).
	Slots          int64   `json:"slots"`
	RequestsMin    int64   `json:"requests_min"`
	RequestsMax    int64   `json:"requests_max"`
	RequestsMean   float64 `json:"requests_mean"`
	RequestsStdDev float64 `json:"requests_stddev"`
	BusyMean       float64 `json:"busy_mean_seconds"`   // time a slot had a request in flight
	BusyStdDev     float64 `json:"busy_stddev_seconds"` //
}

// Little compares what was counted with what Little's law demands: N = X R.
type Little struct {
	InFlightMean float64 `json:"in_flight_mean"`       // N, sampled independently of the latencies
	Rate         float64 `json:"rate_hz"`              // X, answered requests a second
	ServiceMean  float64 `json:"service_mean_seconds"` // R, from sent to answered
	Ratio        float64 `json:"ratio"`                // N / (X R); 1 when the books balance, 0 when not computed
}

// Cost is what the generator itself used in a step.
type Cost struct {
	CPUUser             float64 `json:"cpu_user_seconds"`
	CPUSystem           float64 `json:"cpu_system_seconds"`
	Threads             int     `json:"threads"`                // that drive load
	ThreadBusyMax       float64 `json:"thread_busy_max"`        // CPU time over wall time of the busiest one, 0 to 1
	RunQueueWait        float64 `json:"run_queue_wait_seconds"` // runnable but not running, all threads
	VoluntarySwitches   int64   `json:"voluntary_switches"`     //
	InvoluntarySwitches int64   `json:"involuntary_switches"`   //
	ReceiveQueue        float64 `json:"receive_queue_bytes"`    // median of what waited unread in its sockets
	MemoryMax           int64   `json:"memory_max_bytes"`       // resident
	GCPause             float64 `json:"gc_pause_seconds,omitempty"`
}

// A Criterion is one condition of an SLO and what was seen.
type Criterion struct {
	Text     string  `json:"text"`     // as typed, "p99<70ms"
	Metric   string  `json:"metric"`   // "response_p99_seconds", "error_share", …
	Limit    float64 `json:"limit"`    // in the metric's unit
	Observed float64 `json:"observed"` // in the metric's unit
	Met      bool    `json:"met"`
}

// Latency is one histogram for each thing timed. Counted: every request that was answered in full, whatever its status;
// a request that ended without an answer is in Errors only. Connect counts connections, not requests.
type Latency struct {
	Response  HDR `json:"response,omitempty"`   // from the intended start to the last byte of the answer
	Service   HDR `json:"service,omitempty"`    // from sent to the last byte
	Lag       HDR `json:"lag,omitempty"`        // from the intended start until the pacer took it up (open loop)
	Connect   HDR `json:"connect,omitempty"`    // from connect until the connection is usable, TLS included
	FirstByte HDR `json:"first_byte,omitempty"` // from sent to the first byte of the answer
}

// HDR is a V2 compressed HdrHistogram in base64, counting nanoseconds; "" when empty. Package histogram encodes and
// decodes it.
type HDR string

// Reasons for the end of a run.
const (
	Finished    = "finished"
	Interrupted = "interrupted"
)

// An End is the last record of a file that was not cut off.
type End struct {
	Reason  string  `json:"reason"` // Finished, Interrupted, or a plain sentence
	Elapsed float64 `json:"elapsed_seconds"`
}

// A Run is a file read whole.
type Run struct {
	Header  Header
	Steps   []StepRun
	Watches []Watch  // hosts that were watched
	Samples []Sample // in the order written
	End     End
	// CutOff says in a sentence what is missing when the file ends early; "" when it is complete. A step without its
	// total record then has a total summed from its slices.
	CutOff string
}

// A StepRun is one step with all its records.
type StepRun struct {
	Step
	Slices []Slice
	Total  Total
}

// Counters count what happened in a slice or a step.
type Counters struct {
	Due        int64         `json:"due"`  // intended starts that fell here; closed loop: the same as Sent
	Sent       int64         `json:"sent"` // requests written
	Done       int64         `json:"done"` // answered in full, whatever the status
	Errors     Errors        `json:"errors"`
	Statuses   map[int]int64 `json:"statuses,omitempty"` // HTTP: answers by status code
	BytesIn    int64         `json:"bytes_in"`
	BytesOut   int64         `json:"bytes_out"`
	Connects   int64         `json:"connects"`         // connections opened
	Reconnects int64         `json:"reconnects"`       // of these, to replace one that broke
	Reads      int64         `json:"reads,omitempty"`  // SQL, Redis: statements that read
	Writes     int64         `json:"writes,omitempty"` // that write
	Others     int64         `json:"others,omitempty"` // that do neither
}

// Add adds o to c.
func (c *Counters) Add(o *Counters) {
	c.Due += o.Due
	c.Sent += o.Sent
	c.Done += o.Done
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

// Requests is the number that came to an end, well or badly: answered, failed on the way, or never sent.
func (c *Counters) Requests() int64 { return c.Done + c.Errors.Unanswered() }

// Good is the number answered as they should be: no bad status, no failed check.
func (c *Counters) Good() int64 { return c.Done - c.Errors[StatusError] - c.Errors[CheckError] }

// ErrorShare is the fraction of requests that ended badly, 0 to 1.
func (c *Counters) ErrorShare() float64 {
	if c.Requests() == 0 {
		return 0
	}
	return float64(c.Errors.Total()) / float64(c.Requests())
}

// Validity says whether a step measured the target or something else.
type Validity string

// The verdicts on a step. Only a Valid step says anything about the target's limit.
const (
	Valid            Validity = "VALID"
	GeneratorLimited Validity = "GENERATOR_LIMITED" // the generator could not offer the load
	HostContended    Validity = "HOST_CONTENDED"    // generator and target, or strangers, fought for the host
	NotStationary    Validity = "NOT_STATIONARY"    // the backlog grew or the rate drifted: no steady state was seen
	TooFewSamples    Validity = "TOO_FEW_SAMPLES"   // not enough requests for the percentile asked for
	Unjudged         Validity = ""                  // the file ended before the step did
)

// worse orders verdicts for a merge: the worst of the hosts' verdicts is that of the run.
func (v Validity) worse(than Validity) bool { return v.rank() > than.rank() }

func (v Validity) rank() int {
	switch v {
	case Valid:
		return 0
	case TooFewSamples:
		return 1
	case NotStationary:
		return 2
	case HostContended:
		return 3
	case GeneratorLimited:
		return 4
	}
	return 5
}
