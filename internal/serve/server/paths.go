package server

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

var (
	queryMark = []byte("?")
	schemeEnd = []byte("://")
)

// pathOf returns the path of a request exactly as its client has written it. In an absolute target it follows the host. nil: the
// target has no path.
//
// A proxy in front may permit or deny paths, and compares them before anything is decoded or removed. So that no other spelling
// passes its rules, only this text finds a route.
func pathOf(h *fasthttp.RequestHeader) []byte {
	path, _, _ := bytes.Cut(h.RequestURI(), queryMark)
	if len(path) > 0 && path[0] == '/' {
		return path
	}
	scheme, rest, _ := bytes.Cut(path, schemeEnd)
	if !bytes.EqualFold(scheme, []byte("http")) && !bytes.EqualFold(scheme, []byte("https")) {
		return nil
	}
	slash := bytes.IndexByte(rest, '/')
	if slash < 0 || bytes.IndexByte(rest[:slash], '#') >= 0 {
		return nil
	}
	return rest[slash:]
}

// entryOf returns the entry of a request's path.
func (s *Server) entryOf(h *fasthttp.RequestHeader) (*entry, bool) {
	e, ok := s.routes[string(pathOf(h))]
	return e, ok
}
