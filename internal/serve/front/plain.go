package front

import "bytes"

// Plain reports whether b is exactly one complete GET or HEAD request without a body that every HTTP parser reads alike
// (RFC 9112): its lines end with CR LF, its target is a path, no field is folded, it has one Host, and no field that concerns a
// body or a change of protocol.
func Plain(b []byte) bool {
	rest, ok := bytes.CutPrefix(b, []byte("GET /"))
	if !ok {
		if rest, ok = bytes.CutPrefix(b, []byte("HEAD /")); !ok {
			return false
		}
	}
	if !bytes.HasSuffix(rest, []byte("\r\n\r\n")) {
		return false
	}
	line, rest := cutLine(rest)
	if !plainTarget(line) {
		return false
	}
	hosts := 0
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		if len(line) == 0 {
			break
		}
		isHost, ok := plainField(line)
		if !ok {
			return false
		}
		if isHost {
			hosts++
		}
	}
	return len(line) == 0 && len(rest) == 0 && hosts == 1
}

// cutLine returns the first line of b without its CR LF, and what follows. A line that does not end so is returned with what
// it ends with, which no plain line has.
func cutLine(b []byte) (line, rest []byte) {
	end := bytes.IndexByte(b, '\n')
	if end < 1 || b[end-1] != '\r' {
		return b[:end+1], b[end+1:] // every text here has an end
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

// plainField reports whether a field can be part of a plain request, and whether it is Host.
func plainField(line []byte) (isHost, ok bool) {
	colon := bytes.IndexByte(line, ':')
	if colon < 1 || bytes.IndexByte(line, '\r') >= 0 || bytes.IndexByte(line, '\n') >= 0 {
		return false, false
	}
	name := line[:colon]
	for _, c := range name {
		if c <= ' ' || c >= 0x7f {
			return false, false
		}
	}
	switch name[0] | 0x20 {
	case 'h':
		if len(name) == len("Host") && bytes.EqualFold(name, []byte("Host")) {
			return true, plainHost(bytes.Trim(line[colon+1:], " "))
		}
		return false, !is(name, "HTTP2-Settings")
	case 'c':
		return false, len(name) < len("Content-") || !bytes.EqualFold(name[:len("Content-")], []byte("Content-"))
	case 't':
		return false, !is(name, "TE") && !is(name, "Transfer-Encoding") && !is(name, "Trailer")
	case 'e':
		return false, !is(name, "Expect")
	case 'u':
		return false, !is(name, "Upgrade")
	}
	return false, true
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
