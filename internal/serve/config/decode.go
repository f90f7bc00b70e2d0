package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

var (
	secretType   = reflect.TypeFor[Secret]()
	durationType = reflect.TypeFor[time.Duration]()
	keysType     = reflect.TypeFor[Keys]()
	paramsType   = reflect.TypeFor[Params]()
	columnsType  = reflect.TypeFor[Columns]()
)

// decoder walks the parsed file and the configuration's types side by side. It
// goes on after a mistake, so that all of them are found in one run.
type decoder struct {
	env      func(string) (string, bool)
	readFile func(string) ([]byte, error)
	places   map[string]place // of each value, by path
	errs     Errors
}

// decode sets v, which holds the default, to what node says.
func (d *decoder) decode(path string, node ast.Node, v reflect.Value) {
	if !d.readable(path, node) {
		return
	}
	d.note(path, node)
	switch v.Type() {
	case keysType:
		d.keys(path, node, v)
		return
	case paramsType:
		d.params(path, node, v)
		return
	case columnsType:
		d.columns(path, node, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.block(path, node, v)
	case reflect.Slice:
		d.list(path, node, v)
	default:
		d.scalar(path, node, v)
	}
}

// block sets the fields of a struct from a mapping.
func (d *decoder) block(path string, node ast.Node, v reflect.Value) {
	for _, pair := range d.pairs(path, node) {
		i := fieldByKey(v.Type(), pair.key)
		if i < 0 {
			d.fail(pair.node, join(path, printable(pair.key)), "unknown key"+suggest(pair.key, v.Type()))
			continue
		}
		d.decode(join(path, pair.key), pair.value, v.Field(i))
	}
}

// list sets a slice from a sequence. Each element starts with its defaults.
func (d *decoder) list(path string, node ast.Node, v reflect.Value) {
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		d.fail(node, path, "must be a list, not "+kindOf(node))
		return
	}
	list := reflect.Zero(v.Type())
	for i, item := range sequence.Values {
		element := reflect.New(v.Type().Elem()).Elem()
		if preset, ok := preset(v.Type().Elem()); ok {
			element.Set(preset)
		}
		d.decode(index(path, i), item, element)
		list = reflect.Append(list, element)
	}
	v.Set(list)
}

// scalar sets one value from text.
func (d *decoder) scalar(path string, node ast.Node, v reflect.Value) {
	text, expanded, ok := d.text(path, node)
	if !ok {
		return
	}
	wantsText := v.Kind() == reflect.String || v.Type() == durationType
	isText, quoted := textNode(node)
	if wantsText != isText && (wantsText || quoted) && !expanded {
		d.fail(node, path, "must be "+typeName(v.Type())+", not "+kindOf(node)+hint(v, node))
		return
	}
	problem := d.set(v, text)
	if v.Type() == secretType {
		text = ""
	}
	if problem != "" {
		d.mistakeAt(node, path, problem, text)
	}
}

// set parses text into v. It returns what is wrong with it, or "".
func (d *decoder) set(v reflect.Value, text string) string {
	if v.Type() == secretType {
		secret, err := resolve(text, d.readFile)
		if err != nil {
			return err.Error()
		}
		v.Set(reflect.ValueOf(secret))
		return ""
	}
	if v.Type() == durationType {
		duration, err := time.ParseDuration(text)
		if err != nil {
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
		if err != nil {
			return "must be a whole number"
		}
		v.SetInt(int64(n))
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return "must be a number"
		}
		v.SetFloat(x)
	}
	return ""
}

// text returns a scalar's text with variables of the environment put in, and
// whether there were any.
func (d *decoder) text(path string, node ast.Node) (text string, expanded, ok bool) {
	written, isScalar := scalarText(node)
	if !isScalar {
		d.fail(node, path, "must be one value, not "+kindOf(node))
		return "", false, false
	}
	text, err := expand(written, d.env)
	if err != nil {
		d.fail(node, path, err.Error())
		return "", false, false
	}
	expanded = strings.Contains(written, "${")
	if expanded {
		at := d.places[path]
		at.written = written
		d.places[path] = at
	}
	return text, expanded, true
}

// keys sets a feed's key from "name", "name asc", or a list of these.
func (d *decoder) keys(path string, node ast.Node, v reflect.Value) {
	items := []ast.Node{node}
	sequence, isList := node.(*ast.SequenceNode)
	if isList {
		items = sequence.Values
	}
	var keys Keys
	for i, item := range items {
		at := path
		if isList {
			at = index(path, i)
		}
		text, ok := d.string(at, item)
		if !ok {
			continue
		}
		words := strings.Fields(text)
		column := KeyColumn{}
		if len(words) == 2 {
			column.Ascending = strings.EqualFold(words[1], "asc")
		}
		if len(words) != 1 && (len(words) != 2 || !column.Ascending && !strings.EqualFold(words[1], "desc")) {
			d.mistakeAt(item, at, "must be a column's name, alone or followed by asc or desc", text)
			continue
		}
		column.Name = words[0]
		keys = append(keys, column)
	}
	v.Set(reflect.ValueOf(keys))
}

// params sets a feed's parameters from a mapping of names to types.
func (d *decoder) params(path string, node ast.Node, v reflect.Value) {
	var params Params
	for _, pair := range d.pairs(path, node) {
		at := join(path, printable(pair.key))
		if text, ok := d.string(at, pair.value); ok {
			params = append(params, Param{Name: pair.key, Type: text})
		}
	}
	v.Set(reflect.ValueOf(params))
}

// string returns a value that must be text.
func (d *decoder) string(path string, node ast.Node) (string, bool) {
	if !d.readable(path, node) {
		return "", false
	}
	d.note(path, node)
	var text string
	before := len(d.errs)
	d.scalar(path, node, reflect.ValueOf(&text).Elem())
	return text, len(d.errs) == before
}

// readable refuses what a configuration has no use for: nothing at all, and
// YAML's own references.
func (d *decoder) readable(path string, node ast.Node) bool {
	switch node.(type) {
	case nil, *ast.NullNode:
		d.failAt(path, "has no value; leave the key out for its default")
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		d.failAt(path, "YAML anchors and aliases are not read; write the value out")
	case *ast.TagNode:
		d.failAt(path, "YAML tags are not read; write the value alone")
	default:
		return true
	}
	return false
}

func (d *decoder) note(path string, node ast.Node) {
	d.places[path] = start(node)
}

// nearest returns the place of path, or of the block that would hold it.
func (d *decoder) nearest(path string) place {
	for path != "" {
		if at, ok := d.places[path]; ok {
			return at
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	if at, ok := d.places[""]; ok {
		return at
	}
	return place{line: 1, column: 1}
}

// fail reports a mistake at node.
func (d *decoder) fail(node ast.Node, path, message string) {
	d.report(position(node.GetToken()), path, message)
}

// failAt reports a mistake at the place of path.
func (d *decoder) failAt(path, message string) {
	d.report(d.nearest(path), path, message)
}

func (d *decoder) report(at place, path, message string) {
	if len(d.errs) >= maxErrors {
		return
	}
	d.errs = append(d.errs, Error{Line: at.line, Column: at.column, Path: path, Message: message})
}

// mistakeAt reports text that breaks a rule. It quotes the text as written:
// what the environment put in may be a secret.
func (d *decoder) mistakeAt(node ast.Node, path, rule, text string) {
	if at := d.places[path]; at.written != "" && text != "" {
		text = at.written
	}
	d.fail(node, path, rule+notValue(text))
}

// mistake reports what a rule found, unless the value was misread already.
func (d *decoder) mistake(m Mistake) {
	for _, e := range d.errs {
		if e.Path != "" && (m.Path == e.Path || strings.HasPrefix(m.Path, e.Path+".") || strings.HasPrefix(m.Path, e.Path+"[")) {
			return
		}
	}
	at := d.nearest(m.Path)
	if at.written != "" && m.Value != "" {
		m.Value = at.written // what the environment put in may be a secret
	}
	d.failAt(m.Path, m.Rule+notValue(m.Value))
}

// notValue ends a message with the value that was found. What may be an address
// with a password, put where it does not belong, is left out.
func notValue(value string) string {
	if value == "" || strings.Contains(value, "@") {
		return ""
	}
	const most = 100
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "..."
	}
	return fmt.Sprintf(", not %q", value)
}
