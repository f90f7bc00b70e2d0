package feed

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"spillway/internal/serve/param"
)

// Value is a value of the parameters of which a feed or a query keeps rows, or of which nothing is read.
type Value struct {
	Arguments   map[string][]string `json:"arguments"` // as in a request; those that it lacks are missing
	Paused      bool                `json:"paused"`
	AgeSeconds  *float64            `json:"age_seconds"` // of its rows; nil: there are none
	Rows        int                 `json:"rows"`
	Bytes       int64               `json:"bytes"`
	ReadSeconds float64             `json:"read_seconds"` // time of the last statement; 0: not known

	Idle      bool   `json:"idle,omitempty"`          // of a window: nobody asks, so that it is not read
	Hits      uint64 `json:"hits,omitempty"`          // pages answered from the window
	Older     uint64 `json:"beyond,omitempty"`        // pages that it does not hold
	Waiting   int    `json:"waiting,omitempty"`       // requests
	Listeners int    `json:"listeners,omitempty"`     // of events
	Problem   string `json:"refresh_error,omitempty"` // of the last refresh

	name string // encodes the arguments
}

// ErrPaused means that nothing of a value is read until it is resumed, and that it has no rows that may be served.
var ErrPaused = fmt.Errorf("%w: it is paused", ErrUnavailable)

// Pauses has the encodings of the arguments of the values of which nothing is read.
type Pauses struct{ sync.Map }

// Has reports whether nothing of a value is read.
func (p *Pauses) Has(name string) bool {
	_, paused := p.Load(name)
	return paused
}

// Set pauses or resumes the value of arguments.
func (p *Pauses) Set(args []string, paused bool) {
	if name := string(param.AppendArgs(nil, args)); paused {
		p.Store(name, nil)
	} else {
		p.Delete(name)
	}
}

// Each calls f for each value.
func (p *Pauses) Each(f func(name string)) {
	p.Range(func(name, _ any) bool {
		f(name.(string))
		return true
	})
}

// Arguments returns the arguments that an encoding has, as a request has them.
func (d *Definition) Arguments(name string) map[string][]string {
	all := make(map[string][]string)
	args, _ := param.Values(name) // without parameters there are none
	for i, p := range d.Params {
		switch {
		case i >= len(args) || args[i] == param.Absent:
		case p.ListMax > 0:
			all[p.Name], _ = param.Values(args[i])
		default:
			all[p.Name] = []string{args[i]}
		}
	}
	return all
}

// Contains reports whether an argument contains a text.
func (v *Value) Contains(text string) bool {
	for _, list := range v.Arguments {
		if slices.ContainsFunc(list, func(arg string) bool { return strings.Contains(arg, text) }) {
			return true
		}
	}
	return text == ""
}

// Values returns at most that many values one of whose arguments contains a text, and how many there are: those that are paused, and then
// those of the windows, with the most requests first.
func (f *Feed) Values(text string, most int) (values []Value, all int) {
	now, windows := time.Now(), *f.windows.Load()
	for name, w := range windows {
		v := w.value(now)
		v.Paused = f.pauses.Has(name)
		values = append(values, v)
	}
	f.pauses.Each(func(name string) {
		if windows[name] == nil {
			values = append(values, Value{name: name, Arguments: f.cfg.Arguments(name), Paused: true})
		}
	})
	all = len(values)
	values = slices.DeleteFunc(values, func(v Value) bool { return !v.Contains(text) })
	asked := func(v Value) uint64 {
		if v.Paused {
			return math.MaxUint64
		}
		return v.Hits + v.Older
	}
	slices.SortFunc(values, func(a, b Value) int {
		return cmp.Or(cmp.Compare(asked(b), asked(a)), cmp.Compare(a.name, b.name))
	})
	return values[:min(most, len(values))], all
}

// value describes the window.
func (w *window) value(now time.Time) Value {
	v := Value{
		name: w.name, Arguments: w.feed.cfg.Arguments(w.name), Bytes: w.charged.Load(), Hits: w.hits.Load(), Older: w.older.Load(),
		ReadSeconds: time.Duration(w.took.Load()).Seconds(),
	}
	if s := w.current.Load(); s != nil {
		v.AgeSeconds, v.Rows, v.Idle = new(now.Sub(s.readAt).Seconds()), s.rows.Len(), s.parked
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v.Waiting, v.Listeners = w.waiting, w.listeners
	if w.failure != nil {
		v.Problem = w.failure.Error()
	}
	return v
}

// Pause has nothing of a value be read from now on, or again. args are the arguments (param.Argument) of the parameters. Its rows are
// served until they are older than StaleMax.
func (f *Feed) Pause(args []string, paused bool) { f.pauses.Set(args, paused) }

// Drop forgets the rows of a value, and reports whether there was a window. Requests that wait for it, and its listeners, get another
// one.
func (f *Feed) Drop(args []string) bool {
	w, found := (*f.windows.Load())[string(param.AppendArgs(nil, args))]
	if found {
		f.drop(w)
	}
	return found
}
