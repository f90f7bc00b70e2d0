package popup

import (
	"fmt"
	"math"
	"reflect"

	"github.com/expr-lang/expr/ast"
)

// guard rewrites checked trees so that expr's machine evaluates them without an error if
// attributes are missing. A missing value is nil, and so is a calculation that has no value.
// Comparisons with nil are false, except == and !=.
type guard struct {
	variables int // declared so far
}

// nullable is the type of nodes whose value may be nil. expr's compiler uses instructions
// that accept nil for it.
type nullable struct{}

// dynamic marks a node whose value may be nil.
func dynamic[N ast.Node](node N) N {
	node.SetType(reflect.TypeFor[nullable]())
	return node
}

func absent() ast.Node { return dynamic(&ast.NilNode{}) }

// callNode calls a function, which accepts nil.
func callNode(name string, arguments ...ast.Node) ast.Node {
	return dynamic(&ast.CallNode{Callee: dynamic(&ast.IdentifierNode{Value: callName(name)}), Arguments: arguments})
}

func operatorNode(op string, left, right ast.Node) ast.Node {
	return dynamic(&ast.BinaryNode{Operator: op, Left: left, Right: right})
}

// condition rewrites a node whose value must be boolean. A missing value becomes false.
func (g *guard) condition(node ast.Node) ast.Node {
	out := g.value(node)
	switch n := node.(type) {
	case *ast.IdentifierNode, *ast.ConditionalNode:
		return operatorNode("??", out, constant(false))
	case *ast.BinaryNode:
		if n.Operator == "??" {
			return operatorNode("??", out, constant(false))
		}
	}
	return out
}

// value rewrites a node whose value may be missing.
func (g *guard) value(node ast.Node) ast.Node {
	switch n := node.(type) {
	case *ast.NilNode:
		return absent()
	case *ast.IntegerNode:
		return constant(n.Value) // converted to an interface once
	case *ast.FloatNode:
		return constant(n.Value)
	case *ast.IdentifierNode:
		return dynamic(n)
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			return dynamic(&ast.UnaryNode{Operator: n.Operator, Node: g.condition(n.Node)})
		}
		if n.Operator == "-" {
			return callNode("negate", g.value(n.Node))
		}
		return g.value(n.Node)
	case *ast.BinaryNode:
		return g.binary(n)
	case *ast.ConditionalNode:
		return dynamic(&ast.ConditionalNode{Cond: g.condition(n.Cond), Exp1: g.value(n.Exp1), Exp2: g.value(n.Exp2)})
	case *ast.CallNode:
		arguments := make([]ast.Node, len(n.Arguments))
		for i := range arguments {
			arguments[i] = g.value(n.Arguments[i])
		}
		return dynamic(&ast.CallNode{Callee: dynamic(n.Callee), Arguments: arguments})
	case *ast.BuiltinNode: // len; date and duration are constants by now
		operand := g.value(n.Arguments[0])
		return g.where(&operand, nil, absent(), func() ast.Node {
			return dynamic(&ast.BuiltinNode{Name: n.Name, Arguments: []ast.Node{operand}})
		})
	}
	return node
}

func (g *guard) binary(n *ast.BinaryNode) ast.Node {
	switch n.Operator {
	case "and", "&&", "or", "||":
		return operatorNode(n.Operator, g.condition(n.Left), g.condition(n.Right))
	case "in":
		return g.in(n)
	}
	numbers := kindOf(n.Left).numeric() && kindOf(n.Right).numeric()
	left, right := g.value(n.Left), g.value(n.Right)
	same := func() ast.Node { return operatorNode(n.Operator, left, right) }
	switch n.Operator {
	case "<", "<=", ">", ">=":
		if numbers { // comparisons with NaN are false
			left, right = orNaN(left), orNaN(right)
			return same()
		}
		return g.where(&left, &right, constant(false), same)
	case "+", "-", "*", "/", "%", "**", "^":
		return callNode("calculate", constant(operation(n.Operator)), left, right)
	}
	return same() // expr's machine accepts nil here
}

// orNaN replaces a missing number by NaN.
func orNaN(node ast.Node) ast.Node {
	if isLiteral(node) {
		return node
	}
	return operatorNode("??", node, constant(math.NaN()))
}

// listed is the length from which a list of literals is searched by hash.
const listed = 8

// in rewrites a membership. expr's machine accepts nil, except in a range or a hash.
func (g *guard) in(n *ast.BinaryNode) ast.Node {
	left := g.value(n.Left)
	switch right := n.Right.(type) {
	case *ast.BinaryNode: // a range
		return g.where(&left, nil, constant(false), func() ast.Node {
			return operatorNode("and", operatorNode(">=", left, g.value(right.Left)), operatorNode("<=", left, g.value(right.Right)))
		})
	case *ast.ArrayNode:
		values := make([]any, len(right.Nodes))
		texts := make(map[string]struct{})
		for i, node := range right.Nodes {
			values[i] = literalValue(node)
			if text, ok := values[i].(string); ok {
				texts[text] = struct{}{}
			}
		}
		if len(texts) < listed {
			return operatorNode("in", left, constant(values))
		}
		return g.where(&left, nil, constant(false), func() ast.Node { return operatorNode("in", left, constant(texts)) })
	}
	return operatorNode("in", left, g.value(n.Right))
}

// literalValue returns the value of a literal.
func literalValue(node ast.Node) any {
	switch n := node.(type) {
	case *ast.IntegerNode:
		return n.Value
	case *ast.FloatNode:
		return n.Value
	case *ast.StringNode:
		return n.Value
	case *ast.ConstantNode:
		return n.Value
	}
	return nil
}

// where returns a tree that evaluates then if no operand is missing, and otherwise if one is.
// An operand that is an expression is stored in a variable, so that it is evaluated once.
// y may be nil.
func (g *guard) where(x, y *ast.Node, otherwise ast.Node, then func() ast.Node) ast.Node {
	var missing ast.Node
	var bound []*ast.VariableDeclaratorNode
	for _, operand := range []*ast.Node{x, y} {
		if operand == nil || isLiteral(*operand) {
			continue
		}
		if _, ok := (*operand).(*ast.IdentifierNode); !ok {
			g.variables++
			name := fmt.Sprintf("operand %d", g.variables)
			bound = append(bound, dynamic(&ast.VariableDeclaratorNode{Name: name, Value: *operand}))
			*operand = dynamic(&ast.IdentifierNode{Value: name})
		}
		isNil := operatorNode("==", *operand, absent())
		if missing == nil {
			missing = isNil
		} else {
			missing = operatorNode("or", missing, isNil)
		}
	}
	out := then()
	if missing != nil {
		out = dynamic(&ast.ConditionalNode{Cond: missing, Exp1: otherwise, Exp2: out})
	}
	for i := len(bound) - 1; i >= 0; i-- {
		bound[i].Expr = out
		out = bound[i]
	}
	return out
}
