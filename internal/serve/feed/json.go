package feed

import (
	"encoding/base64"
	"math"
	"strconv"
	"unicode/utf8"

	"spillway/internal/serve/param"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string with quotes. It writes what encoding/json writes
// without HTML escaping: quotes, backslashes, control characters, U+2028 and U+2029 are
// escaped, and each byte that is not UTF-8 becomes U+FFFD. It allocates only to grow dst.
func AppendString(dst, s []byte) []byte {
	dst = append(dst, '"')
	start := 0 // s[start:i] needs no escaping
	for i := 0; i < len(s); {
		b := s[i]
		if b < utf8.RuneSelf {
			if b >= ' ' && b != '"' && b != '\\' {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, b)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRune(s[i:])
		broken := r == utf8.RuneError && size == 1
		if !broken && r != '\u2028' && r != '\u2029' {
			i += size
			continue
		}
		dst = append(dst, s[start:i]...)
		dst = append(dst, '\\', 'u', hexDigits[r>>12&0xf], hexDigits[r>>8&0xf], hexDigits[r>>4&0xf], hexDigits[r&0xf])
		i += size
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// appendEscape appends the escape of a quote, a backslash or a control character.
func appendEscape(dst []byte, b byte) []byte {
	switch b {
	case '"', '\\':
		return append(dst, '\\', b)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	default:
		return append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&0xf])
	}
}

// AppendPlain appends a JSON string that needs no escape.
func AppendPlain(dst, s []byte) []byte {
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// AppendReal appends x, a double or with 32 bits a float, as the shortest JSON number that reads
// back the same. The infinities, which JSON lacks, become strings. x is not NaN.
func AppendReal(dst []byte, x float64, bits int) []byte {
	switch size := math.Abs(x); {
	case math.IsInf(x, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(x, -1):
		return append(dst, `"-Infinity"`...)
	case size != 0 && (size < 1e-6 || size >= 1e21):
		return strconv.AppendFloat(dst, x, 'e', -1, bits)
	}
	return strconv.AppendFloat(dst, x, 'f', -1, bits)
}

// AppendBase64 appends b as a JSON string in standard base64 with padding. It allocates only
// to grow dst.
func AppendBase64(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

// AppendTime appends a time such as 2016-12-01 23:59:57.25 as a JSON string in RFC 3339 and UTC,
// with at least that many digits behind the point, up to 9. Further digits are kept, except for
// zeros. The separator may be T. Without a zone (Z, +01:00 or +01) the time is taken as UTC. ok is
// false, and dst unchanged, if text is not a time of the years 0000 to 9999.
func AppendTime(dst, text []byte, digits int) (appended []byte, ok bool) {
	t, fraction, _, ok := param.CutTime(text)
	if !ok || t.Year() < 0 || t.Year() > 9999 {
		return dst, false
	}
	for len(fraction) > digits && fraction[len(fraction)-1] == '0' {
		fraction = fraction[:len(fraction)-1]
	}
	dst = t.AppendFormat(append(dst, '"'), "2006-01-02T15:04:05")
	if len(fraction) > 0 || digits > 0 {
		dst = append(append(dst, '.'), fraction...)
	}
	for range digits - len(fraction) {
		dst = append(dst, '0')
	}
	return append(dst, 'Z', '"'), true
}
