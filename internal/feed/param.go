package feed

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const paramMax = 1024 // bytes of one parameter's text

// ParseParam checks a request's text for p and returns its canonical form, which
// is the text itself where it is canonical already. Errors wrap ErrRequest and
// name the parameter.
func ParseParam(p Param, text string) (string, error) {
	if len(text) > paramMax {
		return "", fmt.Errorf("%w: %s is longer than %d bytes", ErrRequest, p.Name, paramMax)
	}
	canonical, ok := text, true
	switch p.Type {
	case Text:
		// PostgreSQL's text has no NUL; JSON and URLs are UTF-8.
		ok = utf8.ValidString(text) && !strings.Contains(text, "\x00")
	case Integer:
		var n int64
		n, ok = parse(strconv.ParseInt(text, 10, 64))
		if s := strconv.FormatInt(n, 10); s != text {
			canonical = s
		}
	case Real:
		var x float64
		x, ok = parse(strconv.ParseFloat(text, 64))
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
		t, ok = parse(time.Parse(time.RFC3339Nano, text))
		canonical = t.UTC().Format(time.RFC3339Nano)
	case UUID:
		canonical = strings.ToLower(text)
		ok = isUUID(canonical)
	default:
		return "", fmt.Errorf("parameter %s has the unknown type %q", p.Name, p.Type)
	}
	if !ok {
		return "", fmt.Errorf("%w: %s must be %s", ErrRequest, p.Name, p.Type.describe())
	}
	return canonical, nil
}

func parse[T any](v T, err error) (T, bool) { return v, err == nil }

func (t ParamType) describe() string {
	switch t {
	case Text:
		return "UTF-8 text without NUL"
	case Integer:
		return "a whole number of at most 64 bits"
	case Real:
		return "a number"
	case Boolean:
		return "true or false"
	case Timestamp:
		return "a time like 2016-12-01T23:59:57Z"
	case UUID:
		return "a UUID like 6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	}
	return string(t)
}

// isUUID reports whether s has the lower-case 8-4-4-4-12 form.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return true
}
