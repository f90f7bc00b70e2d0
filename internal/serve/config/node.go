package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// pair is one key of a mapping, with its value.
type pair struct {
	key   string
	node  ast.Node // the key's
	value ast.Node
}

// pairs returns the distinct keys of a mapping, and reports repeated ones.
func (d *decoder) pairs(path string, node ast.Node) []pair {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		d.fail(node, path, "must be a block of keys and values, not "+kindOf(node))
		return nil
	}
	var pairs []pair
	seen := map[string]int{}
	for i := mapping.MapRange(); i.Next(); {
		key := i.KeyValue().Key
		name, isText := scalarText(key)
		if !isText {
			d.fail(key, path, "a key must be a word, not "+kindOf(key))
			continue
		}
		if line, repeated := seen[name]; repeated {
			d.fail(key, join(path, printable(name)), fmt.Sprintf("this key stands in line %d already", line))
			continue
		}
		seen[name] = position(key.GetToken()).line
		d.places[join(path, name)] = position(key.GetToken()) // until its value is read
		pairs = append(pairs, pair{key: name, node: key, value: i.Value()})
	}
	return pairs
}

// scalarText returns a scalar as text: what quotes and block signs enclose, or
// what stands there.
func scalarText(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode:
		return fmt.Sprint(n.Value), true
	case *ast.FloatNode:
		return n.Token.Value, true
	case *ast.BoolNode:
		return fmt.Sprint(n.Value), true
	case *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true
	}
	return "", false
}

// textNode says whether a scalar is text to YAML, and whether it is quoted.
func textNode(node ast.Node) (isText, quoted bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return true, n.Token.Type == token.SingleQuoteType || n.Token.Type == token.DoubleQuoteType
	case *ast.LiteralNode:
		return true, true
	}
	return false, false
}

// start returns where a node begins.
func start(node ast.Node) place {
	if block, ok := node.(*ast.MappingNode); ok && !block.IsFlowStyle && len(block.Values) > 0 {
		node = block.Values[0].Key // the block's own token is its first colon
	}
	return position(node.GetToken())
}

// kindOf names what a node is, for messages.
func kindOf(node ast.Node) string {
	switch node.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a block of keys and values"
	}
	return "something that a configuration has no use for"
}

// typeName names what a field takes, for messages and for the manual.
func typeName(t reflect.Type) string {
	switch t {
	case secretType:
		return "secret text"
	case durationType:
		return "a duration"
	case keysType:
		return "a column or a list of columns"
	case paramsType:
		return "a block of names and types"
	case columnsType:
		return "a block of columns"
	}
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return "a list of blocks"
		}
		if t.Elem() == secretType {
			return "a list of secret texts"
		}
		return "a list of texts"
	case reflect.Struct:
		return "a block"
	}
	return "text"
}

// hint says how to write what was meant.
func hint(v reflect.Value, node ast.Node) string {
	text, _ := scalarText(node)
	switch {
	case v.Type() == durationType:
		return "; write its unit, as 100ms, 2s or 5m"
	case v.Kind() == reflect.String && text != "":
		return "; put it in quotes"
	case text != "":
		return "; write it without quotes"
	}
	return ""
}

func fieldByKey(t reflect.Type, key string) int {
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("yaml") == key {
			return i
		}
	}
	return -1
}

// suggest names the key of t nearest to a mistyped one, or what keys there are.
func suggest(key string, t reflect.Type) string {
	best, least := "", len(key)/3+2
	var all []string
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("yaml")
		all = append(all, name)
		if n := distance(strings.ToLower(key), name); n < least {
			best, least = name, n
		}
	}
	if best == "" {
		return "; the keys here are " + strings.Join(all, ", ")
	}
	return "; did you mean " + best + "?"
}

// distance counts the letters to insert, drop or change to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// printable returns a key as a message may show it: a malformed line can put
// anything there, a password too.
func printable(key string) string {
	const most = 40
	if len(key) > most || !isIdentifier(strings.NewReplacer("-", "_", ".", "_").Replace(key)) {
		return "?"
	}
	return key
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
