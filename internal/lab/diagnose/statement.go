package diagnose

import (
	"fmt"
	"math"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// A statement is one that a database ran in a step, without its literals.
type statement struct {
	text    string
	running float64 // mean number of sessions that ran it, by the server's count of its time or else by looking at the sessions
	waiting float64 // of these, for a lock; NaN if not known
	calls   float64 // per second; NaN without pg_stat_statements or performance_schema
}

// statements returns what was seen of a database's statements between two times.
func statements(series []*result.Series, d *result.SubjectUsage, from, to float64) []statement {
	readings := 0
	for _, s := range series {
		if s.Host == d.Host && s.Sampler == d.Sampler && s.Subject == d.Name {
			for _, at := range s.At {
				if at >= from && at <= to {
					readings++
				}
			}
		}
	}
	var found []statement
	for _, s := range series {
		text, ok := strings.CutPrefix(s.Subject, d.Name+": ")
		if !ok || s.Sampler != result.SamplerStatement || s.Host != d.Host {
			continue
		}
		rate := func(name string) float64 { return s.StepGrowth(name, from, to) / (to - from) }
		seen := func(name string) float64 { // a statement that does not run has no sample
			n := s.Count(name, from, to)
			if n == 0 {
				return math.NaN()
			}
			return s.Mean(name, from, to) * float64(n) / float64(max(readings, n))
		}
		one := statement{text: text, running: seen("active"), waiting: seen("waiting_lock"), calls: rate("calls_total")}
		if seconds := rate("seconds_total"); seconds > 0 {
			one.running = seconds
		}
		found = append(found, one)
	}
	return found
}

// top is the statement that the sessions of a database spend the most time on, or the most time waiting for a lock if any waits.
func (d *database) top(forLock bool) *statement {
	var best *statement
	key := func(s *statement) float64 {
		if forLock && s.waiting > 0 {
			return 1e6 + s.waiting
		}
		return s.running
	}
	for i := range d.statements {
		if s := &d.statements[i]; key(s) > 0 && (best == nil || key(s) > key(best)) {
			best = s
		}
	}
	return best
}

// sentence names the statement, "" for nil.
func (s *statement) sentence(forLock bool) string {
	if s == nil {
		return ""
	}
	what := "Most of the time goes into"
	if forLock && s.waiting > 0 {
		what = "Most of them run"
	}
	figures := fmt.Sprintf("%s at once", sheet.Number(s.running))
	if s.calls > 0 {
		figures += fmt.Sprintf(", %s, %s each", sheet.Rate(s.calls), sheet.Duration(s.running/s.calls))
	}
	return fmt.Sprintf(" %s: %s (%s).", what, s.text, figures)
}

// statement returns a statement of a database in this step; its figures are NaN if it was not seen then.
func (s *step) statement(d *database, text string) statement {
	for _, other := range s.databases {
		if other.Host != d.Host || other.Name != d.Name {
			continue
		}
		for _, one := range other.statements {
			if one.text == text {
				return one
			}
		}
	}
	return statement{running: math.NaN(), waiting: math.NaN(), calls: math.NaN()}
}

// statementFigures compare the statement in both steps.
func (c *comparison) statementFigures(d *database, s *statement) []Figure {
	if s == nil {
		return nil
	}
	figure := func(name, unit string, of func(statement) float64) Figure {
		return c.figure(d.Name+": "+name, unit, func(in *step) float64 { return of(in.statement(d, s.text)) })
	}
	return []Figure{
		figure("sessions in this statement", "", func(s statement) float64 { return s.running }),
		figure("calls of this statement", sheet.UnitRate, func(s statement) float64 { return s.calls }),
		figure("mean time of this statement", sheet.UnitSeconds, func(s statement) float64 { return s.running / s.calls }),
	}
}
