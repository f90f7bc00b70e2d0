package peak

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/sheet"
)

// Moved says what the value of a knob did to the peak.
type Moved string

// The values of Moved.
const (
	MovedUp     Moved = "up"           // the interval is above the original one
	MovedDown   Moved = "down"         // the interval is below the original one
	NotMoved    Moved = "no"           // the intervals overlap: a movement is not shown
	NotMeasured Moved = "not-measured" // too little is proved
)

// KnobResult is the search with one value of a knob.
type KnobResult struct {
	Name, Original, Value string
	Answer                Answer // the zero value if there was no search
	Moved                 Moved
	Reason                string  // of NotMeasured
	Ratio                 float64 // the peak over the original one; 0: not known
}

// judge compares the peak with the original one.
func (k *KnobResult) judge(original Answer) {
	a := &k.Answer
	k.Moved, k.Reason, k.Ratio = NotMeasured, "", 0
	up, down := a.Low > 0 && original.High > 0 && a.Low > original.High, a.High > 0 && a.High < original.Low
	both := a.Low > 0 && a.High > 0 && original.Low > 0 && original.High > 0
	switch {
	case (up || down || both) && (a.Flat || original.Flat):
		k.Reason = "the latency hardly depends on the rate"
	case up && min(a.count(true, original.Infeasible, a.Feasible), original.count(false, original.Infeasible, a.Feasible)) < movedProbes,
		down && min(a.count(false, a.Infeasible, original.Feasible), original.count(true, a.Infeasible, original.Feasible)) < movedProbes:
		k.Reason = "only one probe shows a movement; raise --max-time"
	case up:
		k.Moved = MovedUp
	case down:
		k.Moved = MovedDown
	case both:
		k.Moved = NotMoved
	case original.High == 0:
		k.Reason = "no rate was proved to miss the SLO with " + k.Original
	case original.Low == 0:
		k.Reason = "no rate was proved to meet the SLO with " + k.Original
	case a.Stopped == StoppedInterrupted:
		k.Reason = "interrupted"
	case a.Stopped == StoppedDeadline && a.Probes == 0:
		k.Reason = "no time was left; raise --max-time"
	case a.Low == 0 && a.High == 0:
		k.Reason = "nothing VALID"
	case a.Stopped == StoppedDeadline:
		k.Reason = "no time was left; raise --max-time"
	default:
		k.Reason = "only one end of the interval was found"
	}
	if middle(a) > 0 && middle(&original) > 0 {
		k.Ratio = middle(a) / middle(&original)
	}
}

// movedProbes is how many probes of each of two searches show that the peak moved: with each value one may be disturbed.
const movedProbes = 2

// count is the number of VALID probes at rates from low to high that passed, or that missed.
func (a *Answer) count(passed bool, low, high float64) int {
	n := 0
	for i := range a.Path {
		if v := &a.Path[i]; v.Rate >= low && v.Rate <= high && v.shows(passed) {
			n++
		}
	}
	return n
}

// middle is the middle of what is proved about the peak, 0 without both ends.
func middle(a *Answer) float64 { return math.Sqrt(a.Feasible * a.Infeasible) }

// movedText says what happened to the peak.
func (k *KnobResult) movedText() string {
	ratio := ""
	if k.Ratio > 0 {
		ratio = ", " + sheet.Number(k.Ratio) + " times the original"
	}
	switch k.Moved {
	case MovedUp, MovedDown:
		return "moved " + string(k.Moved) + ratio
	case NotMoved:
		return "not shown to move"
	}
	return "not measured: " + k.Reason
}

// intervalText writes the interval of a peak.
func intervalText(a *Answer) string {
	switch {
	case a.Low > 0 && a.High > 0:
		return sheet.Rate(a.Low) + " to " + sheet.Rate(a.High)
	case a.Low > 0:
		return "at least " + sheet.Rate(a.Low)
	case a.High > 0:
		return "below " + sheet.Rate(a.High)
	}
	return "-"
}

// knobTable has a row per value of a knob.
func (o *Outcome) knobTable() *sheet.Table {
	t := &sheet.Table{Heads: []string{"knob", "value", "peak at 95 %", "moved"}, Left: []int{0, 1, 2, 3}}
	for i := range o.Knobs {
		k := &o.Knobs[i]
		if i == 0 || o.Knobs[i-1].Name != k.Name {
			t.Add("", k.Name, k.Original, intervalText(&o.Answer), "original")
		}
		t.Add("", "", k.Value, intervalText(&k.Answer), k.movedText())
	}
	return t
}

// DocumentKnob is one value of a knob in a Document. The steps of its probes count from 0.
type DocumentKnob struct {
	Name     string `json:"name"`
	Original string `json:"original"`
	Value    string `json:"value"`
	DocumentAnswer
	Moved  Moved    `json:"moved"`
	Ratio  *float64 `json:"ratio"`            // the peak over the original one
	Reason string   `json:"reason,omitempty"` // of not-measured
}

func (k *KnobResult) document() DocumentKnob {
	return DocumentKnob{
		Name: k.Name, Original: k.Original, Value: k.Value, DocumentAnswer: k.Answer.document(), Moved: k.Moved, Ratio: known(k.Ratio),
		Reason: k.Reason,
	}
}

// A touch is what the name of a knob has if the knob changes what a verdict names.
type touch struct {
	verdict string
	words   []string
}

func touches() []touch {
	return []touch{
		{diagnose.WorkerPool, []string{"pool", "worker", "thread", "process", "child", "maxconn", "concurren"}},
		{diagnose.DatabasePool, []string{"pool", "maxconn", "max_conn"}},
		{diagnose.UserCPU, []string{"cpu", "core"}},
		{diagnose.SystemCPU, []string{"cpu", "core", "keep"}},
		{diagnose.DatabaseCPU, []string{"cpu", "core", "index"}},
		{diagnose.RateLimit, []string{"limit", "rate"}},
		{diagnose.AcceptQueue, []string{"backlog", "queue", "keep"}},
		{diagnose.Descriptors, []string{"nofile", "file", "descriptor"}},
		{diagnose.Memory, []string{"memory", "heap"}},
		{diagnose.Ports, []string{"port", "keep"}},
	}
}

// weigh adds to the likeliest verdict what the knobs show about it: more of what it names that moved the peak up confirms it, and so does
// less that moved it down in proportion. More of it without a movement speaks against it. Other knobs that moved the peak are mentioned,
// because too little of anything is a limit.
func (o *Outcome) weigh() {
	if len(o.Verdicts) == 0 {
		return
	}
	verdicts := slices.Clone(o.Verdicts)
	v := &verdicts[0]
	for i := range o.Knobs {
		k := &o.Knobs[i]
		about := slices.ContainsFunc(touches(), func(t touch) bool {
			return t.verdict == v.Name && slices.ContainsFunc(t.words,
				func(word string) bool { return strings.Contains(strings.ToLower(k.Name), word) })
		})
		with, more := fmt.Sprintf("%s=%s instead of %s", k.Name, k.Value, k.Original), k.more()
		switch {
		case k.Moved == NotMoved && about && more > 0:
			v.Sentence += fmt.Sprintf(" This speaks against it: with %s, the peak was not shown to move.", with)
		case k.Moved != MovedUp && k.Moved != MovedDown:
		case about && (more >= 0 && k.Moved == MovedUp || k.inProportion()):
			v.Sentence += fmt.Sprintf(" A test confirms it: with %s, the peak %s (%s).", with, k.movedText(), intervalText(&k.Answer))
		default:
			v.Sentence += fmt.Sprintf(" With %s, the peak %s (%s).", with, k.movedText(), intervalText(&k.Answer))
		}
	}
	o.Verdicts = verdicts
}

// proportionMax is how far the peak may be from one in proportion to the value, as a factor.
const proportionMax = 1.25

// inProportion reports whether the peak moved down as far as the value.
func (k *KnobResult) inProportion() bool {
	before, errBefore := strconv.ParseFloat(k.Original, 64)
	after, errAfter := strconv.ParseFloat(k.Value, 64)
	if errBefore != nil || errAfter != nil || !(after > 0) || !(after < before) || k.Moved != MovedDown {
		return false
	}
	share := k.Ratio / (after / before)
	return share < proportionMax && share > 1/proportionMax
}

// more tells whether the value is more of what the knob sets than the original is (1), less (-1), or neither is known (0).
func (k *KnobResult) more() int {
	before, errBefore := strconv.ParseFloat(k.Original, 64)
	after, errAfter := strconv.ParseFloat(k.Value, 64)
	if errBefore != nil || errAfter != nil {
		return 0
	}
	return cmp.Compare(after, before)
}
