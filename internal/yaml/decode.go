package yaml

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// decode sets v, which holds the default, from node.
func (d *Document) decode(path string, node ast.Node, v reflect.Value) {
	if null, ok := v.Addr().Interface().(NullDecoder); ok && isNull(node) {
		d.Places[path] = start(node)
		null.DecodeNull()
		return
	}
	if !d.readable(path, node) {
		return
	}
	at := start(node)
	at.Text, _ = writtenText(node)
	d.Places[path] = at
	if custom, ok := v.Addr().Interface().(Decoder); ok {
		custom.DecodeYAML(Node{d, path, node})
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(path, node, v.Elem())
	case reflect.Struct:
		d.block(path, node, v)
	case reflect.Map:
		d.mapping(path, node, v)
	case reflect.Slice:
		if key := taggedField(v.Type().Elem(), "yaml", ",key"); key >= 0 {
			d.named(path, node, v, key)
			return
		}
		d.list(path, node, v)
	default:
		d.scalar(path, node, v)
	}
}

// isNull reports whether null is written, and not just nothing.
func isNull(node ast.Node) bool {
	null, ok := node.(*ast.NullNode)
	return ok && (null.Token.Value == "null" || null.Token.Value == "~")
}

// readable refuses a missing value, and YAML's own references.
func (d *Document) readable(path string, node ast.Node) bool {
	switch node.(type) {
	case nil, *ast.NullNode:
		d.report(d.place(path), path, "has no value; leave the key out for its default")
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		d.report(d.place(path), path, "YAML anchors and aliases are not supported; write the value out")
	case *ast.TagNode:
		d.report(d.place(path), path, "YAML tags are not supported; write the value alone")
	default:
		return true
	}
	return false
}

// block sets the fields of a struct from a mapping.
func (d *Document) block(path string, node ast.Node, v reflect.Value) {
	for _, pair := range d.pairs(path, node) {
		field, ok := fieldByKey(v, pair.key)
		if !ok {
			message := "unknown key" + suggest(pair.key, keysOf(v.Type()))
			if h, ok := v.Interface().(Hinter); ok {
				message += "; " + h.UnknownKeyHint()
			}
			d.fail(pair.node, Join(path, Printable(pair.key)), message)
			continue
		}
		d.decode(Join(path, pair.key), pair.value, field)
	}
}

// mapping sets a map with text keys.
func (d *Document) mapping(path string, node ast.Node, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	for _, pair := range d.pairs(path, node) {
		value := reflect.New(v.Type().Elem()).Elem()
		d.decode(Join(path, pair.key), pair.value, value)
		v.SetMapIndex(reflect.ValueOf(pair.key), value)
	}
}

// named sets a slice of structs from a mapping of names to structs, in the file's order. A
// struct without a short form may be left out: "client:".
func (d *Document) named(path string, node ast.Node, v reflect.Value, key int) {
	short := taggedField(v.Type().Elem(), "short", "true")
	for _, pair := range d.pairs(path, node) {
		element := reflect.New(v.Type().Elem()).Elem()
		element.Field(key).SetString(pair.key)
		target := element
		if _, isScalar := scalarText(pair.value); short >= 0 && (isScalar || len(keysOf(element.Type())) == 0) {
			target = element.Field(short)
		}
		_, empty := pair.value.(*ast.NullNode)
		switch {
		case short >= 0: // its rules are of the caller, who names it as Printable does
			d.decode(Join(path, Printable(pair.key)), pair.value, target)
		case !empty && pair.value != nil:
			d.decode(Join(path, pair.key), pair.value, target)
		}
		v.Set(reflect.Append(v, element))
	}
}

// list sets a slice from a sequence. Each element starts with its defaults.
func (d *Document) list(path string, node ast.Node, v reflect.Value) {
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		d.fail(node, path, "must be a list, not "+kindOf(node))
		return
	}
	list := reflect.Zero(v.Type())
	if d.options.KeepEmpty {
		list = reflect.MakeSlice(v.Type(), 0, len(sequence.Values))
	}
	for i, item := range sequence.Values {
		element := reflect.New(v.Type().Elem()).Elem()
		if d.options.Preset != nil {
			if preset, ok := d.options.Preset(v.Type().Elem()); ok {
				element.Set(preset)
			}
		}
		d.decode(Index(path, i), item, element)
		list = reflect.Append(list, element)
	}
	v.Set(list)
}

// scalar sets one value from text.
func (d *Document) scalar(path string, node ast.Node, v reflect.Value) {
	duration := v.Type() == reflect.TypeFor[time.Duration]()
	wantsText := v.Kind() == reflect.String || duration
	text, expanded, ok := d.text(path, node, v.Kind() == reflect.String)
	if !ok || !expanded && !d.checkKind(path, node, typeName(v.Type()), wantsText) {
		return
	}
	if d.Places[path].unknown && v.Kind() != reflect.String {
		return
	}
	if problem := d.set(v, text); problem != "" {
		d.fail(node, path, problem+d.quote(d.Places[path], text))
	}
}

// checkKind reports whether node is text or not, as wanted.
func (d *Document) checkKind(path string, node ast.Node, name string, wantsText bool) bool {
	isText, quoted := textNode(node)
	duration := name == durationName
	if wantsText == isText || !wantsText && !quoted || d.options.Loose && !duration {
		return true
	}
	hint := "; write it without quotes"
	switch {
	case duration:
		hint = "; write its unit, as 100ms, 2s or 5m"
	case wantsText:
		hint = "; put it in quotes"
	}
	if text, _ := scalarText(node); text == "" && !duration {
		hint = ""
	}
	d.fail(node, path, "must be "+name+", not "+kindOf(node)+hint)
	return false
}

// set parses text into v. It returns what is wrong with it, or "".
func (d *Document) set(v reflect.Value, text string) string {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		duration, err := time.ParseDuration(text)
		if err != nil || d.options.Unsigned && duration < 0 {
			return "must be a duration with its unit, as 100ms, 2s or 5m"
		}
		v.SetInt(int64(duration))
		return ""
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return "must be true or false"
		}
		v.SetBool(text == "true")
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil || d.options.Unsigned && n < 0 {
			return "must be a whole number"
		}
		v.SetInt(int64(n))
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return "must be a number"
		}
		v.SetFloat(x)
	default:
		panic("bug: a field of type " + v.Type().String())
	}
	return ""
}

// text returns a scalar with environment variables expanded, and whether there were any.
// asWritten keeps the spelling of a number.
func (d *Document) text(path string, node ast.Node, asWritten bool) (text string, expanded, ok bool) {
	text, isScalar := scalarText(node)
	if !isScalar {
		d.fail(node, path, "must be one value, not "+kindOf(node))
		return "", false, false
	}
	if asWritten {
		text, _ = writtenText(node)
	}
	if d.options.Env == nil || !strings.Contains(text, "${") {
		return text, false, true
	}
	plain, err := Expand(text, d.options.Env)
	switch {
	case errors.Is(err, errUnset) && d.options.Partial:
		d.setUnknown(path)
		return text, true, true
	case err != nil:
		d.fail(node, path, err.Error())
		return "", false, false
	}
	at := d.Places[path]
	at.expanded = true
	d.Places[path] = at
	return plain, true, true
}

// setUnknown records that the value at path is unknown.
func (d *Document) setUnknown(path string) {
	at := d.Places[path]
	at.unknown = true
	d.Places[path] = at
}

// pair is one key of a mapping with its value.
type pair struct {
	key   string
	node  ast.Node // the key's
	value ast.Node
}

// pairs returns the distinct keys of a mapping, and reports repeated ones.
func (d *Document) pairs(path string, node ast.Node) []pair {
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
		if !isText || len(name) > keyMax {
			d.fail(key, path, "a key must be a word, not "+kindOf(key))
			continue
		}
		at := position(key.GetToken())
		if line, repeated := seen[name]; repeated {
			d.fail(key, Join(path, Printable(name)), fmt.Sprintf("duplicate key, first in line %d", line))
			continue
		}
		seen[name] = at.Line
		d.Places[Join(path, name)] = at // until its value is read
		pairs = append(pairs, pair{key: name, node: key, value: i.Value()})
	}
	return pairs
}

// keyMax bounds a key, in bytes.
const keyMax = 200

// fail reports a mistake at node.
func (d *Document) fail(node ast.Node, path, message string) {
	d.report(position(node.GetToken()), path, message)
}

// taggedField returns the field of a struct whose tag has a value, or -1.
func taggedField(t reflect.Type, tag, value string) int {
	if t.Kind() != reflect.Struct {
		return -1
	}
	for i := range t.NumField() {
		if t.Field(i).Tag.Get(tag) == value {
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

// keysOf lists the keys of a struct.
func keysOf(t reflect.Type) []string {
	var all []string
	for field := range t.Fields() {
		switch tag := field.Tag.Get("yaml"); tag {
		case "", ",key":
		case ",inline":
			all = append(all, keysOf(field.Type)...)
		default:
			all = append(all, tag)
		}
	}
	return all
}

// suggest names the key nearest to a mistyped one, or lists all keys.
func suggest(key string, all []string) string {
	best := Nearest(key, all)
	if best == "" {
		return "; the keys here are " + strings.Join(all, ", ")
	}
	return "; did you mean " + best + "?"
}

// Nearest returns the name that a mistyped one may mean; "": none is near.
func Nearest(typed string, all []string) string {
	best, least := "", len(typed)/3+2
	for _, name := range all {
		if n := Distance(strings.ToLower(typed), name); n < least {
			best, least = name, n
		}
	}
	return best
}

// Distance is the Levenshtein distance of two words.
func Distance(a, b string) int {
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

// Printable returns a key as a message may show it. A malformed line can put anything into
// a key, also a password.
func Printable(key string) string {
	const most = 40
	if len(key) > most || !IsIdentifier(strings.NewReplacer("-", "_", ".", "_").Replace(key)) {
		return "?"
	}
	return key
}

const durationName = "a duration"

// typeName names what a scalar's type accepts.
func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return durationName
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "text"
}
