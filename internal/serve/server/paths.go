package server

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/param"
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

// entry returns the entry of a path, an empty one if there is none yet. One with parameters is new.
func (s *Server) entry(path string) *entry {
	if at := param.NewPath(path); len(at.Names()) > 0 {
		e := &entry{path: at, allow: "OPTIONS"}
		s.patterns = append(s.patterns, e)
		return e
	}
	e, ok := s.routes[path]
	if !ok {
		e = &entry{allow: "OPTIONS"}
		s.routes[path] = e
	}
	return e
}

// pathParams returns the path of a request if it has parameters, and nil otherwise.
func (s *Server) pathParams(ctx *fasthttp.RequestCtx) *param.Path {
	if len(s.patterns) == 0 {
		return nil
	}
	if e, ok := s.entryOf(&ctx.Request.Header); ok {
		return e.path
	}
	return nil
}

// entryOf returns the entry of a request's path. One without parameters wins.
func (s *Server) entryOf(h *fasthttp.RequestHeader) (*entry, bool) {
	path := pathOf(h)
	if e, ok := s.routes[string(path)]; ok {
		return e, true
	}
	for _, e := range s.patterns {
		if e.path.Matches(path) {
			return e, true
		}
	}
	return nil, false
}
