package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Mistake is a value that breaks a rule, found by Validate or a Check.
type Mistake struct {
	Path  string // of the value, as feeds[0].window
	Rule  string // what holds: "must be from 1 to 100000"
	Value string // what was found instead; empty: left out of the message, as for secrets
}

// Mistakes are all values that break a rule.
type Mistakes []Mistake

// Error returns one line for each mistake: PATH: RULE, not VALUE.
func (m Mistakes) Error() string {
	lines := make([]string, len(m))
	for i, one := range m {
		lines[i] = one.Path + ": " + one.Rule + notValue(one.Value)
	}
	return strings.Join(lines, "\n")
}

// Check is a rule that needs knowledge beyond this package, such as SQL. It is
// given the whole configuration, defaults filled in.
type Check func(Config) []Mistake

// Error is one mistake in the file, with its place.
type Error struct {
	File         string
	Line, Column int    // from 1
	Path         string // of the value, as feeds[0].window; empty: of the file
	Message      string // one line, without secrets
}

// Error returns one line: FILE:LINE:COLUMN: PATH: MESSAGE.
func (e Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", e.File, e.Line, e.Column, e.Path, e.Message)
}

// Errors are all mistakes of a file, in its order.
type Errors []Error

// Error returns one line for each mistake.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// sort puts the mistakes into the file's order and drops repeated ones.
func (e Errors) sort() Errors {
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.Compact(e)
}
