package stream

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Type is the type of a column.
type Type string

// The types, and the JSON value of each.
const (
	Integer   Type = "integer"   // a whole number of 64 bits, also as 1.0 or 1e3, or a string that is one
	Real      Type = "real"      // a number within the range of a double, or a string that is one, or NaN, Infinity or -Infinity
	Text      Type = "text"      // a string of UTF-8 without NUL
	Boolean   Type = "boolean"   // true or false
	Timestamp Type = "timestamp" // a string like 2016-12-01T23:59:57.123456Z or 2016-12-01 23:59:57 (UTC)
	JSON      Type = "json"      // any value
	UUID      Type = "uuid"      // a string like 6ba7b810-9dad-11d1-80b4-00c04fd430c8
	Decimal   Type = "decimal"   // an exact number, or a string that is one, of up to 1000 digits
	Date      Type = "date"      // a string like 2016-12-01
	Time      Type = "time"      // a string like 23:59:57.123456, or with up to 999 hours and a sign
	Bytes     Type = "bytes"     // a string of base64
	// Others are arrays, such as text[]: see Type.Element.
)

// UnixMS is the format of a timestamp that also takes numbers: whole milliseconds since 1970.
const UnixMS = "unix_ms"

// Now is the default that means the time of the request.
const Now = "now"

// Column is one column of the table, and the field of the same name in a record.
type Column struct {
	Name      string
	Type      Type
	Required  bool    // a record without it, or with null, is refused
	Default   *string // value as text of a record without the field, or Now; nil: NULL
	Min, Max  string  // of integers, reals, decimals, timestamps, dates and times, inclusive; "": none
	MaxLength int     // of texts, in characters; of json, in bytes; 0: none
	// Claim is the claim of the request's JWT that the column gets; "": records have the
	// value. A record may repeat the value, and is refused for another one.
	Claim  string
	Format string // of a timestamp: UnixMS; "": strings only
	// Round accepts values that the table's column does not hold exactly. Pair says what becomes of them.
	Round bool
}

// Fsync is the durability of a commit, on databases where a session can choose it.
type Fsync string

// The choices. MySQL has none: there the server's settings decide.
const (
	FsyncOn     Fsync = ""       // the default: as safe as the server allows
	FsyncServer Fsync = "server" // as the server is configured
	FsyncOff    Fsync = "off"    // the last commits may be lost when the server crashes
)

// Definition is what a stream stores, and where. It is the part of the configuration that
// the Sink needs.
type Definition struct {
	Name    string // the stream's path, for messages, metrics and idempotency keys
	Table   string // may be schema.table
	Columns []Column
	// Extra is a json column for the fields of a record that have no column, as one
	// object. "": a record with such a field is refused.
	Extra string
	// Key are columns with a unique index. A record whose key is in the table already
	// counts as stored and changes nothing.
	Key []string
	// OrderBy is a column. Records with equal values in it are stored in the order of
	// their requests. "": in any order.
	OrderBy string
	Fsync   Fsync
	// Spooled says that batches come from a spool, so that the database also needs the tables
	// of marks.
	Spooled bool
	// AnyKeyCollation accepts key columns of texts for which the database takes different
	// texts as equal, such as ab and AB. Only the first of these records is stored.
	AnyKeyCollation bool
	// SkippedRows is what happens to a record that the database does not insert, without an error
	// and without a row under its Key: by a trigger, a rule or a policy. "": it is refused.
	// SkippedAccept: it counts as stored.
	SkippedRows string
	// Special says that the database may have special values (Type.Special), and Loose that it has no type of
	// booleans (Value.Loose). Otherwise such values are refused.
	Special, Loose bool
}

// Words returns what may be names of columns in an expression.
func Words(expression string) []string {
	return strings.FieldsFunc(expression, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// Sends reports whether the values of one of these columns are those of the records, and never a default. Otherwise
// no client is to blame for what the table makes of them.
func (d Definition) Sends(columns ...string) bool {
	return slices.ContainsFunc(d.Columns, func(c Column) bool { return c.Default == nil && slices.Contains(columns, c.Name) })
}

// Fault is whose fault it is that the database refuses a record.
type Fault int

// The faults. With UnsureFault it may be either's.
const (
	RecordsFault Fault = iota
	ServersFault
	UnsureFault
)

// FaultOf returns whose fault a value is that an expression computes, or an index has: the record's if it may name
// a column that Sends, and the server's if it names none of the stream's.
func (d Definition) FaultOf(expression string) Fault {
	fault, words := ServersFault, Words(expression)
	columns := d.Columns
	if d.Extra != "" {
		columns = append(slices.Clone(columns), Column{Name: d.Extra})
	}
	for _, c := range columns {
		switch named := slices.Contains(words, c.Name) || len(Words(c.Name)) > 1 && strings.Contains(expression, c.Name); {
		case named && c.Default == nil:
			return RecordsFault
		case named:
			fault = UnsureFault
		}
	}
	return fault
}

// SkippedAccept is the Definition.SkippedRows that takes skipped records as stored.
const SkippedAccept = "accept"

// Schema is a valid definition. It does not change and may be used concurrently.
type Schema struct {
	def      Definition
	columns  []column
	headings []heading // of the columns
	byName   map[string]int
	extra    int // column of unknown fields; -1: none
	orderBy  int // -1: none
}

// column is a column with its parsed default, bounds and messages.
type column struct {
	Column
	fallback     value // of an absent field, if hasDefault
	fallbackText []byte
	hasDefault   bool
	now          bool
	min, max     value  // set if there are bounds
	minText      []byte // of a decimal
	maxText      []byte

	wrongNumber                            string // of a number that is no timestamp
	wrongType, belowMin, aboveMax, tooLong string
}

// NewSchema returns the schema of a definition, whose names the configuration has checked. An error
// names the column whose default or bounds are wrong, and what to change.
func NewSchema(def Definition) (*Schema, error) {
	s := &Schema{def: def, byName: make(map[string]int), extra: -1, orderBy: -1}
	columns := def.Columns
	if def.Extra != "" {
		s.extra = len(columns)
		columns = append(slices.Clip(columns), Column{Name: def.Extra, Type: JSON})
	}
	for i, c := range columns {
		compiled, err := compile(c)
		if err == nil && c.Round && slices.Contains(def.Key, c.Name) {
			err = errors.New("a column of key cannot have round: true, because different values would be equal")
		}
		if err != nil {
			return nil, fmt.Errorf("stream %s: column %s: %w", def.Name, c.Name, err)
		}
		s.byName[c.Name] = i
		s.columns, s.headings = append(s.columns, compiled), append(s.headings, heading{c.Name, c.Type})
	}
	if def.OrderBy != "" {
		s.orderBy = s.byName[def.OrderBy]
	}
	delete(s.byName, def.Extra) // a field of that name is kept like any other
	return s, nil
}

// Check returns an error if a default or a bound of the column is wrong, or does not go with its
// type. It returns nil for an unknown type, which the configuration refuses.
func (c Column) Check() error {
	if c.Type.describe() == "" {
		return nil
	}
	_, err := compile(c)
	return err
}

// Definition returns the definition. It must not be changed.
func (s *Schema) Definition() Definition { return s.def }

// Columns returns the columns of the records; the one for unknown fields is last.
func (s *Schema) Columns() []Column {
	columns := make([]Column, len(s.columns))
	for i, c := range s.columns {
		columns[i] = c.Column
	}
	return columns
}

func compile(c Column) (column, error) {
	compiled := column{Column: c, wrongType: "must be " + c.Type.describe()}
	if (c.Min != "" || c.Max != "") && !slices.Contains([]Type{Integer, Real, Decimal, Timestamp, Date, Time}, c.Type) {
		return compiled, fmt.Errorf("min and max are for integer, real, decimal, timestamp, date and time, not for %s", c.Type)
	}
	if c.MaxLength != 0 && c.Type != Text && c.Type != JSON {
		return compiled, errors.New("max_length is for text and json")
	}
	if c.Claim != "" && (c.Type != Text && c.Type != Integer && c.Type != UUID || c.Default != nil) {
		return compiled, errors.New("a column with a claim must be text, integer or uuid, without a default")
	}
	switch {
	case c.Format != "" && (c.Type != Timestamp || c.Format != UnixMS):
		return compiled, fmt.Errorf("unknown format %q of %s: a timestamp has unix_ms or none, other types have none", c.Format, c.Type)
	case c.Format == UnixMS:
		compiled.wrongType += fmt.Sprintf(", or whole milliseconds since 1970, from %d to %d", MillisecondsMin, MillisecondsMax)
	case c.Type == Timestamp:
		compiled.wrongNumber = compiled.wrongType + "; for a number, the stream's owner can set format: unix_ms"
	}
	var err error
	if compiled.min, compiled.minText, err = bound(c.Type, c.Min); err != nil {
		return compiled, fmt.Errorf("min: %w", err)
	}
	if compiled.max, compiled.maxText, err = bound(c.Type, c.Max); err != nil {
		return compiled, fmt.Errorf("max: %w", err)
	}
	compiled.belowMin, compiled.aboveMax = "must be at least "+c.Min, "must be at most "+c.Max
	compiled.tooLong = fmt.Sprintf("must be no longer than %d characters", c.MaxLength)
	if c.Type == JSON {
		compiled.tooLong = fmt.Sprintf("must be no longer than %d bytes", c.MaxLength)
	}
	if c.Default == nil {
		return compiled, nil
	}
	compiled.hasDefault = true
	if compiled.now = c.Type == Timestamp && *c.Default == Now; compiled.now {
		return compiled, nil
	}
	if err := compiled.setDefault(*c.Default); err != nil {
		return compiled, fmt.Errorf("default: %w", err)
	}
	return compiled, nil
}

// bound parses a bound. That of a decimal is the text.
func bound(t Type, text string) (v value, decimal []byte, err error) {
	if text == "" {
		return value{}, nil, nil
	}
	v, decimal, ok := t.parse(text)
	if !ok || t.Special(Value{N: int64(v.n), Bytes: decimal}) {
		return value{}, nil, fmt.Errorf("%q must be %s", text, t.describe())
	}
	return v, decimal, nil
}

// parse parses a value. stored is what the arena of records has of it.
func (t Type) parse(text string) (v value, stored []byte, ok bool) {
	r, data := Records{}, []byte(text)
	v, ok = r.parse(t, data)
	switch t {
	case Text:
		ok = isText(data)
	case JSON:
		p := parser{data: data, limits: Limits{Depth: 100, Fields: 1000}}
		p.space()
		ok = p.any(0) && p.flaw.Reason == "" && p.ended()
	}
	return v, r.arena, ok
}

func (c *column) setDefault(text string) error {
	v, stored, ok := c.Type.parse(text)
	if !ok {
		return fmt.Errorf("%q must be %s", text, c.Type.describe())
	}
	if reason := c.outOfBounds(v, stored); reason != "" {
		return fmt.Errorf("%q %s", text, reason)
	}
	c.fallback, c.fallbackText = v, stored
	return nil
}

// RealDigits is the number of digits that every Real keeps.
const RealDigits = 15

// TextKey returns the columns of the key that hold texts and whose collation matters; none
// with Definition.AnyKeyCollation.
func (s *Schema) TextKey() []string {
	var names []string
	for _, name := range s.def.Key {
		if t := s.columns[s.byName[name]].Type; !s.def.AnyKeyCollation && (t == Text || t == JSON) {
			names = append(names, name)
		}
	}
	return names
}

// InexactKey says that a key column does not tell texts apart. exact is a collation that
// does.
func InexactKey(name, collation, exact string) string {
	return fmt.Sprintf("key column %s has collation %s, by which different texts can be equal, so records would be lost: "+
		"use %s, or set key_collation: accept",
		name, collation, exact)
}
