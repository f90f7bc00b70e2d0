package watch

import (
	"bytes"
	"math"
)

// The parsers of this package read what the kernel wrote into memory of the caller's, allocate nothing, and take any
// bytes: what is cut off or absurd is an error or a figure left out, never a panic.

// line cuts the first line off.
func line(b []byte) (first, rest []byte) {
	first, rest, _ = bytes.Cut(b, []byte{'\n'})
	return first, rest
}

// word cuts the first word off, and the blanks before it. It is empty at the end.
func word(b []byte) (first, rest []byte) {
	i := 0
	for i < len(b) && blank(b[i]) {
		i++
	}
	j := i
	for j < len(b) && !blank(b[j]) {
		j++
	}
	return b[i:j], b[j:]
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// number reads decimal digits and nothing else.
func number(b []byte) (n uint64, ok bool) {
	for _, c := range b {
		digit := uint64(c - '0')
		if digit > 9 || n > (math.MaxUint64-digit)/10 {
			return 0, false
		}
		n = n*10 + digit
	}
	return n, len(b) > 0
}

// wordNumber cuts a number off.
func wordNumber(b []byte) (n uint64, rest []byte, ok bool) {
	first, rest := word(b)
	n, ok = number(first)
	return n, rest, ok
}

// pidNumber reads a process id.
func pidNumber(b []byte) (int, bool) {
	n, ok := number(b)
	if !ok || n == 0 || n > math.MaxInt32 {
		return 0, false
	}
	return int(n), true
}
