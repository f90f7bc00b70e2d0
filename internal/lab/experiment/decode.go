package experiment

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// place is where a value stands in the file.
type place struct {
	line, column int
	text         string // of a single value, as written
}

// decoder walks the parsed file and the types side by side, and goes on after a mistake. Its paths are those of the
// keys, with .N for the place in a list: "services.web.command.0".
type decoder struct {
	places   map[string]place
	mistakes Mistakes
}

// decode sets v to what node says.
func (d *decoder) decode(path string, node ast.Node, v reflect.Value) {
	switch node.(type) {
	case nil, *ast.NullNode:
		d.fail(node, path, "has no value; leave the key out for its default")
		return
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.TagNode:
		d.fail(node, path, "YAML anchors, aliases and tags are not read; write the value out")
		return
	}
	at, noted := d.places[path]
	if !noted {
		at = position(node)
	}
	at.text, _ = scalarText(node)
	d.places[path] = at
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(path, node, v.Elem())
	case reflect.Struct:
		d.block(path, node, v)
	case reflect.Map:
		d.mapping(path, node, v)
	case reflect.Slice:
		if key := keyField(v.Type().Elem()); key >= 0 {
			d.named(path, node, v, key)
			return
		}
		d.list(path, node, v)
	default:
		d.scalar(path, node, v)
	}
}

// block sets the fields of a struct from a mapping.
func (d *decoder) block(path string, node ast.Node, v reflect.Value) {
	for _, pair := range d.pairs(path, node) {
		field, ok := fieldByKey(v, pair.key)
		if !ok {
			d.fail(pair.node, join(path, printable(pair.key)), "unknown key; here are "+strings.Join(keys(v.Type()), ", ")+reason(v.Type()))
			continue
		}
		d.decode(join(path, pair.key), pair.value, field)
	}
}

// reason explains a refusal that is on purpose.
func reason(t reflect.Type) string {
	if t == reflect.TypeFor[Variant]() {
		return "; what differs between variants is declared under factors"
	}
	return ""
}

// mapping sets a map of texts, or of lists of texts, to what stands under its keys.
func (d *decoder) mapping(path string, node ast.Node, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	for _, pair := range d.pairs(path, node) {
		value := reflect.New(v.Type().Elem()).Elem()
		d.decode(join(path, pair.key), pair.value, value)
		v.SetMapIndex(reflect.ValueOf(pair.key), value)
	}
}

// named sets a slice of blocks from a mapping whose keys are their names, in the order of the file.
func (d *decoder) named(path string, node ast.Node, v reflect.Value, key int) {
	for _, pair := range d.pairs(path, node) {
		element := reflect.New(v.Type().Elem()).Elem()
		element.Field(key).SetString(pair.key)
		d.optional(join(path, pair.key), pair.value, element)
		v.Set(reflect.Append(v, element))
	}
}

// optional decodes a named block, which may be empty: "client:".
func (d *decoder) optional(path string, node ast.Node, v reflect.Value) {
	if _, empty := node.(*ast.NullNode); !empty && node != nil {
		d.decode(path, node, v)
	}
}

// list sets a slice from a sequence.
func (d *decoder) list(path string, node ast.Node, v reflect.Value) {
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		d.fail(node, path, "must be a list, not "+kindOf(node))
		return
	}
	list := reflect.MakeSlice(v.Type(), 0, len(sequence.Values)) // [] is not the same as no list
	for i, item := range sequence.Values {
		element := reflect.New(v.Type().Elem()).Elem()
		d.decode(join(path, strconv.Itoa(i)), item, element)
		list = reflect.Append(list, element)
	}
	v.Set(list)
}

// scalar sets one value from text.
func (d *decoder) scalar(path string, node ast.Node, v reflect.Value) {
	text, ok := scalarText(node)
	if !ok {
		d.fail(node, path, "must be one value, not "+kindOf(node))
		return
	}
	if message := set(v, text); message != "" {
		d.fail(node, path, message)
	}
}

// set parses text into v. It returns what is wrong with it, or "".
func set(v reflect.Value, text string) string {
	switch v.Interface().(type) {
	case time.Duration:
		duration, err := time.ParseDuration(text)
		if err != nil || duration < 0 {
			return "must be a duration with its unit, as 100ms, 2s or 5m"
		}
		v.SetInt(int64(duration))
	case bool:
		if text != "true" && text != "false" {
			return "must be true or false"
		}
		v.SetBool(text == "true")
	case int:
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return "must be a whole number"
		}
		v.SetInt(int64(n))
	case float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return "must be a number"
		}
		v.SetFloat(x)
	default:
		v.SetString(text)
	}
	return ""
}

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
	for i := mapping.MapRange(); i.Next(); {
		key := i.KeyValue().Key
		name, isText := scalarText(key)
		if !isText || name == "" || len(name) > 200 {
			d.fail(key, path, "a key must be a word")
			continue
		}
		if slices.ContainsFunc(pairs, func(p pair) bool { return p.key == name }) {
			d.fail(key, join(path, printable(name)), "this key stands here twice")
			continue
		}
		d.places[join(path, name)] = position(key)
		pairs = append(pairs, pair{key: name, node: key, value: i.Value()})
	}
	return pairs
}

func (d *decoder) fail(node ast.Node, path, message string) {
	at := place{line: 1, column: 1}
	if known, ok := d.places[path]; ok {
		at = known
	}
	if node != nil {
		at = position(node)
	}
	d.mistakes = append(d.mistakes, Mistake{Line: at.line, Column: at.column, Path: path, Message: message})
}

// position returns where a node begins.
func position(node ast.Node) place {
	if block, ok := node.(*ast.MappingNode); ok && !block.IsFlowStyle && len(block.Values) > 0 {
		node = block.Values[0].Key // the block's own token is its first colon
	}
	return tokenPlace(node.GetToken())
}

func tokenPlace(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{line: 1, column: 1}
	}
	return place{line: max(t.Position.Line, 1), column: max(t.Position.Column, 1)}
}

// scalarText returns a scalar as text: what quotes enclose, or what stands there, numbers as they are written.
func scalarText(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true
	}
	return "", false
}

// kindOf names what a node is, for messages.
func kindOf(node ast.Node) string {
	switch node.(type) {
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a block of keys and values"
	}
	return "one value"
}

// keyField returns the field of a struct that holds its key in the mapping around it, or -1.
func keyField(t reflect.Type) int {
	if t.Kind() != reflect.Struct {
		return -1
	}
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("yaml") == ",key" {
			return i
		}
	}
	return -1
}

// fieldByKey finds the field of a key, inlined structs included.
func fieldByKey(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		switch tag := v.Type().Field(i).Tag.Get("yaml"); tag {
		case "", ",key":
		case ",inline":
			if field, ok := fieldByKey(v.Field(i), key); ok {
				return field, true
			}
		case key:
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// keys lists the keys of a block.
func keys(t reflect.Type) []string {
	var all []string
	for field := range t.Fields() {
		switch tag := field.Tag.Get("yaml"); tag {
		case "", ",key":
		case ",inline":
			all = append(all, keys(field.Type)...)
		default:
			all = append(all, tag)
		}
	}
	return all
}

// printable returns a key as a message may show it.
func printable(key string) string {
	if len(key) > 40 || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f || r > 0x2000 }) {
		return "?"
	}
	return key
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return fmt.Sprintf("%s.%s", path, key)
}
