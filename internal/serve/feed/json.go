package feed

import (
	"encoding/base64"
	"slices"
	"time"
	"unicode/utf8"
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
	const shape = "0000-00-00 00:00:00"
	if len(text) < len(shape) || text[10] != ' ' && text[10] != 'T' {
		return dst, false
	}
	for i := range len(shape) {
		if c := text[i]; i != 10 && (shape[i] == '0' && (c < '0' || c > '9') || shape[i] != '0' && c != shape[i]) {
			return dst, false
		}
	}
	fraction, zone, ok := cutFraction(text[len(shape):])
	offset, known := zoneOf(zone)
	month, day := time.Month(number(text[5:7])), number(text[8:10])
	hour, minute, second := number(text[11:13]), number(text[14:16]), number(text[17:19])
	t := time.Date(number(text[:4]), month, day, hour, minute, second, 0, time.UTC)
	// Date turns a 32nd of January, or a 61st second, into another time.
	if !ok || !known || t.Month() != month || t.Day() != day || t.Hour() != hour || t.Minute() != minute || t.Second() != second {
		return dst, false
	}
	if t = t.Add(-offset); t.Year() < 0 || t.Year() > 9999 {
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

// cutFraction splits .123Z into 123 and Z.
func cutFraction(text []byte) (fraction, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '.' {
		return nil, text, true
	}
	i := 1
	for i < len(text) && text[i] >= '0' && text[i] <= '9' {
		i++
	}
	return text[1:i], text[i:], i > 1 && i <= 10
}

// zoneOf returns the offset that Z, +01:00, +01 or nothing stands for.
func zoneOf(text []byte) (offset time.Duration, ok bool) {
	if len(text) == 0 || string(text) == "Z" {
		return 0, true
	}
	const shape = "+00:00"
	if len(text) == len("+00") {
		text = slices.Concat(text, []byte(":00"))
	}
	if len(text) != len(shape) || text[0] != '+' && text[0] != '-' || text[3] != ':' {
		return 0, false
	}
	for _, i := range []int{1, 2, 4, 5} {
		if text[i] < '0' || text[i] > '9' {
			return 0, false
		}
	}
	hours, minutes := number(text[1:3]), number(text[4:6])
	offset = time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	if text[0] == '-' {
		offset = -offset
	}
	return offset, hours < 24 && minutes < 60
}

// number returns the number that some digits are.
func number(digits []byte) int {
	n := 0
	for _, c := range digits {
		n = n*10 + int(c-'0')
	}
	return n
}
