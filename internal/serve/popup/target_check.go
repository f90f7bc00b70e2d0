package popup

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/compiler"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// kind is the type of an operand.
type kind string

const (
	kindNil      kind = "nil"
	kindBool     kind = "boolean"
	kindInt      kind = "integer"
	kindReal     kind = "real"
	kindText     kind = "text"
	kindTime     kind = "timestamp"
	kindDuration kind = "duration"
	kindVersion  kind = "version"
	kindList     kind = "list"
	kindMixed    kind = "mixed" // the sides of a choice differ
)

// kinds are those of expr's types.
var kinds = map[reflect.Type]kind{
	reflect.TypeFor[bool](): kindBool, reflect.TypeFor[int](): kindInt, reflect.TypeFor[float64](): kindReal,
	reflect.TypeFor[string](): kindText, reflect.TypeFor[time.Time](): kindTime, reflect.TypeFor[time.Duration](): kindDuration,
	reflect.TypeFor[version](): kindVersion, reflect.TypeFor[[]string](): kindList,
}

func (k kind) numeric() bool { return k == kindInt || k == kindReal }

// kindOf returns the kind that expr's checker found.
func kindOf(node ast.Node) kind {
	if node.Nature().Nil {
		return kindNil
	}
	return cmp.Or(kinds[node.Type()], kindMixed)
}

// rules restricts a tree that expr's checker accepts to the documented subset and
// replaces literal parts by their values.
type rules struct {
	schema *Schema
	source string
	config *conf.Config
	zone   *time.Location         // of the campaign
	isList func(name string) bool // nil: all lists exist

	// Found so far, as in target.
	uses           attributeSet
	lists          []string
	clock, request bool
}

// refuse returns a TargetError at the node.
func (r *rules) refuse(node ast.Node, format string, args ...any) error {
	e := &TargetError{Line: 1, Column: 1, Message: fmt.Sprintf(format, args...)}
	from := node.Location().From
	for _, c := range r.source {
		if from == 0 {
			break
		}
		from--
		e.Column++
		if c == '\n' {
			e.Line, e.Column = e.Line+1, 1
		}
	}
	return e
}

// condition checks an operand that must be boolean.
func (r *rules) condition(node *ast.Node) error {
	if err := r.value(node); err != nil {
		return err
	}
	if k := kindOf(*node); k != kindBool {
		return r.refuse(*node, "a condition is needed, this is of type %s", k)
	}
	return nil
}

// value checks an operand.
func (r *rules) value(node *ast.Node) error {
	switch n := (*node).(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.StringNode:
		return nil
	case *ast.IdentifierNode:
		i, ok := r.schema.index[n.Value]
		if !ok {
			return r.refuse(n, "unknown attribute %s", n.Value)
		}
		r.uses |= 1 << i
		return nil
	case *ast.UnaryNode:
		return r.unary(node, n)
	case *ast.BinaryNode:
		return r.binary(node, n)
	case *ast.ConditionalNode:
		if err := r.condition(&n.Cond); err != nil {
			return err
		}
		return r.choice(n, &n.Exp1, &n.Exp2)
	case *ast.BuiltinNode:
		return r.builtin(node, n)
	case *ast.CallNode:
		return r.call(node, n)
	}
	return r.refuse(*node, "%s is not supported here", describe(*node))
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

func (r *rules) unary(node *ast.Node, n *ast.UnaryNode) error {
	if n.Operator == "not" || n.Operator == "!" {
		return r.condition(&n.Node)
	}
	if err := r.value(&n.Node); err != nil {
		return err
	}
	if k := kindOf(n.Node); !k.numeric() {
		return r.refuse(n, "%s takes a number, not %s", n.Operator, k)
	}
	fold(node)
	return nil
}

// binary checks an operator and its operands.
func (r *rules) binary(node *ast.Node, n *ast.BinaryNode) error {
	switch n.Operator {
	case "and", "&&", "or", "||":
		if err := r.condition(&n.Left); err != nil {
			return err
		}
		return r.condition(&n.Right)
	case "??":
		return r.choice(n, &n.Left, &n.Right)
	case "..":
		return r.refuse(n, "a range stands only behind \"in\"")
	case "in":
		return r.membership(n)
	case "matches":
		return r.matches(n)
	}
	if err := r.value(&n.Left); err != nil {
		return err
	}
	if err := r.value(&n.Right); err != nil {
		return err
	}
	switch n.Operator {
	case "==", "!=":
		return r.equality(n)
	case "<", "<=", ">", ">=":
		return r.order(n)
	case "contains", "startsWith", "endsWith":
		if l, right := kindOf(n.Left), kindOf(n.Right); l != kindText || right != kindText {
			return r.refuse(n, "%s takes texts, not %s and %s", n.Operator, l, right)
		}
		return nil
	}
	return r.arithmetic(node, n)
}

func (r *rules) equality(n *ast.BinaryNode) error {
	left, right := kindOf(n.Left), kindOf(n.Right)
	switch {
	case left == kindNil || right == kindNil:
		return nil
	case left == kindList || right == kindList:
		return r.refuse(n, "a list is compared with nil only; ask \"x\" in list")
	case left == right || left.numeric() && right.numeric():
		return nil
	}
	return r.refuse(n, "%s is never equal to %s", left, right)
}

func (r *rules) order(n *ast.BinaryNode) error {
	left, right := kindOf(n.Left), kindOf(n.Right)
	switch {
	case left.numeric() && right.numeric():
		return nil
	case left == right && (left == kindText || left == kindTime || left == kindDuration || left == kindVersion):
		return nil
	}
	return r.refuse(n, "%s is not supported between %s and %s", n.Operator, left, right)
}

// arithmetic checks an operation on numbers, or the difference of two timestamps.
func (r *rules) arithmetic(node *ast.Node, n *ast.BinaryNode) error {
	left, right := kindOf(n.Left), kindOf(n.Right)
	op := operation(n.Operator)
	switch {
	case left == kindTime && right == kindTime && op == "-":
	case !left.numeric() || !right.numeric():
		return r.refuse(n, "%s is not supported between %s and %s", op, left, right)
	case op == "%" && (left != kindInt || right != kindInt):
		return r.refuse(n, "%% takes integers")
	}
	fold(node)
	return nil
}

// choice checks x and y of "x ?? y" and "c ? x : y". Both are of one type, or nil.
func (r *rules) choice(n ast.Node, x, y *ast.Node) error {
	if err := r.value(x); err != nil {
		return err
	}
	if err := r.value(y); err != nil {
		return err
	}
	left, right := kindOf(*x), kindOf(*y)
	switch {
	case left == kindList || right == kindList:
		return r.refuse(n, "a choice between lists is not supported")
	case left != right && left != kindNil && right != kindNil:
		return r.refuse(n, "one side is of type %s, the other of type %s: make them one (1.0 is real)", left, right)
	}
	return nil
}

// builtin checks the functions of expr that expressions may use.
func (r *rules) builtin(node *ast.Node, n *ast.BuiltinNode) error {
	switch n.Name {
	case "date", "duration":
		for _, arg := range n.Arguments {
			if _, ok := arg.(*ast.StringNode); !ok {
				return r.refuse(arg, "%s() takes literal texts only", n.Name)
			}
		}
		value, err := r.evaluate(n)
		if err != nil {
			return r.refuse(n, "%s", firstLine(err.Error()))
		}
		if t, ok := value.(time.Time); ok && !inYears(t) {
			return r.refuse(n, "dates are from %d to %d", yearMin, yearMax)
		}
		replace(node, constant(value))
		return nil
	case "len":
		if len(n.Arguments) == 1 {
			if err := r.value(&n.Arguments[0]); err != nil {
				return err
			}
			if k := kindOf(n.Arguments[0]); k != kindText && k != kindList {
				return r.refuse(n.Arguments[0], "len takes text or a list, not %s", k)
			}
			return nil
		}
	}
	return r.refuse(n, "%s is not supported here: the functions are %s", describe(n), functionNames)
}

// matches checks the pattern, too.
func (r *rules) matches(n *ast.BinaryNode) error {
	if err := r.value(&n.Left); err != nil {
		return err
	}
	if k := kindOf(n.Left); k != kindText {
		return r.refuse(n, "matches takes text, not %s", k)
	}
	literal, ok := n.Right.(*ast.StringNode)
	if !ok {
		return r.refuse(n.Right, "matches takes a literal pattern only")
	}
	if _, err := regexp.Compile(literal.Value); err != nil {
		return r.refuse(n.Right, "%s", err)
	}
	steps, err := patternSteps(literal.Value)
	if err != nil {
		return r.refuse(n.Right, "%s", err)
	}
	if steps > PatternStepsMax {
		return r.refuse(n.Right, "the pattern has %d steps, more than %d: counted repeats such as {100} multiply them", steps, PatternStepsMax)
	}
	return nil
}

// patternSteps returns how many instructions a pattern has. A search takes time in
// proportion to them and to the length of the text.
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

// membership checks: text in list attribute, x in [literals], integer in 1..9.
func (r *rules) membership(n *ast.BinaryNode) error {
	if err := r.value(&n.Left); err != nil {
		return err
	}
	k := kindOf(n.Left)
	switch right := n.Right.(type) {
	case *ast.ArrayNode:
		return r.among(n, k, right.Nodes)
	case *ast.BinaryNode:
		if right.Operator == ".." {
			return r.within(n, k, right)
		}
	}
	if err := r.value(&n.Right); err != nil {
		return err
	}
	if list := kindOf(n.Right); list != kindList || k != kindText {
		return r.refuse(n, "in takes text and a list, not %s and %s", k, list)
	}
	return nil
}

// among checks x in [a, b, c].
func (r *rules) among(n *ast.BinaryNode, k kind, nodes []ast.Node) error {
	kinds := make([]kind, len(nodes))
	for i := range nodes {
		if err := r.value(&nodes[i]); err != nil {
			return err
		}
		kinds[i] = kindOf(nodes[i])
		if !isLiteral(nodes[i]) || kinds[i] != k && !(kinds[i].numeric() && k.numeric()) {
			return r.refuse(nodes[i], "the list must hold literals of type %s", k)
		}
	}
	switch {
	case k == kindInt && slices.Contains(kinds, kindReal) && slices.Contains(kinds, kindInt):
		return r.refuse(n, "the list mixes integers and reals: make them one")
	case k.numeric(), k == kindText, k == kindTime, k == kindDuration, k == kindVersion:
		return nil
	}
	return r.refuse(n, "in is not supported for %s", k)
}

// within checks x in a..b.
func (r *rules) within(n *ast.BinaryNode, k kind, span *ast.BinaryNode) error {
	if err := r.value(&span.Left); err != nil {
		return err
	}
	if err := r.value(&span.Right); err != nil {
		return err
	}
	if k != kindInt || kindOf(span.Left) != kindInt || kindOf(span.Right) != kindInt || !isLiteral(span.Left) || !isLiteral(span.Right) {
		return r.refuse(n, "in takes an integer and a range of literal integers")
	}
	return nil
}

// isLiteral reports whether a checked node has the same value for all users.
func isLiteral(node ast.Node) bool {
	switch node.(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.ConstantNode:
		return true
	}
	return false
}

// fold replaces an operation on literals by its value, unless that is missing.
func fold(node *ast.Node) {
	var value any
	switch n := (*node).(type) {
	case *ast.UnaryNode:
		value = literalValue(n.Node)
		if n.Operator == "-" {
			value = negate(value)
		}
	case *ast.BinaryNode:
		value = calculate(operation(n.Operator), literalValue(n.Left), literalValue(n.Right))
	}
	if value != nil {
		replace(node, constant(value))
	}
}

// operation returns the name of an operator of arithmetic, which may have two.
func operation(operator string) string {
	if operator == "^" {
		return "**"
	}
	return operator
}

// evaluate returns the value of a node without attributes.
func (r *rules) evaluate(node ast.Node) (any, error) {
	program, err := compiler.Compile(&parser.Tree{Node: node}, r.config)
	if err != nil {
		return nil, err
	}
	return vm.Run(program, nil)
}

// constant returns the node of a value.
func constant(value any) ast.Node {
	return typed(&ast.ConstantNode{Value: value}, reflect.TypeOf(value))
}

// typed sets the type of a node.
func typed(node ast.Node, t reflect.Type) ast.Node {
	node.SetType(t)
	return node
}

// replace puts a node in the place of another one.
func replace(node *ast.Node, by ast.Node) {
	by.SetLocation((*node).Location())
	*node = by
}
