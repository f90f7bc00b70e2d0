package diagnose

import (
	"cmp"
	_ "embed"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A failure is the most frequent error of a step that the service, or the way to it, caused.
type failure struct {
	class  result.ErrorClass
	status int     // the most frequent unexpected one; 0: no answer
	share  float64 // of all requests
	second int     // of the step, in which it first occurred; -1: not known
	text   string  // what the first error of its class said
}

// failureMin is the share of the requests from which an error is what a step shows first.
const failureMin = 0.01

// failure returns the most frequent error, nil if it is rare. Requests that the load generator gave up or could not send are none.
func (s *step) failure() *failure {
	if s.load == nil || s.load.Total.Requests() == 0 {
		return nil
	}
	t := &s.load.Total
	f := &failure{second: -1}
	most := int64(0)
	for class, n := range t.Errors {
		if c := result.ErrorClass(class); n > most && !c.Own() && c != result.Unsent && c != result.Unfinished {
			most, f.class = n, c
		}
	}
	if f.share = float64(most) / float64(t.Requests()); f.share < failureMin {
		return nil
	}
	for status, n := range t.Statuses {
		if bad := status/100 != 2 && status != 304; f.class == result.StatusError && bad && (f.status == 0 || n > t.Statuses[f.status]) {
			f.status = status
		}
	}
	for _, r := range t.Reasons {
		if r.Code == result.FirstError && r.Class == f.class.String() && f.text == "" {
			f.text = r.Text
		}
	}
	for i := range s.load.Slices {
		if one := &s.load.Slices[i]; one.Errors[f.class] > 0 && f.second < 0 {
			f.second = one.Second
		}
	}
	return f
}

// what names the error: "status 502", "reset".
func (f *failure) what() string {
	if f.status != 0 {
		return fmt.Sprintf("status %d", f.status)
	}
	return f.class.String()
}

// sentence says how many requests fail and how.
func (f *failure) sentence(at string) string {
	text := fmt.Sprintf("%s of the requests fail %s (%s", sheet.Share(f.share), at, f.what())
	if f.second > 0 {
		text += fmt.Sprintf(", from second %d on", f.second)
	}
	if f.text != "" {
		text += fmt.Sprintf("; the first: %s", strings.TrimRight(f.text, "."))
	}
	return text + ")."
}

// waits reports whether the error is only that something took too long, or was refused for that, which a queue explains.
func (f *failure) waits() bool {
	text := strings.ToLower(f.text)
	return f.class == result.Timeout || slices.Contains([]int{429, 503, 504}, f.status) || strings.Contains(text, "timeout") ||
		strings.Contains(text, "timed out") || strings.Contains(text, "deadline")
}

// A namedLimit is a limit that the text of an error names.
type namedLimit struct {
	name, limit, advice string
	words               []string // in lower case, of which the text has one
}

// limitsFile has a row per limit: name, limit, advice, and the words. They are searched in their order.
//
//go:embed limits.csv
var limitsFile string

// namedLimits reads the file.
func namedLimits() []namedLimit {
	reader := csv.NewReader(strings.NewReader(limitsFile))
	reader.FieldsPerRecord = -1
	rows, err := reader.ReadAll()
	if err != nil {
		panic("bug: " + err.Error())
	}
	limits := make([]namedLimit, len(rows))
	for i, r := range rows {
		limits[i] = namedLimit{r[0], r[1], r[2], r[3:]}
	}
	return limits
}

// roomy reports whether all watched ports or descriptors contradict a text by which they ran out.
func (s *step) roomy(limit string) bool {
	sampler, used, all, most := result.SamplerTCP, result.PortsMax, result.PortsRange, math.NaN()
	if limit == Descriptors {
		sampler, used, all = result.SamplerProcess, result.FDsMax, result.FDsLimit
	}
	for _, u := range s.usage.Of(sampler) {
		most = highest(most, u.Value(used)/u.Value(all))
	}
	return most < 0.9 && (limit == Ports || limit == Descriptors)
}

// limited: the most frequent error names the limit that is reached, or a watched database has as many connections as it accepts.
func (c *comparison) limited() Verdict {
	f := c.failing.failure()
	if f == nil {
		return Verdict{}
	}
	text := strings.ToLower(f.text)
	for _, l := range namedLimits() {
		if slices.ContainsFunc(l.words, func(word string) bool { return strings.Contains(text, word) }) && !c.failing.roomy(l.name) {
			return Verdict{
				Name: l.name, Score: 1, Advice: l.advice, Evidence: slices.Concat(c.failureFigures(f), c.connectionFigures()), named: true,
				Sentence: f.sentence(c.at()) + " By the text of the first, the only one that is kept, " + l.limit + ".",
			}
		}
	}
	for _, d := range c.failing.databases {
		used, limit := d.Value(result.ConnectionsMax), d.Value(result.ConnectionsLimit)
		if f.class == result.StatusError && !f.waits() && used >= min(0.95*limit, limit-3) {
			return Verdict{
				Name: ConnectionLimit, Score: 0.8, named: true, Evidence: slices.Concat(c.failureFigures(f), c.connectionFigures()),
				Sentence: fmt.Sprintf("%s %s has %s of at most %s connections, so that it refuses more.", f.sentence(c.at()), d.Name,
					sheet.Number(used), sheet.Number(limit)),
				Advice: namedLimits()[2].advice,
			}
		}
	}
	return Verdict{}
}

// failures: requests fail with an error that is no consequence of waiting, and nothing says why.
func (c *comparison) failures() Verdict {
	f := c.failing.failure()
	if f == nil || f.waits() {
		return Verdict{}
	}
	v := Verdict{
		Name: Failures, Score: 1, Sentence: f.sentence(c.at()), Evidence: c.failureFigures(f), named: true,
		Advice: "Read what the service logged then.",
	}
	switch f.class {
	case result.Refused:
		v.Advice = "Nothing listens there: look whether the service ended (its log, its exit status, dmesg), or whether its address is right."
	case result.Reset:
		v.Advice += " A connection is reset or closed early by a program that ends or crashes, by a limit of connections, or by a proxy " +
			"whose timeout for idle connections is shorter than the client's."
	case result.StatusError:
		if f.status == 502 {
			v.Advice = "Read the error log of the proxy: it could not reach the service behind it, or that closed the connection. Watch both."
		}
	}
	if before := c.passing.orUnknown().failure(); before != nil && before.class == f.class {
		v.Sentence += " A lighter load has them too."
	}
	return v
}

// failureFigures are the error in both steps.
func (c *comparison) failureFigures(f *failure) []Figure {
	return []Figure{c.figure("requests that failed: "+f.what(), sheet.UnitShare, func(s *step) float64 {
		switch t := s.load; {
		case t == nil || t.Total.Requests() == 0:
			return math.NaN()
		case f.status != 0:
			return float64(t.Total.Statuses[f.status]) / float64(t.Total.Requests())
		default:
			return float64(t.Total.Errors[f.class]) / float64(t.Total.Requests())
		}
	})}
}

// connectionFigures are the connections of the watched databases.
func (c *comparison) connectionFigures() []Figure {
	var all []Figure
	for _, d := range c.failing.databases {
		all = append(all, c.usageFigures(d.SubjectUsage, result.ConnectionsMax, result.ConnectionsLimit)...)
	}
	return all
}

// An ending is the end of a watched process.
type ending struct {
	name     string
	at       float64 // seconds since the start of the step
	replaced bool    // another took its place
}

// endings returns the ends of processes up to the end of a step that nothing had replaced when it began.
func endings(series []*result.Series, from, to float64) []ending {
	var all []ending
	for _, s := range series {
		for _, e := range s.Errors {
			at := e.At
			if e.Gap {
				at = e.From
			}
			if s.Sampler == result.SamplerProcess && at <= to && result.ProcessEnded(e.Text) && !(e.Gap && e.Until < from) {
				all = append(all, ending{s.Subject, at - from, e.Gap})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ending) int { return cmp.Compare(a.at, b.at) })
	return all
}

// ended: a watched process ended, or the kernel killed a program because there was no memory.
func (c *comparison) ended() Verdict {
	s, f := c.failing, c.failing.failure()
	killed := s.hostsHighest(result.OOMKills) >= 1
	if s.load == nil || len(s.endings) == 0 && !killed || f == nil && !killed {
		return Verdict{}
	}
	v := Verdict{Name: Ended, Score: 1, named: true, Advice: "Find out why it ended: its log, its exit status, dmesg, journalctl -u UNIT."}
	who := "A program"
	if len(s.endings) > 0 {
		who = s.endings[0].name
	}
	switch {
	case killed:
		v.Sentence = fmt.Sprintf("%s was killed %s, because its memory was used up.", who, c.at())
		v.Advice = "Give it more memory (its container, MemoryMax= of its unit), or limit what it keeps: its heap, its caches, its workers."
	case s.endings[0].at < 0:
		v.Sentence = fmt.Sprintf("%s had ended before the step began.", who)
	default:
		v.Sentence = fmt.Sprintf("%s ended %s, after %s.", who, c.at(), sheet.Duration(s.endings[0].at))
	}
	if len(s.endings) > 0 && s.endings[0].replaced {
		v.Sentence += " Another process took its place."
	}
	if f != nil {
		v.Sentence += " " + f.sentence(c.at())
		v.Evidence = c.failureFigures(f)
	}
	for _, p := range s.processes {
		v.Evidence = append(v.Evidence, c.usageFigures(p.SubjectUsage, result.RSSMax, result.MemoryLimit)...)
	}
	return v
}
