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
