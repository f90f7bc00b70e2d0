package result

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// A Watch names a host that was watched during the run and what was watched on it, written once before its samples.
type Watch struct {
	Host        string    `json:"host,omitempty"` // as samples name it; "" is the host that wrote the file
	Machine     Machine   `json:"machine"`
	Subjects    []Subject `json:"subjects"`
	ClockOffset float64   `json:"clock_offset_seconds,omitempty"`      // how far that host's clock was ahead of ours
	ClockError  float64   `json:"clock_uncertainty_seconds,omitempty"` // half of the shortest round trip that measured it
}

// A Subject is one thing that a sampler reads.
type Subject struct {
	Sampler string `json:"sampler"`          // process, host, tcp, listener, postgres, mysql, redis or watch
	Name    string `json:"name,omitempty"`   // as the user calls it: app, db; a listener's address
	Detail  string `json:"detail,omitempty"` // what that is, as a plain sentence
}

// A Sample is what one sampler read of one subject at one time. Figures whose name ends in "_total" only grow, from an
// arbitrary start: their differences tell; the others are as they stood. Names carry their unit.
// docs/results-format.md lists them.
type Sample struct {
	At      float64            `json:"at_seconds"`     // since Header.StartedAt, by the clock of the host that wrote the file
	Host    string             `json:"host,omitempty"` // a Watch.Host
	Sampler string             `json:"sampler"`
	Subject string             `json:"subject,omitempty"`
	Values  map[string]float64 `json:"values,omitempty"`
	Error   string             `json:"error,omitempty"` // what kept the sampler from reading; said once, until it reads again
}

// Samplers, as a Sample names them.
const (
	SamplerProcess  = "process"  // a process with all its descendants
	SamplerHost     = "host"     // CPU, pressure, load, memory
	SamplerTCP      = "tcp"      // states, ports, opens, drops, retransmits of a network namespace
	SamplerListener = "listener" // the accept queue of one listening socket
	SamplerPostgres = "postgres"
	SamplerMySQL    = "mysql"
	SamplerRedis    = "redis"
	SamplerWatch    = "watch" // what a sampler itself costs; the subject is the sampler
)

// Database reports whether the sampler of that name reads a database or store.
func Database(sampler string) bool {
	return sampler == SamplerPostgres || sampler == SamplerMySQL || sampler == SamplerRedis
}

// Counter reports whether the figure of that name only grows.
func Counter(name string) bool { return strings.HasSuffix(name, "_total") }

// WaitPrefix begins the name of each gauge of sessions that wait: wait_lock counts those that wait for a lock.
const WaitPrefix = "wait_"

// MaxValues bounds the figures of one sample.
const MaxValues = 1000

// check refuses samples that no run can have made.
func (s *Sample) check() error {
	if s.Sampler == "" {
		return errors.New("a sample without a sampler")
	}
	if !(s.At >= -MaxSeconds && s.At <= MaxSeconds) {
		return fmt.Errorf("a sample at %g s is outside of any run", s.At)
	}
	if len(s.Values) > MaxValues {
		return fmt.Errorf("a sample with %d figures, more than %d", len(s.Values), MaxValues)
	}
	return nil
}

// check refuses clocks that no run can have seen.
func (w *Watch) check() error {
	if !(math.Abs(w.ClockOffset) < math.MaxFloat64) || !(w.ClockError >= 0) {
		return fmt.Errorf("watch of %q: the clock is %g s off, to within %g s", w.Host, w.ClockOffset, w.ClockError)
	}
	return nil
}

// finite gives the sample without figures that JSON cannot carry: a division by zero in a sampler must not end a run.
func (s *Sample) finite() *Sample {
	clean := true
	for _, v := range s.Values {
		clean = clean && !math.IsNaN(v) && !math.IsInf(v, 0)
	}
	if clean {
		return s
	}
	kept := *s
	kept.Values = make(map[string]float64, len(s.Values))
	for name, v := range s.Values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			kept.Values[name] = v
		}
	}
	return &kept
}
