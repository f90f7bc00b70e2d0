// Package flow describes what a virtual user of an HTTP service does: the steps of
// a YAML file in their order, with values taken from earlier answers, cookies, think
// times and rows of data files. docs/reference/load.md explains the file.
//
// Read parses a file and reports every mistake with its line. A User is one virtual
// user: it makes the requests of an iteration one after the other and takes values
// from their answers. The package neither sends anything nor waits; package load
// does both.
package flow

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ohler55/ojg/jp"

	"spillway/internal/lab/target"
)

// stepsMax is the number of steps in a flow. Each has histograms of its own.
const stepsMax = 32

// Flow is a parsed file. It is safe for concurrent use: users share the rows of its
// data.
type Flow struct {
	steps   []step
	data    []*dataset
	values  []value // computed when an iteration begins, in this order
	names   int     // number of variables
	cookies cookies
	left    atomic.Int64 // iterations that may still begin
	limited *dataset     // the data that limits them; nil: none
}

// cookies says how long a user keeps its cookies.
type cookies uint8

const (
	perIteration cookies = iota
	perUser
	noCookies
)

// step is one request of a flow.
type step struct {
	name     string
	method   string
	path     target.Template
	headers  []header
	body     []part // nil: no body
	checks   target.Checks
	extract  []extraction
	think    Think // after the step
	proceed  bool  // the iteration continues after a failure
	requires []int // variables that it uses
}

// header is a header line of a step.
type header struct {
	name  string
	value target.Template
}

// value is a variable that is computed from a template.
type value struct {
	variable int
	from     part
}

// Where an extraction looks.
type extraction struct {
	name     string
	variable int
	path     jp.Expr        // in a JSON body; nil: one of the other two
	header   string         // "": the pattern
	pattern  *regexp.Regexp // in the body
	random   bool           // any of several matches, instead of the first
}

// Names returns the names of the steps.
func (f *Flow) Names() []string {
	names := make([]string, len(f.steps))
	for i := range f.steps {
		names[i] = f.steps[i].name
	}
	return names
}

// Part makes f the flow of a part of a load, before the first iteration. The parts take the rows of the data in turn. It
// returns an error if there is no row for each part.
func (f *Flow) Part(part target.Part) error {
	for _, d := range f.data {
		if d.order == once && len(d.rows) < part.Count() {
			return fmt.Errorf("%s has %d rows for %d parts: each needs at least one", d.file, len(d.rows), part.Count())
		}
		d.part = part
	}
	f.left.Store(part.Portion(f.left.Load()))
	return nil
}

// Take reserves the data of one iteration, and returns for how many more there is
// data. If the result is negative, the iteration must not begin.
func (f *Flow) Take() (left int64) {
	if f.limited == nil {
		return math.MaxInt64
	}
	return f.left.Add(-1)
}

// UsedUp returns the file whose rows are used up, or "".
func (f *Flow) UsedUp() string {
	if f.limited == nil || f.left.Load() > 0 {
		return ""
	}
	return f.limited.file
}

// Thinks reports whether users pause between requests.
func (f *Flow) Thinks() bool {
	return slices.ContainsFunc(f.steps, func(s step) bool { return s.think != (Think{}) })
}

// Think is a think time: constant, uniform in a range, or exponential.
type Think struct {
	low, high time.Duration
	mean      time.Duration // of the exponential distribution; 0: uniform
}

// draw returns a think time.
func (t Think) draw(random *rand.Rand) time.Duration {
	switch {
	case t.mean > 0:
		return time.Duration(random.ExpFloat64() * float64(t.mean))
	case t.high > t.low:
		return t.low + time.Duration(random.Int64N(int64(t.high-t.low)+1))
	}
	return t.low
}
