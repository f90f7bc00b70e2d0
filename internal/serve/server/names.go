package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/param"
	"spillway/internal/yaml"
)

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
	handle, start := r.handle, r.start
	r.handle = func(ctx *fasthttp.RequestCtx, at *param.Path, wait bool) (quick bool) {
		detail := unknownName(ctx.QueryArgs(), r.names, at)
		switch {
		case detail == "":
			return handle(ctx, at, wait)
		case wait:
			s.problem(ctx, badRequest, detail)
		}
		return false
	}
	if start == nil {
		return
	}
	r.start = func(ctx *fasthttp.RequestCtx, x *loopRequest) (started, bool) {
		if detail := unknownName(ctx.QueryArgs(), r.names, nil); detail != "" {
			s.problem(ctx, badRequest, detail)
			return nil, true
		}
		return start(ctx, x)
	}
}

// unknownName returns what is wrong with the names of a request's parameters; "" if they are among those known. Those of the path
// cannot be behind it, too.
func unknownName(args *fasthttp.Args, known []string, at *param.Path) string {
	var inPath []string
	if at != nil {
		inPath = at.Names()
	}
	for name := range args.All() {
		if slices.Contains(known, text(name)) && !slices.Contains(inPath, text(name)) {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(known), func(other string) bool { return slices.Contains(inPath, other) })
		detail := fmt.Sprintf("this path has no parameter %.64q", name)
		switch nearest := yaml.Nearest(text(name), others); {
		case nearest != "":
			return detail + "; did you mean " + nearest + "?"
		case len(others) > 0:
			return detail + "; it has " + strings.Join(others, ", ")
		}
		return detail
	}
	return ""
}
