package popup

import (
	"strings"
)

// version is the type of versions in expressions. At run time a version is the string that
// versionKey returns.
type version string

// versionDigitsMax is the maximum length of a number in a version, without leading zeros.
const versionDigitsMax = 255

// versionKey returns a string for a version such as 2.3.1, v2.3 or 2.3.1-rc.1+5114f85. Keys
// compare like the versions: numbers first, as many as there are, and missing ones are 0; then
// what follows the hyphen by the rules of semantic versioning, before the release without it.
// What follows the plus sign does not count. It reports whether text is a version.
func versionKey(text string) (string, bool) {
	if text != "" && (text[0] == 'v' || text[0] == 'V') {
		text = text[1:]
	}
	text, build, hasBuild := strings.Cut(text, "+")
	numbers, suffix, hasSuffix := strings.Cut(text, "-")
	if hasBuild && !isSuffix(build) || hasSuffix && !isSuffix(suffix) {
		return "", false
	}
	key := make([]byte, 0, 64)
	used := 0 // without trailing zeros
	for number := range strings.SplitSeq(numbers, ".") {
		var ok bool
		if key, ok = appendNumber(key, number); !ok {
			return "", false
		}
		if strings.Trim(number, "0") != "" {
			used = len(key)
		}
	}
	key = append(key[:used], 0)
	if !hasSuffix {
		return string(append(key, 1)), true
	}
	key = append(key, 0)
	for part := range strings.SplitSeq(suffix, ".") {
		if isDigits(part) {
			var ok bool
			if key, ok = appendNumber(append(key, 1), part); !ok {
				return "", false
			}
			continue
		}
		key = append(append(append(key, 2), part...), 0)
	}
	return string(append(key, 0)), true
}

// appendNumber appends a number, so that longer numbers are greater, and reports whether text
// is a number.
func appendNumber(key []byte, text string) ([]byte, bool) {
	if !isDigits(text) {
		return key, false
	}
	text = strings.TrimLeft(text[:len(text)-1], "0") + text[len(text)-1:]
	if len(text) > versionDigitsMax {
		return key, false
	}
	return append(append(key, byte(len(text))), text...), true
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// isSuffix reports whether s is one or more groups of letters, digits and hyphens, with dots
// between them.
func isSuffix(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if part == "" {
			return false
		}
		for i := range len(part) {
			c := part[i]
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}
