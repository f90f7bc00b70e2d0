package popup

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/vm"

	"spillway/internal/serve/param"
)

// Bounds of attributes.
const (
	AttributesMax     = 64   // of a schema
	AttributeBytesMax = 1024 // of one value, or of one element of a list
	ElementsMax       = 32   // of a list
	nameBytesMax      = 64
)

// AttributeType is the type of an attribute's value.
type AttributeType string

// The types of attributes.
const (
	Text      AttributeType = "text"
	Integer   AttributeType = "integer"   // of 64 bits
	Real      AttributeType = "real"      // a finite number
	Boolean   AttributeType = "boolean"   // true, false, 1 or 0
	Timestamp AttributeType = "timestamp" // RFC 3339, from 1900 to 2150
	TextList  AttributeType = "texts"     // given once per element
)

// zeros are values of the types, as expressions read them.
var zeros = map[AttributeType]any{Text: "", Integer: 0, Real: 0.0, Boolean: false, Timestamp: time.Time{}, TextList: []string{}}

// describe says what a value must be, for errors.
func (t AttributeType) describe() string {
	switch t {
	case Text, TextList:
		return fmt.Sprintf("UTF-8 text of at most %d bytes without NUL", AttributeBytesMax)
	case Timestamp:
		return param.Timestamp.Describe() + ", from 1900 to 2150"
	}
	return param.Type(t).Describe()
}

// Attribute declares an attribute of users.
type Attribute struct {
	Name string // lower-case letters, digits and _, a letter first
	Type AttributeType
}

// Schema is the attributes that expressions may use. It may be used concurrently.
type Schema struct {
	attributes []Attribute
	index      map[string]int
	zones      zones
}

// attributeSet is a set of a schema's attributes: 1 << i is the one with index i.
type attributeSet uint64

// keywords of expressions, which are not allowed as names.
var keywords = []string{"and", "or", "not", "in", "matches", "contains", "let", "if", "else", "true", "false", "nil"}

// NewSchema checks and returns a schema. Errors name the attribute.
func NewSchema(attributes []Attribute) (*Schema, error) {
	if len(attributes) > AttributesMax {
		return nil, fmt.Errorf("%d attributes, more than %d", len(attributes), AttributesMax)
	}
	s := &Schema{attributes: slices.Clone(attributes), index: make(map[string]int, len(attributes))}
	for i, a := range attributes {
		if !isName(a.Name, '_', nameBytesMax) || '0' <= a.Name[0] && a.Name[0] <= '9' {
			return nil, fmt.Errorf("attribute %q: a name is 1 to %d lower-case letters, digits and _, a letter first", a.Name, nameBytesMax)
		}
		if _, taken := builtin.Index[a.Name]; taken || slices.Contains(keywords, a.Name) {
			return nil, fmt.Errorf("attribute %s: the name is a keyword of expressions; use another one", a.Name)
		}
		if zeros[a.Type] == nil {
			return nil, fmt.Errorf("attribute %s: unknown type %q: it is text, integer, real, boolean, timestamp or texts", a.Name, a.Type)
		}
		if _, twice := s.index[a.Name]; twice {
			return nil, fmt.Errorf("attribute %s is declared twice", a.Name)
		}
		s.index[a.Name] = i
	}
	return s, nil
}

// isName reports whether s has 1 to max lower-case letters, digits and joints, and does not
// begin with a joint.
func isName(s string, joint byte, max int) bool {
	if s == "" || len(s) > max || s[0] == joint {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != joint {
			return false
		}
	}
	return true
}

// set returns the attributes with these names. Names that are not declared are ignored.
func (s *Schema) set(names []string) attributeSet {
	var set attributeSet
	for _, name := range names {
		if i, ok := s.index[name]; ok {
			set |= 1 << i
		}
	}
	return set
}

// slot is the value of one attribute.
type slot struct {
	set  bool
	n    int64 // integer; boolean as 0 or 1; timestamp in nanoseconds
	r    float64
	s    string
	list []string
}

// Attributes holds the attributes of one request and evaluates expressions over them. Use
// Schema.New. It may be reused after Reset, and used by one goroutine at a time.
type Attributes struct {
	schema  *Schema
	slots   []slot
	machine vm.VM
	values  map[string]any // of the slots that are set, as expressions read them, and requestName
	boxed   bool           // values are those of the slots

	now        time.Time
	user       string // whose they are
	lists      *Lists
	row        rowState     // of the user's row
	rowColumns attributeSet // that the row replaces
}

// New returns attributes without values.
func (s *Schema) New() *Attributes {
	return &Attributes{schema: s, slots: make([]slot, len(s.attributes)), values: make(map[string]any)}
}

// Reset removes all values and keeps the memory.
func (a *Attributes) Reset() {
	a.boxed, a.row = false, rowNone
	for i := range a.slots {
		a.slots[i] = slot{list: a.slots[i].list[:0]}
	}
	a.now, a.user, a.lists = time.Time{}, "", nil
}

// At sets the time for functions of the clock, until Reset. Without it, their values are missing.
func (a *Attributes) At(now time.Time) { a.now = now }

// For sets the user who is looked up in lists, until Reset. user is not copied. Without one,
// in_list is false.
func (a *Attributes) For(user string) { a.user = user }

// Lists sets the lists of users, until Reset. Without them, in_list is false.
func (a *Attributes) Lists(lists *Lists) { a.lists = lists }

// run evaluates a condition. The first one after a change of the values allocates. request
// says whether functions of the condition read the Attributes.
func (a *Attributes) run(program *vm.Program, request bool) bool {
	if !a.boxed {
		clear(a.values)
		for i := range a.slots {
			if a.slots[i].set {
				attribute := &a.schema.attributes[i]
				a.values[attribute.Name] = a.slots[i].value(attribute.Type)
			}
		}
		a.boxed = true
	}
	if request {
		a.values[requestName] = a
	}
	value, err := a.machine.Run(program, a.values)
	return err == nil && value == true
}

// value returns the value as expressions read it.
func (v *slot) value(kind AttributeType) any {
	switch kind {
	case Integer:
		return int(v.n)
	case Real:
		return v.r
	case Boolean:
		return v.n != 0
	case Timestamp:
		return time.Unix(0, v.n).UTC()
	case TextList:
		list := make([]any, len(v.list))
		for i, text := range v.list {
			list[i] = text
		}
		return list
	}
	return v.s
}

// Add parses a value and adds it. Names that are not declared are ignored. text is kept
// until Reset, not copied. Errors wrap ErrRequest: the value has another type, or the
// attribute has one already.
func (a *Attributes) Add(name, text string) error {
	i, ok := a.schema.index[name]
	if !ok {
		return nil
	}
	a.boxed = false
	v, kind := &a.slots[i], a.schema.attributes[i].Type
	switch {
	case v.set && kind != TextList:
		return fmt.Errorf("%w: attribute %s is given twice", ErrRequest, name)
	case len(v.list) == ElementsMax:
		return fmt.Errorf("%w: attribute %s has more than %d elements", ErrRequest, name, ElementsMax)
	case len(text) > AttributeBytesMax || !v.read(kind, text):
		return fmt.Errorf("%w: attribute %s must be %s", ErrRequest, name, kind.describe())
	}
	v.set = true
	return nil
}

// Replace removes the attribute's value and adds others.
func (a *Attributes) Replace(name string, texts ...string) error {
	if i, ok := a.schema.index[name]; ok {
		a.slots[i], a.boxed = slot{list: a.slots[i].list[:0]}, false
	}
	for _, text := range texts {
		if err := a.Add(name, text); err != nil {
			return err
		}
	}
	return nil
}

// Years of timestamps. A difference between two of them fits a duration.
const (
	yearMin = 1900
	yearMax = 2150
)

// read parses text and reports whether it is valid.
func (v *slot) read(kind AttributeType, text string) bool {
	var err error
	switch kind {
	case Text:
		v.s = text
		return isText(text)
	case TextList:
		v.list = append(v.list, text)
		return isText(text)
	case Integer:
		v.n, err = strconv.ParseInt(text, 10, 64)
		return err == nil
	case Real:
		v.r, err = strconv.ParseFloat(text, 64)
		return err == nil && !math.IsNaN(v.r) && !math.IsInf(v.r, 0)
	case Boolean:
		v.n = 0
		if text == "true" || text == "1" {
			v.n = 1
		}
		return v.n == 1 || text == "false" || text == "0"
	case Timestamp:
		var t time.Time
		t, err = time.Parse(time.RFC3339Nano, text)
		v.n = t.UnixNano()
		return err == nil && inYears(t)
	}
	return false
}

func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

func inYears(t time.Time) bool {
	year := t.UTC().Year()
	return yearMin <= year && year <= yearMax
}
