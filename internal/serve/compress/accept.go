package compress

import "bytes"

// Coding is a content coding of HTTP.
type Coding uint8

// The codings.
const (
	Identity Coding = iota // the plain body
	Gzip
	Zstd
)

// codings is the number of codings besides Identity.
const codings = 2

// String returns the coding's name in HTTP.
func (c Coding) String() string {
	return [...]string{"identity", "gzip", "zstd"}[c]
}

// Accept is the codings that a client does not like less than the plain body, best first.
// Identity ends the list.
type Accept [codings]Coding

// ParseAccept parses the Accept-Encoding lines of a request (RFC 9110). Of codings with equal
// weights, Zstd is better than Gzip, and Gzip better than Identity. If a coding is listed
// twice, the last weight counts. A weight that is not valid is 0. The plain body is always
// accepted: a client that refuses every form that exists gets it nevertheless.
func ParseAccept(lines [][]byte) Accept {
	if len(lines) == 0 {
		return Accept{}
	}
	if len(lines) == 1 {
		switch string(lines[0]) { // what most clients send
		case "gzip, deflate, br, zstd":
			return Accept{Zstd, Gzip}
		case "gzip", "gzip, deflate", "gzip, deflate, br":
			return Accept{Gzip}
		case "identity":
			return Accept{}
		}
	}
	return parseAccept(lines)
}

// unlisted is the weight of a coding that a request does not mention. Weights are in
// thousandths.
const unlisted = -1

// parseAccept parses every value.
func parseAccept(lines [][]byte) Accept {
	weights, rest := [codings + 1]int{unlisted, unlisted, unlisted}, unlisted
	EachWeight(lines, func(name []byte, weight int, params bool) {
		if params { // codings have none
			weight = 0
		}
		switch {
		case is(name, "gzip"), is(name, "x-gzip"):
			weights[Gzip] = weight
		case is(name, "zstd"):
			weights[Zstd] = weight
		case is(name, "identity"):
			weights[Identity] = weight
		case is(name, "*"):
			rest = weight
		}
	})
	for c := range weights {
		if weights[c] == unlisted {
			weights[c] = max(rest, 0)
		}
	}
	return order(weights)
}

// order returns the codings that are accepted and not worse than the plain body, by their
// weights.
func order(weights [codings + 1]int) (a Accept) {
	byWeight := [...]Coding{Zstd, Gzip}
	if weights[Gzip] > weights[Zstd] {
		byWeight = [...]Coding{Gzip, Zstd}
	}
	n := 0
	for _, c := range byWeight {
		if weights[c] > 0 && weights[c] >= weights[Identity] {
			a[n] = c
			n++
		}
	}
	return a
}

// EachWeight calls visit with each element of the lists in the lines of a header such as Accept
// or Accept-Encoding (RFC 9110, 12.4.2): its name, its weight in thousandths, and whether it has
// other parameters. Without a weight it is 1000, and one that is not valid is 0.
func EachWeight(lines [][]byte, visit func(name []byte, weight int, params bool)) {
	for _, line := range lines {
		for more := true; more; {
			var element []byte
			element, line, more = bytes.Cut(line, []byte(","))
			name, rest, left := bytes.Cut(element, []byte(";"))
			weight, weighted, params := 1000, false, false
			for left {
				var param []byte
				param, rest, left = bytes.Cut(rest, []byte(";"))
				param = trim(param)
				if weighted || len(param) < 2 || param[0]|0x20 != 'q' || param[1] != '=' {
					params = true
					continue
				}
				weight, weighted = parseWeight(param[2:]), true
			}
			visit(trim(name), weight, params)
		}
	}
}

// parseWeight parses 0 to 1 with up to three decimals, in thousandths. Other text is 0.
func parseWeight(text []byte) int {
	if len(text) == 0 || len(text) > len("0.000") || text[0] != '0' && text[0] != '1' || len(text) > 1 && text[1] != '.' {
		return 0
	}
	weight, unit := int(text[0]-'0')*1000, 100
	for _, digit := range text[min(2, len(text)):] {
		if digit < '0' || digit > '9' {
			return 0
		}
		weight += int(digit-'0') * unit
		unit /= 10
	}
	if weight > 1000 {
		return 0
	}
	return weight
}

// is reports whether a name is that of a coding, whatever its case.
func is(name []byte, coding string) bool {
	return len(name) == len(coding) && bytes.EqualFold(name, []byte(coding))
}

// trim returns b without spaces and tabs around it.
func trim(b []byte) []byte { return bytes.Trim(b, " \t") }
