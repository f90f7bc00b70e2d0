// Package param defines the typed parameters of a configured statement: which texts a
// request may pass for a parameter, and their canonical form. It also parses the texts of times that
// databases and records have.
package param

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"spillway/internal/plans"
)

// ErrValue means that the database rejects the value of a parameter: it is out of range
// there, or not what the statement's functions accept. It is the client's mistake. Sources
// wrap the database's error in it, whose text is not for clients.
var ErrValue = errors.New("the database rejects the value of a parameter")

// RejectedError is an ErrValue that names the parameters whose values the statement has.
type RejectedError struct {
	Names string
	Err   error // of the database
}

// Rejected returns the error of a database that rejects one of the arguments.
func Rejected(params []Param, args []string, err error) error {
	var names []string
	for i, p := range params {
		if i < len(args) && args[i] != Absent {
			names = append(names, p.Name)
		}
	}
	return &RejectedError{strings.Join(names, " or "), err}
}

// Error names the parameters and says what the database said.
func (e *RejectedError) Error() string {
	return ErrValue.Error() + " " + e.Names + ": " + e.Err.Error()
}

// Unwrap returns ErrValue and the error of the database.
func (e *RejectedError) Unwrap() []error { return []error{ErrValue, e.Err} }

// ForClient returns the text of an ErrValue without the database's own error.
func ForClient(err error) string {
	if rejected, ok := errors.AsType[*RejectedError](err); ok && rejected.Names != "" {
		return ErrValue.Error() + ": " + rejected.Names
	}
	return ErrValue.Error()
}

// MaxBytes is the maximum length of one parameter's text.
const MaxBytes = 1024

// Param is a named, typed parameter.
type Param struct {
	Name     string
	Type     Type
	ListMax  int    // at least 1: a list of 1 to this many values; 0: one value
	Optional bool   // a request may lack it; its argument then is Default
	Default  string // as Argument returns it
	Filter   bool   // no parameter of the statement; see Filter
}

// Absent is the argument of a filter that a request lacks, and NULL as that of a parameter. No text has it.
const Absent = "\x00absent"

// Filter returns the parameter of a condition that a request may add: the output column of its
// name has the argument.
func Filter(column string, t Type) Param {
	return Param{Name: column, Type: t, Optional: true, Default: Absent, Filter: true}
}

// Given returns the positions of the filters that have an argument other than Absent.
func Given(params []Param, args []string) []int {
	var given []int
	for i, p := range params {
		if p.Filter && i < len(args) && args[i] != Absent {
			given = append(given, i)
		}
	}
	return given
}

// Finer reports whether an argument is a time with a fraction of a microsecond. No row of a
// database whose times have six digits has it, but the database would round it.
func Finer(p Param, arg string) bool {
	const digits = len(".123456Z")
	return p.Type == Timestamp && len(arg) > digits && strings.Contains(arg[:len(arg)-digits], ".")
}

// Match checks that params declares the parameters that a statement uses, and no
// others.
func Match(s plans.Statement, params []Param) error {
	names := s.Names()
	for _, p := range params {
		if p.Type.Describe() == "" {
			return fmt.Errorf("parameter %s: unknown type %q", p.Name, p.Type)
		}
		if !p.Filter && !slices.Contains(names, p.Name) {
			return fmt.Errorf("the statement does not use the parameter :%s", p.Name)
		}
	}
	for _, name := range names {
		if Index(params, name) < 0 {
			return fmt.Errorf("the parameter :%s has no type; declare it in params", name)
		}
	}
	return nil
}

// Index returns the position of the statement's parameter with a name, -1 if there is none.
func Index(params []Param, name string) int {
	return slices.IndexFunc(params, func(p Param) bool { return p.Name == name && !p.Filter })
}

// Type says how a request's text for a parameter is checked and passed.
type Type string

// The types. Canonical texts are integers without sign or leading zeros, booleans "true"
// or "false", timestamps in RFC 3339 and UTC, and bytes in base64. Text also is what a database writes as
// text, such as a label of an enumeration, an interval or an address.
const (
	Text      Type = "text"
	Integer   Type = "integer"
	Real      Type = "real"
	Boolean   Type = "boolean"
	Timestamp Type = "timestamp"
	UUID      Type = "uuid"
	Decimal   Type = "decimal"
	Date      Type = "date"
	Time      Type = "time"
	Bytes     Type = "bytes"
)

var (
	decimalForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
	timeForm    = regexp.MustCompile(`^-?[0-9]{2,3}:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?$`)
)

// Raw returns the bytes of an argument of type Bytes.
func Raw(arg string) ([]byte, error) { return base64.StdEncoding.Strict().DecodeString(arg) }

// Argument checks a request's texts for p and returns its argument: the canonical form of one
// text, or that of a list. Errors name the parameter.
func Argument(p Param, texts ...string) (string, error) {
	switch {
	case len(texts) == 0 && p.Optional:
		return p.Default, nil
	case len(texts) == 0:
		return "", fmt.Errorf("parameter %s is missing", p.Name)
	case p.ListMax > 0:
		return list(p, texts)
	}
	return Parse(p, texts[0])
}

// Parse checks one text for p and returns its canonical form. Errors name the parameter.
func Parse(p Param, text string) (string, error) {
	if len(text) > MaxBytes {
		return "", fmt.Errorf("%s is longer than %d bytes", p.Name, MaxBytes)
	}
	canonical, ok := text, true
	switch p.Type {
	case Text:
		// PostgreSQL's text has no NUL; JSON and URLs are UTF-8.
		ok = utf8.ValidString(text) && !strings.Contains(text, "\x00")
	case Integer:
		var n int64
		n, ok = parsed(strconv.ParseInt(text, 10, 64))
		s := strconv.FormatInt(n, 10)
		if !ok { // MySQL and MariaDB have numbers without sign
			var u uint64
			u, ok = parsed(strconv.ParseUint(text, 10, 64))
			s = strconv.FormatUint(u, 10)
		}
		if s != text {
			canonical = s
		}
	case Real:
		var x float64
		x, ok = parsed(strconv.ParseFloat(text, 64))
		ok = ok && !math.IsNaN(x) && !math.IsInf(x, 0)
		canonical = strconv.FormatFloat(x, 'g', -1, 64)
	case Boolean:
		switch text {
		case "true", "1":
			canonical = "true"
		case "false", "0":
			canonical = "false"
		default:
			ok = false
		}
	case Timestamp:
		var t time.Time
		if t, ok = parsed(time.Parse(time.RFC3339Nano, text)); !ok { // else as a feed writes columns without a zone
			t, ok = parsed(time.Parse(time.DateTime, text))
		}
		t = t.UTC() // which may be in another year
		ok = ok && t.Year() >= 0 && t.Year() <= 9999
		canonical = t.Format(time.RFC3339Nano)
	case Decimal:
		ok = decimalForm.MatchString(text)
	case Date:
		var day time.Time
		day, ok = parsed(time.Parse(time.DateOnly, text))
		ok = ok && day.Year() >= 1
	case Time:
		ok = timeForm.MatchString(text)
		if strings.Contains(text, ".") {
			canonical = strings.TrimRight(strings.TrimRight(text, "0"), ".")
		}
	case Bytes:
		canonical = strings.NewReplacer("-", "+", "_", "/").Replace(text) // base64url, which URLs need not escape
		_, ok = parsed(Raw(canonical))
		ok = ok && !strings.ContainsAny(text, "\r\n")
	case UUID:
		canonical = strings.ToLower(text)
		_, ok = ParseUUID([]byte(canonical))
	default:
		return "", fmt.Errorf("parameter %s has the unknown type %q", p.Name, p.Type)
	}
	if !ok {
		return "", fmt.Errorf("%s must be %s", p.Name, p.Type.Describe())
	}
	return canonical, nil
}

func parsed[T any](v T, err error) (T, bool) { return v, err == nil }

// kinds has, of each type, what a text must be, and one.
var kinds = map[Type]struct{ must, sample string }{
	Text:      {"UTF-8 text without NUL", "a"},
	Integer:   {"a whole number of at most 64 bits", "1"},
	Real:      {"a number", "1"},
	Boolean:   {"true or false", "true"},
	Timestamp: {"a time like 2016-12-01T23:59:57Z", "2016-12-01T23:59:57Z"},
	UUID:      {"a UUID like 6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
	Decimal:   {"a number without exponent", "1"},
	Date:      {"a date like 2016-12-01", "2016-12-01"},
	Time:      {"a time like 23:59:57, with at most six digits behind the point", "23:59:57"},
	Bytes:     {"base64", "YQ=="},
}

// Describe says what a text must be; "" for an unknown type.
func (t Type) Describe() string { return kinds[t].must }

// Sample returns the argument of some value.
func (t Type) Sample() string { return kinds[t].sample }

// ParseUUID parses the 8-4-4-4-12 form in upper or lower case.
func ParseUUID(text []byte) (id [16]byte, ok bool) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return id, false
	}
	n := 0
	for _, part := range [][]byte{text[:8], text[9:13], text[14:18], text[19:23], text[24:]} {
		decoded, err := hex.Decode(id[n:], part)
		if err != nil {
			return id, false
		}
		n += decoded
	}
	return id, true
}

// ClaimPrefix begins the name of a parameter that is a claim of the request's JWT.
const ClaimPrefix = "claim."

// IsClaim reports whether a parameter with this name is a claim, which a request must not
// contain.
func IsClaim(name string) bool { return strings.HasPrefix(name, ClaimPrefix) }

// Claim returns the name of the claim that p is; false if the request has the parameter.
func (p Param) Claim() (name string, isClaim bool) { return strings.CutPrefix(p.Name, ClaimPrefix) }
