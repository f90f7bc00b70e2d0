package stream

import (
	"bytes"
	"strconv"
)

// A decimal is kept as text: a minus sign if it is negative, digits without leading zeros,
// and perhaps a point and more digits. Zeros at the end stay, because some databases show
// them. NaN, Infinity and -Infinity are themselves.

// decimalDigits is the most digits of a decimal, on both sides of the point.
const decimalDigits = 1000

// appendDecimal appends a JSON number as plain digits, without an exponent. ok is false if
// text is neither a JSON number nor special, or has more than decimalDigits digits.
func appendDecimal(dst, text []byte) (number []byte, ok bool) {
	if isSpecialNumber(text) {
		return append(dst, text...), true
	}
	mantissa, exponent, ok := splitExponent(text)
	if !ok {
		return dst, false
	}
	mantissa, negative := bytes.CutPrefix(mantissa, []byte("-"))
	whole, fraction, pointed := bytes.Cut(mantissa, []byte("."))
	if len(whole) == 0 || len(whole) > 1 && whole[0] == '0' || pointed && len(fraction) == 0 || !isDigits(whole) || !isDigits(fraction) {
		return dst, false
	}
	zero := isZero(whole) && isZero(fraction)
	if zero {
		exponent = 0
	}
	count := len(whole) + len(fraction)
	point := len(whole) + exponent // where it is among the digits
	if max(point, 1)+max(count-point, 0) > decimalDigits {
		return dst, false
	}
	if negative && !zero {
		dst = append(dst, '-')
	}
	start := len(dst)
	if point <= 0 {
		dst = append(dst, "0."...)
		dst = append(dst, bytes.Repeat([]byte("0"), -point)...)
		dst = append(dst, whole...)
		return append(dst, fraction...), true
	}
	dst = append(dst, whole...)
	dst = append(dst, fraction...)
	if point >= count {
		dst = append(dst, bytes.Repeat([]byte("0"), point-count)...)
	} else {
		dst = append(dst, 0)
		copy(dst[start+point+1:], dst[start+point:])
		dst[start+point] = '.'
	}
	leading := 0
	for leading < point-1 && dst[start+leading] == '0' {
		leading++
	}
	return append(dst[:start], dst[start+leading:]...), true
}

// splitExponent cuts off the exponent of a JSON number; 0 if it has none.
func splitExponent(text []byte) (mantissa []byte, exponent int, ok bool) {
	i := bytes.IndexAny(text, "eE")
	if i < 0 {
		return text, 0, true
	}
	digits := text[i+1:]
	if len(digits) > 0 && (digits[0] == '+' || digits[0] == '-') {
		digits = digits[1:]
	}
	if len(digits) == 0 || !isDigits(digits) {
		return nil, 0, false
	}
	exponent, err := strconv.Atoi(string(text[i+1:]))
	const most = 2 * decimalDigits
	if err != nil { // it is larger than an int
		exponent = most
	}
	return text[:i], min(max(exponent, -most), most), true
}

func isDigits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func isZero(digits []byte) bool { return len(bytes.Trim(digits, "0")) == 0 }

// isDecimal reports whether text is a decimal as appendDecimal writes it.
func isDecimal(text []byte) bool {
	written, ok := appendDecimal(nil, text)
	return ok && bytes.Equal(written, text)
}

// compareDecimals returns -1, 0 or 1 if a is less than, equal to or greater than b.
func compareDecimals(a, b []byte) int {
	a, minusA := bytes.CutPrefix(a, []byte("-"))
	b, minusB := bytes.CutPrefix(b, []byte("-"))
	switch {
	case minusA && !minusB:
		return -1
	case minusB && !minusA:
		return 1
	case minusA:
		a, b = b, a
	}
	if isSpecialNumber(a) != isSpecialNumber(b) { // an infinity is above all others
		if isSpecialNumber(b) {
			return -1
		}
		return 1
	}
	wholeA, fractionA, _ := bytes.Cut(a, []byte("."))
	wholeB, fractionB, _ := bytes.Cut(b, []byte("."))
	if len(wholeA) != len(wholeB) {
		if len(wholeA) < len(wholeB) {
			return -1
		}
		return 1
	}
	if order := bytes.Compare(wholeA, wholeB); order != 0 {
		return order
	}
	return bytes.Compare(bytes.TrimRight(fractionA, "0"), bytes.TrimRight(fractionB, "0"))
}

// TrimDecimal returns a decimal without the zeros at the end of its fraction. Equal numbers
// have equal texts then.
func TrimDecimal(text []byte) []byte {
	if bytes.IndexByte(text, '.') < 0 {
		return text
	}
	return bytes.TrimRight(bytes.TrimRight(text, "0"), ".")
}

// DecimalFits reports whether a column of a precision and a scale, which may be negative or more
// than the precision, holds a decimal exactly.
func DecimalFits(text []byte, precision, scale int) bool {
	text = bytes.TrimPrefix(TrimDecimal(text), []byte("-"))
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	whole = bytes.TrimLeft(whole, "0")
	zeros := whole[max(0, len(whole)+min(scale, 0)):] // behind the last digit of the column
	leading := fraction[:min(len(fraction), max(0, scale-precision))]
	return len(whole) <= max(0, precision-scale) && len(fraction) <= max(0, scale) && isZero(zeros) && isZero(leading)
}
