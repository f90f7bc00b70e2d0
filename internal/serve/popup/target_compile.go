package popup

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"github.com/expr-lang/expr/ast"
)

// predicate is a condition. It is pure: for equal attributes it gives the same.
type predicate func(a *Attributes) bool

// kind is what an operand is.
type kind uint8

const (
	kindNil kind = iota
	kindBool
	kindInt
	kindReal
	kindText
	kindTime
	kindDuration
	kindList
)

func (k kind) String() string {
	return [...]string{"nil", "boolean", "integer", "real", "text", "timestamp", "duration", "list"}[k]
}

// Evaluations; false: the value is missing.
type (
	evalInt  = func(a *Attributes) (int64, bool)
	evalReal = func(a *Attributes) (float64, bool)
	evalText = func(a *Attributes) (string, bool)
)

// operand is a compiled part of an expression. The field of its kind evaluates it.
type operand struct {
	kind    kind
	key     string   // equal keys mean equal operands
	n       evalInt  // boolean (0 or 1), integer, timestamp and duration (nanoseconds)
	r       evalReal // real
	s       evalText // text
	slot    int      // list: which attribute
	literal bool     // the value does not depend on attributes
}

func (o operand) numeric() bool { return o.kind == kindInt || o.kind == kindReal }

// real evaluates a number as a real one.
func (o operand) real() evalReal {
	if o.kind == kindReal {
		return o.r
	}
	n := o.n
	return func(a *Attributes) (float64, bool) {
		v, ok := n(a)
		return float64(v), ok
	}
}

// missing reports whether the operand has no value.
func (o operand) missing() predicate {
	switch o.kind {
	case kindNil:
		return func(*Attributes) bool { return true }
	case kindReal:
		return func(a *Attributes) bool { _, ok := o.r(a); return !ok }
	case kindText:
		return func(a *Attributes) bool { _, ok := o.s(a); return !ok }
	case kindList:
		return func(a *Attributes) bool { return !a.slots[o.slot].set }
	}
	return func(a *Attributes) bool { _, ok := o.n(a); return !ok }
}

// compiler turns checked nodes into closures.
type compiler struct {
	schema *Schema
	source string
	memo   *memo
}

// refuse returns a TargetError at the node.
func (c *compiler) refuse(node ast.Node, format string, args ...any) error {
	e := &TargetError{Line: 1, Column: 1, Message: fmt.Sprintf(format, args...)}
	from := node.Location().From
	for _, r := range c.source {
		if from == 0 {
			break
		}
		from--
		e.Column++
		if r == '\n' {
			e.Line, e.Column = e.Line+1, 1
		}
	}
	return e
}

// predicate compiles a condition. A missing boolean counts as false.
func (c *compiler) predicate(node ast.Node) (predicate, error) {
	p, _, err := c.condition(node)
	return p, err
}

// condition is predicate with the key.
func (c *compiler) condition(node ast.Node) (predicate, string, error) {
	switch n := node.(type) {
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			p, key, err := c.condition(n.Node)
			return func(a *Attributes) bool { return !p(a) }, "not(" + key + ")", err
		}
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&":
			return c.junction(n, "and", func(l, r predicate) predicate {
				return func(a *Attributes) bool { return l(a) && r(a) }
			})
		case "or", "||":
			return c.junction(n, "or", func(l, r predicate) predicate {
				return func(a *Attributes) bool { return l(a) || r(a) }
			})
		case "==", "!=", "<", "<=", ">", ">=", "in", "contains", "startsWith", "endsWith", "matches":
			p, key, err := c.comparison(n)
			if err != nil {
				return nil, "", err
			}
			return c.memo.share(key, p), key, nil
		}
	}
	o, err := c.operand(node)
	if err != nil {
		return nil, "", err
	}
	if o.kind != kindBool {
		return nil, "", c.refuse(node, "a condition is needed, this is of type %s", o.kind)
	}
	n := o.n
	return func(a *Attributes) bool { v, ok := n(a); return ok && v != 0 }, o.key, nil
}

func (c *compiler) junction(n *ast.BinaryNode, name string, join func(l, r predicate) predicate) (predicate, string, error) {
	l, left, err := c.condition(n.Left)
	if err != nil {
		return nil, "", err
	}
	r, right, err := c.condition(n.Right)
	if err != nil {
		return nil, "", err
	}
	return join(l, r), name + "(" + left + "," + right + ")", nil
}

// operand compiles a value.
func (c *compiler) operand(node ast.Node) (operand, error) {
	switch n := node.(type) {
	case *ast.NilNode:
		return operand{kind: kindNil, key: "nil", literal: true}, nil
	case *ast.BoolNode:
		if n.Value {
			return constant(kindBool, 1), nil
		}
		return constant(kindBool, 0), nil
	case *ast.IntegerNode:
		return constant(kindInt, int64(n.Value)), nil
	case *ast.FloatNode:
		v := n.Value
		key := "r" + strconv.FormatFloat(v, 'g', -1, 64)
		return operand{kind: kindReal, key: key, literal: true, r: func(*Attributes) (float64, bool) { return v, true }}, nil
	case *ast.StringNode:
		v := n.Value
		return operand{kind: kindText, key: strconv.Quote(v), literal: true, s: func(*Attributes) (string, bool) { return v, true }}, nil
	case *ast.IdentifierNode:
		return c.attribute(n)
	case *ast.UnaryNode:
		if n.Operator == "-" || n.Operator == "+" {
			return c.sign(n)
		}
		return c.boolean(node)
	case *ast.BinaryNode:
		switch n.Operator {
		case "+", "-", "*", "/", "%", "**", "^":
			return c.arithmetic(n)
		case "??":
			return c.coalesce(n)
		case "..":
			return operand{}, c.refuse(node, "a range stands only behind \"in\"")
		}
		return c.boolean(node)
	case *ast.ConditionalNode:
		return c.ternary(n)
	case *ast.BuiltinNode:
		return c.call(n)
	}
	return operand{}, c.refuse(node, "%s is not supported here", describe(node))
}

// describe names a node that is refused.
func describe(node ast.Node) string {
	switch n := node.(type) {
	case *ast.CallNode:
		return "a call of a function"
	case *ast.BuiltinNode:
		return n.Name + "()"
	case *ast.MemberNode, *ast.ChainNode:
		return "access to an element or a field"
	case *ast.SliceNode:
		return "a slice"
	case *ast.ArrayNode:
		return "a list"
	case *ast.MapNode:
		return "a map"
	case *ast.PredicateNode, *ast.PointerNode:
		return "a closure"
	case *ast.VariableDeclaratorNode:
		return "let"
	case *ast.SequenceNode:
		return "a sequence"
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", node), "*ast.")
}

func constant(k kind, v int64) operand {
	key := strconv.Itoa(int(k)) + "#" + strconv.FormatInt(v, 10)
	return operand{kind: k, key: key, literal: true, n: func(*Attributes) (int64, bool) { return v, true }}
}

// boolean makes an operand of a condition: it is never missing.
func (c *compiler) boolean(node ast.Node) (operand, error) {
	p, key, err := c.condition(node)
	return operand{kind: kindBool, key: key, n: func(a *Attributes) (int64, bool) {
		if p(a) {
			return 1, true
		}
		return 0, true
	}}, err
}

func (c *compiler) attribute(n *ast.IdentifierNode) (operand, error) {
	i, ok := c.schema.index[n.Value]
	if !ok {
		return operand{}, c.refuse(n, "unknown attribute %s", n.Value)
	}
	o := operand{key: "@" + n.Value, slot: i}
	integer := func(a *Attributes) (int64, bool) { v := &a.slots[i]; return v.n, v.set }
	switch c.schema.attributes[i].Type {
	case Text:
		o.kind, o.s = kindText, func(a *Attributes) (string, bool) { v := &a.slots[i]; return v.s, v.set }
	case Real:
		o.kind, o.r = kindReal, func(a *Attributes) (float64, bool) { v := &a.slots[i]; return v.r, v.set }
	case Integer:
		o.kind, o.n = kindInt, integer
	case Boolean:
		o.kind, o.n = kindBool, integer
	case Timestamp:
		o.kind, o.n = kindTime, integer
	case TextList:
		o.kind = kindList
	}
	return o, nil
}

// call compiles the functions that expressions may use.
func (c *compiler) call(n *ast.BuiltinNode) (operand, error) {
	switch n.Name {
	case "date", "duration":
		for _, arg := range n.Arguments {
			if _, ok := arg.(*ast.StringNode); !ok {
				return operand{}, c.refuse(arg, "%s() takes literal texts only", n.Name)
			}
		}
		value, err := constantCall(n)
		if err != nil {
			return operand{}, c.refuse(n, "%s", err)
		}
		if t, ok := value.(time.Time); ok {
			return constant(kindTime, t.UnixNano()), nil
		}
		return constant(kindDuration, int64(value.(time.Duration))), nil
	case "len":
		if len(n.Arguments) == 1 {
			return c.length(n.Arguments[0])
		}
	}
	return operand{}, c.refuse(n, "%s is not supported here: the functions are date, duration and len", describe(n))
}

// pattern compiles the right side of "matches".
func (c *compiler) pattern(node ast.Node) (*regexp.Regexp, error) {
	literal, ok := node.(*ast.StringNode)
	if !ok {
		return nil, c.refuse(node, "matches takes a literal pattern only")
	}
	pattern, err := regexp.Compile(literal.Value)
	if err != nil {
		return nil, c.refuse(node, "%s", err)
	}
	steps, err := patternSteps(literal.Value)
	if err != nil {
		return nil, c.refuse(node, "%s", err)
	}
	if steps > PatternStepsMax {
		return nil, c.refuse(node, "the pattern has %d steps, more than %d: counted repeats such as {100} multiply them", steps, PatternStepsMax)
	}
	return pattern, nil
}

// patternSteps returns the length of a pattern's program: what a match takes is at most
// that for each byte of the text, and so is its memory.
func patternSteps(pattern string) (int, error) {
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return 0, err
	}
	return len(program.Inst), nil
}
