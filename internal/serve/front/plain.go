package front

import "bytes"

// Plain reports whether b begins with the complete head of a request that every HTTP parser reads alike (RFC 9112), and how long its
// head and its body are. Its lines end with CR LF, its target is a path, no field is folded, it has one Host, and no field that concerns
// a change of protocol. A GET or HEAD request has no field that concerns a body. A POST request says once, in digits, how long its body
// is; of other such fields it has only Content-Type.
func Plain(b []byte) (head, body int, ok bool) {
	rest, post := bytes.CutPrefix(b, []byte("POST /"))
	if ok = post; !ok {
		if rest, ok = bytes.CutPrefix(b, []byte("GET /")); !ok {
			rest, ok = bytes.CutPrefix(b, []byte("HEAD /"))
		}
	}
	line, rest := cutLine(rest)
	if !ok || !plainTarget(line) {
		return 0, 0, false
	}
	hosts, lengths := 0, 0
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		if len(line) == 0 {
			return len(b) - len(rest), body, hosts == 1 && (!post || lengths == 1)
		}
		kind, ok := plainField(line)
		switch {
		case !ok, kind > hostField && !post:
			return 0, 0, false
		case kind == hostField:
			hosts++
		case kind == lengthField:
			lengths++
			if body, ok = plainLength(bytes.Trim(line[len("Content-Length:"):], " ")); !ok {
				return 0, 0, false
			}
		}
	}
	return 0, 0, false
}

// lengthDigits is how many digits the length of a plain body has at most.
const lengthDigits = 9

// plainLength returns the length of a body that a field gives.
func plainLength(text []byte) (length int, ok bool) {
	if len(text) == 0 || len(text) > lengthDigits || len(text) > 1 && text[0] == '0' {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		length = 10*length + int(c-'0')
	}
	return length, true
}

// cutLine returns the first line of b without its CR LF, and what follows. A line that does not end so is returned with what
// it ends with, which no plain line has, or is the last one.
func cutLine(b []byte) (line, rest []byte) {
	end := bytes.IndexByte(b, '\n')
	switch {
	case end < 0:
		return b, nil
	case end < 1 || b[end-1] != '\r':
		return b[:end+1], b[end+1:]
	}
	return b[:end-1], b[end+1:]
}

// plainTarget reports whether a request line, from after its first slash, has the target of a path and a version.
func plainTarget(line []byte) bool {
	target, ok := bytes.CutSuffix(line, []byte(" HTTP/1.1"))
	if !ok {
		if target, ok = bytes.CutSuffix(line, []byte(" HTTP/1.0")); !ok {
			return false
		}
	}
	if len(target) > 0 && target[0] == '/' {
		return false // it may name a host
	}
	for _, c := range target {
		if c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// fieldKind is what a field says about its request.
type fieldKind uint8

const (
	otherField fieldKind = iota
	hostField
	typeField   // Content-Type
	lengthField // Content-Length
)

// plainField reports whether a field can be part of a plain request, and its kind.
func plainField(line []byte) (kind fieldKind, ok bool) {
	colon := bytes.IndexByte(line, ':')
	if colon < 1 || bytes.IndexByte(line, '\r') >= 0 || bytes.IndexByte(line, '\n') >= 0 {
		return otherField, false
	}
	name := line[:colon]
	for _, c := range name {
		if c <= ' ' || c >= 0x7f {
			return otherField, false
		}
	}
	switch name[0] | 0x20 {
	case 'h':
		if len(name) == len("Host") && bytes.EqualFold(name, []byte("Host")) {
			return hostField, plainHost(bytes.Trim(line[colon+1:], " "))
		}
		return otherField, !is(name, "HTTP2-Settings")
	case 'c':
		switch {
		case is(name, "Content-Length"):
			return lengthField, true
		case is(name, "Content-Type"):
			return typeField, true
		}
		return otherField, len(name) < len("Content-") || !bytes.EqualFold(name[:len("Content-")], []byte("Content-"))
	case 't':
		return otherField, !is(name, "TE") && !is(name, "Transfer-Encoding") && !is(name, "Trailer")
	case 'e':
		return otherField, !is(name, "Expect")
	case 'u':
		return otherField, !is(name, "Upgrade")
	}
	return otherField, true
}

func is(name []byte, other string) bool {
	return len(name) == len(other) && bytes.EqualFold(name, []byte(other))
}

// plainHost reports whether a host is a name or an IPv4 address, perhaps with a port.
func plainHost(host []byte) bool {
	name, port, _ := bytes.Cut(host, []byte(":"))
	for _, c := range name {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	for _, c := range port {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(name) > 0 && len(port) <= 5 && (len(port) > 0 || len(name) == len(host))
}
