package server

import (
	"bytes"
	"strings"

	"github.com/valyala/fasthttp"
)

// framingFault says why it is ambiguous where a request or one of its header lines ends; ""
// if it is not. A proxy in front might see another end, and take a part of the body for a
// request, or a part of the next request for the body (RFC 9112, 11.2). fasthttp refuses
// repeated and malformed lengths, but accepts what is refused here. Two credentials are refused
// too: a proxy might check the other one.
func framingFault(h *fasthttp.RequestHeader) string {
	length, coding, credential := false, false, false
	for rest := h.RawHeaders(); len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		if end < 1 || rest[end-1] != '\r' {
			return "a line of the header does not end with CR LF"
		}
		line := rest[:end-1]
		rest = rest[end+1:]
		if len(line) == 0 {
			continue
		}
		switch line[0] {
		case ' ', '\t':
			return "a line of the header begins with a space"
		case 'a', 'A':
			if name, _, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, headerAuthorization) {
				if credential {
					return "the header has two Authorization fields"
				}
				credential = true
			}
		case 'c', 'C', 't', 'T':
			name, _, _ := bytes.Cut(line, []byte(":"))
			if bytes.IndexByte(name, ' ') >= 0 {
				return "the name of a header field has a space"
			}
			switch len(name) {
			case len("Content-Length"):
				length = length || bytes.EqualFold(name, []byte("Content-Length"))
			case len("Transfer-Encoding"):
				coding = coding || bytes.EqualFold(name, []byte("Transfer-Encoding"))
			}
		}
	}
	switch {
	case coding && length:
		return "the header has Content-Length and Transfer-Encoding"
	case coding && h.ContentLength() != chunked:
		return "the Transfer-Encoding is not chunked"
	}
	return ""
}

// hosts are the names that requests may use; nil: any.
type hosts map[string]bool

func newHosts(names []string) hosts {
	if len(names) == 0 {
		return nil
	}
	h := make(hosts, len(names))
	for _, name := range names {
		h[strings.TrimSuffix(strings.ToLower(name), ".")] = true
	}
	return h
}

var dot = []byte(".")

const wrongHostDetail = "this server does not serve the host of the request (http.hosts)"

// serve reports whether requests for a host are served. It may have a port, and a dot at its end.
func (h hosts) serve(host []byte) bool {
	if h == nil {
		return true
	}
	if colon := bytes.LastIndexByte(host, ':'); colon > bytes.LastIndexByte(host, ']') {
		host = host[:colon]
	}
	host = bytes.TrimSuffix(host, dot)
	return h[string(host)] || h[string(bytes.ToLower(host))]
}
