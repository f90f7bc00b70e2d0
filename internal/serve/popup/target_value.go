package popup

import (
	"math"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
)

// sign compiles +x and -x.
func (c *compiler) sign(n *ast.UnaryNode) (operand, error) {
	o, err := c.operand(n.Node)
	switch {
	case err != nil:
		return operand{}, err
	case !o.numeric():
		return operand{}, c.refuse(n, "%s takes a number, not %s", n.Operator, o.kind)
	case n.Operator == "+":
		return o, nil
	}
	out := operand{kind: o.kind, key: "-(" + o.key + ")", literal: o.literal}
	if o.kind == kindInt {
		out.n = func(a *Attributes) (int64, bool) { v, ok := o.n(a); return -v, ok }
	} else {
		out.r = func(a *Attributes) (float64, bool) { v, ok := o.r(a); return -v, ok }
	}
	return out, nil
}

// both compiles the operands of n.
func (c *compiler) both(n *ast.BinaryNode) (l, r operand, err error) {
	if l, err = c.operand(n.Left); err != nil {
		return l, r, err
	}
	r, err = c.operand(n.Right)
	return l, r, err
}

// arithmetic compiles an operation on numbers, or the difference of two times.
// The result is missing where an operand is, and for x % 0.
func (c *compiler) arithmetic(n *ast.BinaryNode) (operand, error) {
	l, r, err := c.both(n)
	if err != nil {
		return operand{}, err
	}
	op := n.Operator
	if op == "^" {
		op = "**"
	}
	out := operand{key: "(" + l.key + op + r.key + ")", literal: l.literal && r.literal}
	switch {
	case l.kind == kindTime && r.kind == kindTime && op == "-":
		out.kind, out.n = kindDuration, integers(op, l.n, r.n)
	case !l.numeric() || !r.numeric():
		return operand{}, c.refuse(n, "%s is not supported between %s and %s", op, l.kind, r.kind)
	case op == "%" && (l.kind != kindInt || r.kind != kindInt):
		return operand{}, c.refuse(n, "%% takes integers")
	case op != "/" && op != "**" && l.kind == kindInt && r.kind == kindInt:
		out.kind, out.n = kindInt, integers(op, l.n, r.n)
	default:
		out.kind, out.r = kindReal, reals(op, l.real(), r.real())
	}
	return out, nil
}

func integers(op string, l, r evalInt) evalInt {
	calculate := func(x, y int64) (int64, bool) { return x % y, true }
	switch op {
	case "+":
		calculate = func(x, y int64) (int64, bool) { return x + y, true }
	case "-":
		calculate = func(x, y int64) (int64, bool) { return x - y, true }
	case "*":
		calculate = func(x, y int64) (int64, bool) { return x * y, true }
	default:
		divisor := r
		r = func(a *Attributes) (int64, bool) { y, ok := divisor(a); return y, ok && y != 0 }
	}
	return func(a *Attributes) (int64, bool) {
		x, ok := l(a)
		if !ok {
			return 0, false
		}
		y, ok := r(a)
		if !ok {
			return 0, false
		}
		return calculate(x, y)
	}
}

func reals(op string, l, r evalReal) evalReal {
	calculate := math.Pow
	switch op {
	case "+":
		calculate = func(x, y float64) float64 { return x + y }
	case "-":
		calculate = func(x, y float64) float64 { return x - y }
	case "*":
		calculate = func(x, y float64) float64 { return x * y }
	case "/":
		calculate = func(x, y float64) float64 { return x / y }
	}
	return func(a *Attributes) (float64, bool) {
		x, ok := l(a)
		if !ok {
			return 0, false
		}
		y, ok := r(a)
		if !ok {
			return 0, false
		}
		return calculate(x, y), true
	}
}

// coalesce compiles l ?? r.
func (c *compiler) coalesce(n *ast.BinaryNode) (operand, error) {
	l, r, err := c.both(n)
	if err != nil {
		return operand{}, err
	}
	present := l.missing()
	return c.either(n, "??("+l.key+","+r.key+")", func(a *Attributes) bool { return !present(a) }, l, r)
}

// ternary compiles cond ? x : y.
func (c *compiler) ternary(n *ast.ConditionalNode) (operand, error) {
	cond, key, err := c.condition(n.Cond)
	if err != nil {
		return operand{}, err
	}
	x, err := c.operand(n.Exp1)
	if err != nil {
		return operand{}, err
	}
	y, err := c.operand(n.Exp2)
	if err != nil {
		return operand{}, err
	}
	return c.either(n, "?("+key+","+x.key+","+y.key+")", cond, x, y)
}

// either is x where cond holds, else y. Both are of one type, or nil.
func (c *compiler) either(n ast.Node, key string, cond predicate, x, y operand) (operand, error) {
	x, y = adopt(x, y.kind), adopt(y, x.kind)
	if x.kind != y.kind {
		return operand{}, c.refuse(n, "one side is of type %s, the other of type %s: make them one (1.0 is real)", x.kind, y.kind)
	}
	out := operand{kind: x.kind, key: key}
	switch x.kind {
	case kindNil:
		out.literal = true
	case kindList:
		return operand{}, c.refuse(n, "a choice between lists is not supported")
	case kindReal:
		out.r = choose(cond, x.r, y.r)
	case kindText:
		out.s = choose(cond, x.s, y.s)
	default:
		out.n = choose(cond, x.n, y.n)
	}
	return out, nil
}

func choose[T any](cond predicate, x, y func(*Attributes) (T, bool)) func(*Attributes) (T, bool) {
	return func(a *Attributes) (T, bool) {
		if cond(a) {
			return x(a)
		}
		return y(a)
	}
}

// adopt makes a missing value of type k of a nil.
func adopt(o operand, k kind) operand {
	if o.kind != kindNil || k == kindList {
		return o
	}
	o.kind = k
	o.n = func(*Attributes) (int64, bool) { return 0, false }
	o.r = func(*Attributes) (float64, bool) { return 0, false }
	o.s = func(*Attributes) (string, bool) { return "", false }
	return o
}

// length compiles len(x): characters of a text, elements of a list.
func (c *compiler) length(node ast.Node) (operand, error) {
	o, err := c.operand(node)
	if err != nil {
		return operand{}, err
	}
	out := operand{kind: kindInt, key: "len(" + o.key + ")"}
	switch o.kind {
	case kindText:
		out.n = func(a *Attributes) (int64, bool) {
			s, ok := o.s(a)
			return int64(utf8.RuneCountInString(s)), ok
		}
	case kindList:
		out.n = func(a *Attributes) (int64, bool) { v := &a.slots[o.slot]; return int64(len(v.list)), v.set }
	default:
		return operand{}, c.refuse(node, "len takes text or a list, not %s", o.kind)
	}
	return out, nil
}
