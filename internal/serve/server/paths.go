package server

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/param"
	"spillway/internal/yaml"
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

// namesOf returns the names of parameters that requests may have: those of params, and others.
func namesOf(params []param.Param, others ...string) []string {
	for _, p := range params {
		if !param.IsClaim(p.Name) {
			others = append(others, p.Name)
		}
	}
	return others
}

// checkNames has a strict route refuse requests with a parameter that it does not have.
func (s *Server) checkNames(r *route) {
	if !r.strict {
		return
	}
	handle := r.handle
	r.handle = func(ctx *fasthttp.RequestCtx, x *loopRequest) handled {
		if detail := unknownName(ctx.QueryArgs(), r.names, s.pathParams(ctx)); detail != "" {
			s.problem(ctx, badRequest, detail)
			return quick
		}
		return handle(ctx, x)
	}
}

// unknownName returns what is wrong with the names of a request's parameters; "" if they are among those known. Those of the path
// cannot be behind it, too.
func unknownName(args *fasthttp.Args, known []string, at *param.Path) string {
	if args.Len() == 0 {
		return ""
	}
	known = slices.DeleteFunc(slices.Clone(known), func(name string) bool { return slices.Contains(at.Names(), name) })
	for name := range args.All() {
		if slices.Contains(known, text(name)) {
			continue
		}
		detail := fmt.Sprintf("this path has no parameter %.64q", name)
		if nearest := yaml.Nearest(text(name), known); nearest != "" {
			return detail + "; did you mean " + nearest + "?"
		}
		if len(known) == 0 {
			return detail
		}
		return detail + "; it has " + strings.Join(known, ", ")
	}
	return ""
}
