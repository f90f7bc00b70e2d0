package result

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

// A Watch describes a watched host. It is written once, before its samples.
type Watch struct {
	Host        string    `json:"host,omitempty"` // as in its samples; "" is the host that wrote the file
	Machine     Machine   `json:"machine"`
	Subjects    []Subject `json:"subjects"`
	ClockOffset float64   `json:"clock_offset_seconds,omitempty"`      // how far the clock of another host is ahead
	ClockError  float64   `json:"clock_uncertainty_seconds,omitempty"` // half of the shortest round trip
}

// A Subject is one thing that a sampler reads.
type Subject struct {
	Sampler string `json:"sampler"`          // process, host, tcp, listener, postgres, mysql, redis or watch
	Name    string `json:"name,omitempty"`   // given by the user: app, db; of a listener, its address
	Detail  string `json:"detail,omitempty"` // description
}

// Role is what a watched process is for the service.
type Role string

// Roles.
const (
	RoleApplication Role = "application"
	RoleDatabase    Role = "database"
	RoleRedis       Role = "redis"
)

// programs finds the names of programs in the description of a process: "process 12 (postgres), listening on …".
var programs = regexp.MustCompile(`\d+ \(([^)]*)\)`)

// Role goes by the program that a watched process ran. If that is no database, it goes by the name that the user gave.
func (r *Run) Role(host, name string) Role {
	for i := range r.Watches {
		for _, s := range r.Watches[i].Subjects {
			if r.Watches[i].Host != host || s.Sampler != SamplerProcess || s.Name != name {
				continue
			}
			if found := programs.FindStringSubmatch(s.Detail); found != nil && roleOf(found[1]) != RoleApplication {
				return roleOf(found[1])
			}
		}
	}
	if strings.HasPrefix(strings.ToLower(name), "db") {
		return RoleDatabase
	}
	return roleOf(name)
}

func roleOf(program string) Role {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(strings.ToLower(program), word) })
	}
	switch {
	case has("redis", "valkey", "keydb"):
		return RoleRedis
	case has("postgres", "postmaster", "mysql", "mariadb"):
		return RoleDatabase
	}
	return RoleApplication
}

// A Sample is one reading of one subject. Figures with a name that ends in "_total" are counters with an arbitrary start;
// the others are gauges. docs/reference/watched-figures.md names them.
type Sample struct {
	At      float64            `json:"at_seconds"`     // since Header.StartedAt, by the clock of the host that wrote the file
	Host    string             `json:"host,omitempty"` // a Watch.Host
	Sampler string             `json:"sampler"`
	Subject string             `json:"subject,omitempty"`
	Values  map[string]float64 `json:"values,omitempty"`
	Border  bool               `json:"border,omitempty"` // taken at the border of a step
	Error   string             `json:"error,omitempty"`  // why the reading failed; written once until a reading succeeds
	Gap     *Gap               `json:"gap,omitempty"`    // before this sample
}

// A Gap is a time in which a subject could not be read. It ends with the sample that has it.
type Gap struct {
	From   float64 `json:"from_seconds"` // the last reading, or attempt at a first one
	Reason string  `json:"reason"`       // such as the end of a process, and what took its place
}

// ProcessEnded reports whether the error of a sample, or the reason of a gap, says that a watched process ended.
func ProcessEnded(text string) bool {
	return strings.HasPrefix(text, "process ") && strings.Contains(text, " ended")
}

// Samplers.
const (
	SamplerProcess  = "process"  // a process with its descendants
	SamplerHost     = "host"     // CPU, pressure, load, memory
	SamplerTCP      = "tcp"      // socket states, ports, drops and retransmits of a network namespace
	SamplerListener = "listener" // the accept queue of one listening socket
	SamplerPostgres = "postgres"
	SamplerMySQL    = "mysql"
	SamplerRedis    = "redis"
	// SamplerStatement is a statement that a database ran, without its literals. The subject is "NAME: TEXT".
	SamplerStatement = "statement"
	SamplerWatch     = "watch" // cost of a sampler, which is the subject
)

// Database reports whether a sampler reads a database or Redis.
func Database(sampler string) bool {
	return sampler == SamplerPostgres || sampler == SamplerMySQL || sampler == SamplerRedis
}

// Counter reports whether a figure is a counter.
func Counter(name string) bool { return strings.HasSuffix(name, "_total") }

// WaitPrefix begins the names of gauges of waiting sessions: wait_lock counts sessions that wait for a lock.
const WaitPrefix = "wait_"

// MaxValues bounds the number of figures in a sample.
const MaxValues = 1000

// check rejects impossible samples.
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

// check rejects impossible clocks.
func (w *Watch) check() error {
	if !(math.Abs(w.ClockOffset) < math.MaxFloat64) || !(w.ClockError >= 0) {
		return fmt.Errorf("watch of %q: the clock is %g s off, to within %g s", w.Host, w.ClockOffset, w.ClockError)
	}
	return nil
}

// finite returns the sample without NaN and infinities, which JSON cannot represent.
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
