package popup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/checker"
	"github.com/expr-lang/expr/compiler"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// Bounds of an expression.
const (
	TargetBytesMax  = 4096
	TargetNodesMax  = 500
	PatternStepsMax = 1000 // instructions of one regular expression
)

// TargetError is the error of an expression.
type TargetError struct {
	Line, Column int // from 1; columns are characters
	Message      string
}

// Error returns line:column: message.
func (e *TargetError) Error() string {
	return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message)
}

// CheckTarget returns nil if source is a valid expression for a campaign in a time zone (""
// is UTC) while there are these lists of users. The error is a *TargetError.
func (s *Schema) CheckTarget(source, zone string, lists []string) error {
	_, err := compileTarget(s, source, zone, func(name string) bool { return slices.Contains(lists, name) })
	return err
}

// target is a compiled expression.
type target struct {
	holds      *vm.Program // nil for all users
	conditions []condition // the operands of the outermost "and", for Explain
	uses       attributeSet
	lists      []string // of users that in_list names
	clock      bool     // the value may change without the attributes
	request    bool     // functions read the Attributes
}

// condition is a part of an expression that must be true.
type condition struct {
	holds  *vm.Program
	source string // formatted by the parser
}

// matches reports whether the expression is true.
func (t *target) matches(a *Attributes) bool { return t.holds == nil || a.run(t.holds, t.request) }

// failing returns the first condition that is false; "" if none is.
func (t *target) failing(a *Attributes) string {
	for i := range t.conditions {
		if !a.run(t.conditions[i].holds, t.request) {
			return t.conditions[i].source
		}
	}
	return ""
}

// compileTarget checks and compiles an expression for a campaign in a time zone; "" is UTC.
// isList reports whether a list of users exists; nil: all do.
func compileTarget(schema *Schema, source, zone string, isList func(string) bool) (target, error) {
	if strings.TrimSpace(source) == "" {
		return target{}, nil
	}
	tree, config, err := parseTarget(schema, source)
	if err != nil {
		return target{}, err
	}
	parts := conjuncts(tree.Node, nil)
	t := target{conditions: make([]condition, len(parts))}
	for i, node := range parts {
		t.conditions[i].source = node.String()
	}
	ast.Walk(&tree.Node, calls{})
	if _, err := checker.Check(tree, config); err != nil {
		return target{}, placed(err)
	}
	rules := rules{schema: schema, source: source, config: config, isList: isList}
	if rules.zone = schema.zones.find(cmp.Or(zone, "UTC")); rules.zone == nil {
		return target{}, &TargetError{Line: 1, Column: 1, Message: fmt.Sprintf("unknown time zone %q", zone)}
	}
	if err := rules.condition(&tree.Node); err != nil {
		return target{}, err
	}
	t.uses, t.lists, t.clock, t.request = rules.uses, rules.lists, rules.clock, rules.request
	if err := t.compile(tree, config); err != nil {
		return target{}, placed(err)
	}
	if strings.TrimSpace(source) == Everybody {
		t.holds = nil
	}
	return t, nil
}

// compile compiles a checked tree.
func (t *target) compile(tree *parser.Tree, config *conf.Config) (err error) {
	var guard guard
	compile := func(node ast.Node) (program *vm.Program) {
		if err == nil {
			program, err = compiler.Compile(&parser.Tree{Node: node, Source: tree.Source}, config)
		}
		return program
	}
	var whole ast.Node
	for i, node := range conjuncts(tree.Node, nil) {
		part := guard.condition(node)
		t.conditions[i].holds = compile(part)
		if whole == nil {
			whole = part
		} else {
			whole = operatorNode("and", whole, part)
		}
	}
	t.holds = compile(whole)
	return err
}

// conjuncts appends the operands of nested "and" operators, from left to right.
func conjuncts(node ast.Node, to []ast.Node) []ast.Node {
	if b, ok := node.(*ast.BinaryNode); ok && (b.Operator == "and" || b.Operator == "&&") {
		return conjuncts(b.Right, conjuncts(b.Left, to))
	}
	return append(to, node)
}

// parseTarget parses an expression.
func parseTarget(schema *Schema, source string) (*parser.Tree, *conf.Config, error) {
	if len(source) > TargetBytesMax {
		return nil, nil, &TargetError{
			Line: 1, Column: 1,
			Message: fmt.Sprintf("the expression has %d bytes, more than %d", len(source), TargetBytesMax),
		}
	}
	if !utf8.ValidString(source) {
		return nil, nil, &TargetError{Line: 1, Column: 1, Message: "the expression is not UTF-8"}
	}
	config := conf.CreateNew()
	for _, option := range []expr.Option{expr.Env(schema.environment()), expr.MaxNodes(TargetNodesMax)} {
		option(config)
	}
	for name, function := range functions() {
		config.Functions[callName(name)] = function
		config.Disabled[name] = true // expr's own function of this name
	}
	tree, err := parser.ParseWithConfig(source, config)
	if err != nil {
		return nil, nil, placed(err)
	}
	return tree, config, nil
}

// environment declares the attributes to the checker.
func (s *Schema) environment() map[string]any {
	env := make(map[string]any, len(s.attributes))
	for _, a := range s.attributes {
		env[a.Name] = zeros[a.Type]
	}
	return env
}

// placed converts an error of package expr to a TargetError.
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
