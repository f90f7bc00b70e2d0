package popup

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/checker"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
)

// Bounds of an expression.
const (
	TargetBytesMax  = 4096
	TargetNodesMax  = 500
	PatternStepsMax = 1000 // of one regular expression, compiled
)

// TargetError is the error of an expression that is refused.
type TargetError struct {
	Line, Column int // of the place, from 1; columns are characters
	Message      string
}

// Error returns line:column: message.
func (e *TargetError) Error() string {
	return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message)
}

// CheckTarget reports whether source is an expression that NewSet takes. The
// error is a *TargetError.
func (s *Schema) CheckTarget(source string) error {
	_, err := compileTarget(s, source, nil)
	return err
}

// target is a compiled expression: its conditions, all of which must hold.
type target struct {
	conditions []condition
}

// condition is one of the operands of an expression's outermost "and".
type condition struct {
	holds  predicate
	source string // as the author wrote it, as near as the parser can tell
}

// suits reports whether a's values fulfil t.
func (t *target) suits(a *Attributes) bool {
	for i := range t.conditions {
		if !t.conditions[i].holds(a) {
			return false
		}
	}
	return true
}

// failing returns the first condition that does not hold, "" when all do.
func (t *target) failing(a *Attributes) string {
	for i := range t.conditions {
		if !t.conditions[i].holds(a) {
			return t.conditions[i].source
		}
	}
	return ""
}

// compileTarget compiles source. An empty one suits everybody. Conditions that
// the memo finds in several expressions are evaluated once a decision.
func compileTarget(schema *Schema, source string, memo *memo) (target, error) {
	if strings.TrimSpace(source) == "" {
		return target{}, nil
	}
	root, err := parseTarget(schema, source)
	if err != nil {
		return target{}, err
	}
	c := compiler{schema: schema, source: source, memo: memo}
	var t target
	for _, node := range conjuncts(root, nil) {
		holds, err := c.predicate(node)
		if err != nil {
			return target{}, err
		}
		t.conditions = append(t.conditions, condition{holds: holds, source: node.String()})
	}
	return t, nil
}

// conjuncts appends the operands of nested "and"s, from left to right.
func conjuncts(node ast.Node, to []ast.Node) []ast.Node {
	if b, ok := node.(*ast.BinaryNode); ok && (b.Operator == "and" || b.Operator == "&&") {
		return conjuncts(b.Right, conjuncts(b.Left, to))
	}
	return append(to, node)
}

// parseTarget parses source and checks its types.
func parseTarget(schema *Schema, source string) (ast.Node, error) {
	if len(source) > TargetBytesMax {
		return nil, &TargetError{Line: 1, Column: 1, Message: fmt.Sprintf("the expression has %d bytes, more than %d", len(source), TargetBytesMax)}
	}
	if !utf8.ValidString(source) {
		return nil, &TargetError{Line: 1, Column: 1, Message: "the expression is not UTF-8"}
	}
	config := conf.CreateNew()
	for _, option := range []expr.Option{expr.Env(schema.environment()), expr.MaxNodes(TargetNodesMax)} {
		option(config)
	}
	config.Check()
	tree, err := checker.ParseCheck(source, config)
	if err != nil {
		return nil, placed(err)
	}
	return tree.Node, nil
}

// environment declares the attributes to the checker.
func (s *Schema) environment() map[string]any {
	env := make(map[string]any, len(s.attributes))
	for _, a := range s.attributes {
		switch a.Type {
		case Text:
			env[a.Name] = ""
		case Integer:
			env[a.Name] = 0
		case Real:
			env[a.Name] = 0.0
		case Boolean:
			env[a.Name] = false
		case Timestamp:
			env[a.Name] = time.Time{}
		case TextList:
			env[a.Name] = []string{}
		}
	}
	return env
}

// placed turns an error of the parser or the checker into a TargetError.
func placed(err error) error {
	var at *file.Error
	if !errors.As(err, &at) {
		return &TargetError{Line: 1, Column: 1, Message: firstLine(err.Error())}
	}
	return &TargetError{Line: max(at.Line, 1), Column: at.Column + 1, Message: firstLine(at.Message)}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// memo finds the conditions that several expressions have in common. It sees all
// expressions of a placement twice: first to count, then to share.
type memo struct {
	count   map[string]int
	index   map[string]int // the bit of a condition that is shared
	sharing bool
}

func newMemo() *memo { return &memo{count: map[string]int{}, index: map[string]int{}} }

// words returns how many words the bits of all shared conditions take.
func (m *memo) words() int { return (len(m.index) + 63) / 64 }

// share returns p, or a predicate that evaluates p at most once a decision. Equal
// keys mean equal predicates.
func (m *memo) share(key string, p predicate) predicate {
	if m == nil {
		return p
	}
	if !m.sharing {
		m.count[key]++
		return p
	}
	if m.count[key] < 2 {
		return p
	}
	bit, ok := m.index[key]
	if !ok {
		bit = len(m.index)
		m.index[key] = bit
	}
	word, mask := bit/64, uint64(1)<<(bit%64)
	return func(a *Attributes) bool {
		if a.known[word]&mask != 0 {
			return a.holds[word]&mask != 0
		}
		holds := p(a)
		a.known[word] |= mask
		if holds {
			a.holds[word] |= mask
		}
		return holds
	}
}

// forget makes a remember nothing, with room for so many words.
func (a *Attributes) forget(words int) {
	if cap(a.known) < words {
		a.known, a.holds = make([]uint64, words), make([]uint64, words)
		return
	}
	a.known, a.holds = a.known[:words], a.holds[:words]
	clear(a.known)
	clear(a.holds)
}

// constantCall evaluates date("...") or duration("...") with literal arguments.
func constantCall(node ast.Node) (any, error) {
	value, err := expr.Eval(node.String(), nil)
	if err != nil {
		return nil, errors.New(firstLine(err.Error()))
	}
	switch value := value.(type) {
	case time.Time:
		if !inYears(value) {
			return nil, fmt.Errorf("dates are from %d to %d", yearMin, yearMax)
		}
		return value, nil
	case time.Duration:
		return value, nil
	}
	return nil, fmt.Errorf("unexpected %s", reflect.TypeOf(value))
}
