package watch

import (
	"cmp"
	"slices"
	"strings"
)

// Limits of statements.
const (
	statementsActive = 5  // most frequent ones among the running statements of a reading
	statementsKept   = 20 // of the 50 on which the server has spent the most time, those among the top statementsActive of any reading
)

// A statement is a SQL statement without its literals, and its figures.
type statement struct {
	text   string
	values map[string]float64
}

// A digest is what a server counts of all statements that differ in their literals only.
type digest struct {
	ID      string  `json:"id"`
	Calls   float64 `json:"calls"`
	Seconds float64 `json:"seconds"`
}

// digests chooses the statements to report: those that took the most time between two readings, and from then on.
type digests struct {
	last  map[string]float64 // seconds in the last reading, by id
	texts map[string]string  // of those that were chosen; "" for one that is left out
}

// next returns the digests to report. text finds the text of a digest that is new.
func (d *digests) next(all []digest, text func(id string) (string, error)) ([]statement, error) {
	grown := make([]digest, 0, len(all))
	now := make(map[string]float64, len(all))
	for _, one := range all {
		now[one.ID] = one.Seconds
		if before, ok := d.last[one.ID]; d.last != nil && (!ok || one.Seconds > before) {
			grown = append(grown, digest{ID: one.ID, Seconds: one.Seconds - before})
		}
	}
	d.last = now
	slices.SortFunc(grown, func(a, b digest) int { return cmp.Compare(b.Seconds, a.Seconds) })
	if d.texts == nil {
		d.texts = map[string]string{}
	}
	for _, one := range grown[:min(statementsActive, len(grown))] {
		if _, ok := d.texts[one.ID]; ok || len(d.texts) >= statementsKept {
			continue
		}
		found, err := text(one.ID)
		if err != nil {
			return nil, err
		}
		d.texts[one.ID] = found
	}
	var statements []statement
	for _, one := range all {
		if text := d.texts[one.ID]; text != "" {
			statements = append(statements, statement{text, map[string]float64{"calls_total": one.Calls, "seconds_total": one.Seconds}})
		}
	}
	return statements, nil
}

// own reports whether a statement is that of a sampler.
func ownStatement(text string) bool {
	return strings.Contains(text, "pg_stat_") || strings.Contains(strings.ToLower(text), "information_schema.processlist") ||
		strings.Contains(strings.ToLower(text), "performance_schema.")
}
