// Package yaml decodes one YAML file strictly into Go values. It is the reader of the
// configuration and of experiments.
//
// An unknown or repeated key, a value of the wrong type and a second document are errors.
// All of them are reported in one run, each with its line and column. The size and the
// nesting of a file are bounded. Anchors, aliases and tags are refused.
//
// Struct fields are named by their yaml tag. The tag ",inline" adds the fields of an
// embedded struct, and a slice of structs with a field tagged ",key" is read from a
// mapping of names to structs. There a single value stands for a struct with only the field
// tagged short:"true". Types with a syntax of their own implement Decoder.
package yaml

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"
)

// Options adapt the decoder to one kind of file.
type Options struct {
	// Empty says what to do about an empty file. It is appended to the error.
	Empty string
	// Env looks up an environment variable. If it is set, ${NAME} in a value is replaced by
	// the variable, after parsing, and $${ stands for ${.
	Env func(name string) (value string, set bool)
	// ReadFile reads the file of a secret written as file:PATH.
	ReadFile func(path string) ([]byte, error)
	// Partial accepts variables that are not set and files of secrets that cannot be read. The
	// value is unknown: text stays as written, anything else keeps its default, and Reject
	// reports nothing about it.
	Partial bool
	// Preset returns the defaults of a list's element type; false if it has none.
	Preset func(element reflect.Type) (reflect.Value, bool)
	// Loose accepts a number where text is expected, and a quoted number where a number is.
	Loose bool
	// Unsigned refuses negative whole numbers and durations.
	Unsigned bool
	// KeepEmpty decodes [] to an empty slice instead of a nil one.
	KeepEmpty bool
}

// NullDecoder is implemented by types for which null, written as such, is a value.
type NullDecoder interface {
	DecodeNull()
}

// Decoder is implemented by types that have a syntax of their own. DecodeYAML sets the
// receiver from n and reports mistakes on n.
type Decoder interface {
	DecodeYAML(n Node)
}

// A Hinter explains why its struct has no other keys. The hint is appended to the error
// about an unknown key.
type Hinter interface {
	UnknownKeyHint() string
}

// Document is one parsed file. Its Places are complete after Decode.
type Document struct {
	Places map[string]Place // of each value, by path

	options Options
	name    string
	root    ast.Node
	errs    Errors
}

// Place is the position of a value in the file.
type Place struct {
	Line, Column int    // from 1
	Text         string // of a scalar, as written
	expanded     bool   // ${NAME} in it was replaced
	unknown      bool   // see Options.Partial
}

// Error is one mistake in a file.
type Error struct {
	File         string
	Line, Column int    // from 1
	Path         string // of the value, as feeds[0].window; empty: of the file
	Message      string // one line, without secrets
}

// Error returns one line: FILE:LINE:COLUMN: PATH: MESSAGE.
func (e Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", e.File, e.Line, e.Column, e.Path, e.Message)
}

// Errors are all mistakes of a file, in its order.
type Errors []Error

// Error returns one line for each mistake.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Parse reads the one document of a file. name stands for the file in errors. The error
// is Errors.
func Parse(name string, source []byte, o Options) (*Document, error) {
	d := &Document{Places: map[string]Place{}, options: o, name: name}
	d.root, d.errs = parse(source, o.Empty)
	return d, d.Err()
}

// Decode sets what v points to from the document. Fields that the document leaves out keep
// their values. It continues after a mistake; Err returns all of them.
func (d *Document) Decode(v any) {
	d.decode("", d.root, reflect.ValueOf(v).Elem())
}

// Reject reports that the value at path breaks a rule, "must be positive". found is the
// decoded value; empty: it is not shown. If the value was misread already or is unknown,
// Reject does nothing.
func (d *Document) Reject(path, rule, found string) {
	if d.isUnknown(path) {
		return
	}
	for _, e := range d.errs {
		if e.Path != "" && within(path, e.Path) {
			return
		}
	}
	at := d.place(path)
	d.report(at, path, rule+d.quote(at, found))
}

// isUnknown reports whether the value at path, a block around it or a part of it is unknown.
func (d *Document) isUnknown(path string) bool {
	if !d.options.Partial {
		return false
	}
	for other, at := range d.Places {
		if at.unknown && (within(path, other) || within(other, path)) {
			return true
		}
	}
	return false
}

// Add reports a mistake that the caller found and placed.
func (d *Document) Add(e Error) {
	d.report(Place{Line: e.Line, Column: e.Column}, e.Path, e.Message)
}

// within reports whether path is block or below it.
func within(path, block string) bool {
	rest, below := strings.CutPrefix(path, block)
	return below && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Err returns Errors with every mistake found so far, or nil.
func (d *Document) Err() error {
	if len(d.errs) == 0 {
		return nil
	}
	errs := slices.Clone(d.errs)
	slices.SortStableFunc(errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	errs = slices.Compact(errs)
	if len(errs) >= errorsMax {
		last := errs[len(errs)-1]
		last.Path, last.Message = "", fmt.Sprintf("%d mistakes or more; no more are reported", errorsMax)
		errs = append(errs, last)
	}
	for i := range errs {
		errs[i].File = d.name
	}
	return errs
}

// place returns the place of path, or of the nearest block around it.
func (d *Document) place(path string) Place {
	for path != "" {
		if at, ok := d.Places[path]; ok {
			return at
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	if at, ok := d.Places[""]; ok {
		return at
	}
	return Place{Line: 1, Column: 1}
}

func (d *Document) report(at Place, path, message string) {
	if len(d.errs) >= errorsMax {
		return
	}
	if strings.ContainsFunc(path, unicode.IsControl) {
		path = "?"
	}
	d.errs = append(d.errs, Error{Line: at.Line, Column: at.Column, Path: path, Message: message})
}

// quote ends a message with the value that was found. A value from the environment is
// quoted as written, because it may be a secret.
func (d *Document) quote(at Place, found string) string {
	if found != "" && at.expanded {
		found = at.Text
	}
	return Quote(found)
}

// Quote returns `, not "FOUND"`, the end of a message about a wrong value. It returns
// nothing for an empty value, and for one that may be an address with a password.
func Quote(found string) string {
	if found == "" || strings.Contains(found, "@") {
		return ""
	}
	const most = 100
	if len(found) > most {
		found = strings.ToValidUTF8(found[:most], "") + "..."
	}
	return fmt.Sprintf(", not %q", found)
}

// Join returns the path of a key below path.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// Index returns the path of a list's element.
func Index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
