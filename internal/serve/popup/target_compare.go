package popup

import (
	"cmp"
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
)

// comparison compiles ==, !=, <, <=, >, >=, in, contains, startsWith, endsWith and
// matches. All but == and != are false where an operand is missing; a missing
// value equals nil and other missing values only.
func (c *compiler) comparison(n *ast.BinaryNode) (predicate, string, error) {
	switch n.Operator {
	case "in":
		return c.membership(n)
	case "matches":
		l, err := c.operand(n.Left)
		if err != nil {
			return nil, "", err
		}
		if l.kind != kindText {
			return nil, "", c.refuse(n, "matches takes text, not %s", l.kind)
		}
		pattern, err := c.pattern(n.Right)
		if err != nil {
			return nil, "", err
		}
		p := func(a *Attributes) bool { s, ok := l.s(a); return ok && pattern.MatchString(s) }
		return p, "(" + l.key + " matches " + pattern.String() + ")", nil
	}
	l, r, err := c.both(n)
	if err != nil {
		return nil, "", err
	}
	key := "(" + l.key + " " + n.Operator + " " + r.key + ")"
	if n.Operator == "!=" {
		p, err := c.equality(n, l, r)
		return func(a *Attributes) bool { return !p(a) }, key, err
	}
	var p predicate
	switch n.Operator {
	case "==":
		p, err = c.equality(n, l, r)
	case "contains":
		p, err = c.texts(n, l, r, strings.Contains)
	case "startsWith":
		p, err = c.texts(n, l, r, strings.HasPrefix)
	case "endsWith":
		p, err = c.texts(n, l, r, strings.HasSuffix)
	default:
		p, err = c.order(n, l, r)
	}
	return p, key, err
}

// texts compiles a test of two texts.
func (c *compiler) texts(n *ast.BinaryNode, l, r operand, test func(s, part string) bool) (predicate, error) {
	if l.kind != kindText || r.kind != kindText {
		return nil, c.refuse(n, "%s takes texts, not %s and %s", n.Operator, l.kind, r.kind)
	}
	return func(a *Attributes) bool {
		s, ok := l.s(a)
		if !ok {
			return false
		}
		part, ok := r.s(a)
		return ok && test(s, part)
	}, nil
}

// equality compiles l == r.
func (c *compiler) equality(n *ast.BinaryNode, l, r operand) (predicate, error) {
	switch {
	case l.kind == kindNil:
		return r.missing(), nil
	case r.kind == kindNil:
		return l.missing(), nil
	case l.kind == kindList || r.kind == kindList:
		return nil, c.refuse(n, "a list is compared with nil only; ask \"x\" in list")
	case l.numeric() && r.numeric() && l.kind != r.kind:
		return equal(l.real(), r.real(), r.literal), nil
	case l.kind != r.kind:
		return nil, c.refuse(n, "%s is never equal to %s", l.kind, r.kind)
	case l.kind == kindReal:
		return equal(l.r, r.r, r.literal), nil
	case l.kind == kindText:
		return equal(l.s, r.s, r.literal), nil
	}
	return equal(l.n, r.n, r.literal), nil
}

// equal compares two values; one that is missing equals another that is.
func equal[T comparable](l, r func(*Attributes) (T, bool), literal bool) predicate {
	if literal {
		y, present := r(nil)
		return func(a *Attributes) bool { x, ok := l(a); return ok == present && (!ok || x == y) }
	}
	return func(a *Attributes) bool {
		x, left := l(a)
		y, right := r(a)
		return left == right && (!left || x == y)
	}
}

// order compiles <, <=, > and >=.
func (c *compiler) order(n *ast.BinaryNode, l, r operand) (predicate, error) {
	switch {
	case l.kind == kindText && r.kind == kindText:
		return ordered(n.Operator, l.s, r.s, r.literal), nil
	case l.kind == kindInt && r.kind == kindInt,
		l.kind == kindTime && r.kind == kindTime,
		l.kind == kindDuration && r.kind == kindDuration:
		return ordered(n.Operator, l.n, r.n, r.literal), nil
	case l.numeric() && r.numeric():
		return ordered(n.Operator, l.real(), r.real(), r.literal), nil
	}
	return nil, c.refuse(n, "%s is not supported between %s and %s", n.Operator, l.kind, r.kind)
}

func ordered[T cmp.Ordered](op string, l, r func(*Attributes) (T, bool), literal bool) predicate {
	switch {
	case op == ">" && !literal:
		return ordered("<", r, l, false)
	case op == ">=" && !literal:
		return ordered("<=", r, l, false)
	case op == "<" && !literal:
		return func(a *Attributes) bool {
			x, left := l(a)
			y, right := r(a)
			return left && right && x < y
		}
	case !literal:
		return func(a *Attributes) bool {
			x, left := l(a)
			y, right := r(a)
			return left && right && x <= y
		}
	}
	return against(op, l, r)
}

// against compares with a literal, which is evaluated here and now.
func against[T cmp.Ordered](op string, l, r func(*Attributes) (T, bool)) predicate {
	y, present := r(nil)
	if !present {
		return func(*Attributes) bool { return false }
	}
	switch op {
	case "<":
		return func(a *Attributes) bool { x, ok := l(a); return ok && x < y }
	case "<=":
		return func(a *Attributes) bool { x, ok := l(a); return ok && x <= y }
	case ">":
		return func(a *Attributes) bool { x, ok := l(a); return ok && x > y }
	}
	return func(a *Attributes) bool { x, ok := l(a); return ok && x >= y }
}

// membership compiles: text in list attribute, x in [literals], integer in 1..9.
func (c *compiler) membership(n *ast.BinaryNode) (predicate, string, error) {
	l, err := c.operand(n.Left)
	if err != nil {
		return nil, "", err
	}
	switch right := n.Right.(type) {
	case *ast.ArrayNode:
		return c.among(n, l, right.Nodes)
	case *ast.BinaryNode:
		if right.Operator == ".." {
			return c.within(n, l, right)
		}
	}
	list, err := c.operand(n.Right)
	if err != nil {
		return nil, "", err
	}
	if list.kind != kindList || l.kind != kindText {
		return nil, "", c.refuse(n, "in takes text and a list, not %s and %s", l.kind, list.kind)
	}
	i := list.slot
	return func(a *Attributes) bool {
		s, ok := l.s(a)
		return ok && a.slots[i].set && slices.Contains(a.slots[i].list, s)
	}, "(" + l.key + " in " + list.key + ")", nil
}

// among compiles x in [a, b, c].
func (c *compiler) among(n *ast.BinaryNode, l operand, nodes []ast.Node) (predicate, string, error) {
	key := "(" + l.key + " in ["
	var elements []operand
	for _, node := range nodes {
		o, err := c.operand(node)
		if err != nil {
			return nil, "", err
		}
		if !o.literal || o.kind != l.kind && !(o.numeric() && l.numeric()) {
			return nil, "", c.refuse(node, "the list must hold literals of type %s", l.kind)
		}
		elements = append(elements, o)
		key += o.key + ","
	}
	key += "])"
	isReal := func(o operand) bool { return o.kind == kindReal }
	integers := !slices.ContainsFunc(elements, isReal)
	if l.kind == kindInt && !integers && slices.ContainsFunc(elements, func(o operand) bool { return !isReal(o) }) {
		return nil, "", c.refuse(n, "the list mixes integers and reals: make them one")
	}
	switch {
	case l.kind == kindText:
		return oneOf(l.s, values(elements, func(o operand) evalText { return o.s })), key, nil
	case l.kind == kindInt && integers, l.kind == kindTime, l.kind == kindDuration:
		return oneOf(l.n, values(elements, func(o operand) evalInt { return o.n })), key, nil
	case l.numeric():
		return oneOf(l.real(), values(elements, operand.real)), key, nil
	}
	return nil, "", c.refuse(n, "in is not supported for %s", l.kind)
}

// values evaluates literals.
func values[T any](elements []operand, eval func(operand) func(*Attributes) (T, bool)) []T {
	var out []T
	for _, o := range elements {
		if v, ok := eval(o)(nil); ok {
			out = append(out, v)
		}
	}
	return out
}

// listed is the length from which a search by hash is faster than one by one.
const listed = 8

func oneOf[T comparable](l func(*Attributes) (T, bool), list []T) predicate {
	if len(list) < listed {
		return func(a *Attributes) bool { v, ok := l(a); return ok && slices.Contains(list, v) }
	}
	set := make(map[T]struct{}, len(list))
	for _, v := range list {
		set[v] = struct{}{}
	}
	return func(a *Attributes) bool {
		v, ok := l(a)
		if !ok {
			return false
		}
		_, ok = set[v]
		return ok
	}
}

// within compiles x in a..b.
func (c *compiler) within(n *ast.BinaryNode, l operand, span *ast.BinaryNode) (predicate, string, error) {
	from, to, err := c.both(span)
	if err != nil {
		return nil, "", err
	}
	if l.kind != kindInt || from.kind != kindInt || to.kind != kindInt || !from.literal || !to.literal {
		return nil, "", c.refuse(n, "in takes an integer and a range of literal integers")
	}
	low, _ := from.n(nil)
	high, _ := to.n(nil)
	p := func(a *Attributes) bool { v, ok := l.n(a); return ok && low <= v && v <= high }
	return p, "(" + l.key + " in " + from.key + ".." + to.key + ")", nil
}
