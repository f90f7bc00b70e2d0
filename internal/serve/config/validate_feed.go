package config

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/yaml"
)

// paramTypes are the parameter types of the engines.
const paramTypes = "text,integer,real,decimal,boolean,timestamp,date,time,uuid,bytes"

// The query parameters that a feed or a query has anyway.
const (
	feedReserved  = "limit,offset,before,fields"
	queryReserved = "fields"
)

// feed checks one feed. paths maps each path to the key that has it.
func (v *validator) feed(at string, f Feed, paths map[string]string) {
	inPath := f.Params.inPath()
	for _, filter := range f.Filters {
		inPath = append(inPath, filter.Name)
	}
	v.paths(at, f.Path, f.Aliases, inPath, paths)
	if strings.TrimSpace(f.SQL) == "" {
		v.add(yaml.Join(at, "sql"), "must be given: one SELECT", "")
	}
	v.key(yaml.Join(at, "key"), f.Key)
	v.params(yaml.Join(at, "params"), f.Params, feedReserved)
	v.filters(yaml.Join(at, "filters"), f)
	if f.Limit > f.LimitMax {
		v.add(yaml.Join(at, "limit"), fmt.Sprintf("must not be larger than limit_max, which is %d", f.LimitMax), fmt.Sprint(f.Limit))
	}
	if f.LiveMax >= f.WindowsMax {
		v.add(yaml.Join(at, "live_max"), fmt.Sprintf("must be smaller than windows_max, which is %d, because other values need windows too",
			f.WindowsMax), strconv.Itoa(f.LiveMax))
	}
	if f.StaleMax < f.Refresh {
		v.add(yaml.Join(at, "stale_max"), "must not be shorter than refresh, which is "+f.Refresh.String(), f.StaleMax.String())
	}
	if f.IdleAfter < f.Refresh {
		v.add(yaml.Join(at, "idle_after"), "must not be shorter than refresh, which is "+f.Refresh.String(), f.IdleAfter.String())
	}
}

// caching checks for how long shared caches may serve the rows of a path. fresh is the age, the
// value of a key, that rows reach before this server reads them again.
func (v *validator) caching(at string, maxAge, stale time.Duration, key string, fresh time.Duration, access string) {
	shared, revalidate := yaml.Join(at, "s_maxage"), yaml.Join(at, "stale_while_revalidate")
	switch {
	case maxAge == 0 && stale > 0:
		v.add(revalidate, "requires s_maxage", stale.String())
	case maxAge == 0:
	case access != "open":
		v.add(shared, "must be 0s, because the path requires authentication: a shared cache would give the rows of one client to others",
			maxAge.String())
	case maxAge%time.Second != 0:
		v.add(shared, "must be whole seconds", maxAge.String())
	case stale%time.Second != 0:
		v.add(revalidate, "must be whole seconds", stale.String())
	case maxAge <= fresh:
		v.add(shared, "must be longer than "+key+", which is "+fresh.String()+": rows can be that old when a cache gets them", maxAge.String())
	}
}

// ownPaths returns the paths that no part can have, and what has them.
func (c *Config) ownPaths() map[string]string {
	paths := make(map[string]string)
	if c.HTTP.OpenAPI {
		paths["/openapi.json"] = "the path of http.openapi, which can be false"
	}
	if c.Demo {
		for _, path := range []string{"/", "/demo.js", "/demo.css", "/demo/costs"} {
			paths[path] = "the page of demo, which can be false"
		}
	}
	return paths
}

// paths checks the path of a feed, a query or a stream, and its aliases. They may have parameters of those names.
func (v *validator) paths(at, path string, aliases, params []string, taken map[string]string) {
	v.path(yaml.Join(at, "path"), path, params, taken)
	for i, alias := range aliases {
		v.path(yaml.Index(yaml.Join(at, "aliases"), i), alias, params, taken)
	}
}

// path checks a path. paths maps the shape of each path to the key that has it.
func (v *validator) path(at, text string, params []string, paths map[string]string) {
	parsed := param.NewPath(text)
	path := parsed.Shape()
	braces := strings.Contains(text, "{")
	switch {
	case text == "":
		v.add(at, "must be given, as /orders", "")
	case braces && (text[0] != '/' || strings.Count(path, "{}") != len(parsed.Names()) || !isPath(strings.ReplaceAll(path, "/{}", "/x"))):
		v.add(at, "must have {NAME} only as a whole segment, and otherwise letters, digits and -._~/ as other paths", text)
	case !braces && !isPath(text):
		v.add(at, "must start with /, contain only letters, digits and -._~/ without // and .., and not end with /", text)
	case !v.pathParams(at, parsed, params):
	case path == "/hello" || path == "/probe" || strings.HasPrefix(path, "/probe/"):
		v.add(at, "must not be /hello or below /probe, which are reserved", text)
	case paths[path] != "" && braces:
		v.add(at, "must differ from "+paths[path]+", not only in the names of parameters", text)
	case paths[path] != "":
		v.add(at, "must differ from "+paths[path], text)
	default:
		paths[path] = at
	}
}

// pathParams reports whether each parameter of a path is one of params, once.
func (v *validator) pathParams(at string, path *param.Path, params []string) bool {
	seen := map[string]bool{}
	for _, name := range path.Names() {
		switch {
		case len(params) == 0:
			v.add(at, "must have no {NAME}: only params without list_max, and filters, can be in a path", path.Text)
			return false
		case !slices.Contains(params, name), seen[name]:
			v.add(at, "must have in braces, each once, only params without list_max, and filters: "+strings.Join(params, ", "), path.Text)
			return false
		}
		seen[name] = true
	}
	return true
}

// inPath returns the parameters that a path may have.
func (p Params) inPath() []string {
	var names []string
	for _, one := range p {
		if one.ListMax == 0 && !param.IsClaim(one.Name) {
			names = append(names, one.Name)
		}
	}
	return names
}

var (
	pathPattern   = regexp.MustCompile(`^/[A-Za-z0-9._~/-]*$`)
	columnPattern = regexp.MustCompile(`^[\p{L}_][\p{L}\p{Nd}_]*$`)
	quotedPattern = regexp.MustCompile(`^[\p{L}\p{Nd}_$]([\p{L}\p{Nd}_$ -]*[\p{L}\p{Nd}_$-])?$`)
)

func isPath(text string) bool { return pathPattern.MatchString(text) && path.Clean(text) == text }

func isColumn(name string) bool { return columnPattern.MatchString(name) }

// isQuoted reports whether a stream's table or column may have a name, which is quoted in SQL.
func isQuoted(name string) bool { return quotedPattern.MatchString(name) }

func (v *validator) key(at string, keys Keys) {
	if len(keys) == 0 {
		v.add(at, "must name at least one column", "")
	}
	seen := map[string]bool{}
	for _, column := range keys {
		name := strings.ToLower(column.Name)
		switch {
		case !isColumn(column.Name):
			v.add(at, "must be the name of an output column: letters, digits and _", column.Name)
		case seen[name]:
			v.add(at, "must not repeat a column", column.Name)
		}
		seen[name] = true
	}
}

// query checks one query. paths maps each path to the key that has it.
func (v *validator) query(at string, q Query, paths map[string]string) {
	v.paths(at, q.Path, q.Aliases, q.Params.inPath(), paths)
	if strings.TrimSpace(q.SQL) == "" {
		v.add(yaml.Join(at, "sql"), "must be given: one SELECT", "")
	}
	v.params(yaml.Join(at, "params"), q.Params, queryReserved)
	if q.Stale > 0 && q.TTL == 0 {
		v.add(yaml.Join(at, "stale"), "must be 0s unless ttl is set: without a ttl nothing is cached", q.Stale.String())
	}
	if q.Cache == "redis" && q.TTL == 0 {
		v.add(yaml.Join(at, "cache"), "must be memory unless ttl is set: without a ttl nothing is cached", q.Cache)
	}
}

// filtersMax bounds the filters of a feed: each of their combinations has statements of its own.
const filtersMax = 4

// filters checks a feed's filters.
func (v *validator) filters(at string, f Feed) {
	if len(f.Filters) > filtersMax {
		v.add(at, fmt.Sprintf("must be at most %d columns", filtersMax), strconv.Itoa(len(f.Filters)))
	}
	for _, filter := range f.Filters {
		path := yaml.Join(at, yaml.Printable(filter.Name))
		if !isColumn(filter.Name) {
			v.add(path, "must be the name of an output column: letters, digits and _", "")
		}
		if slices.Contains(f.Params.Names(), filter.Name) {
			v.add(path, "must not be a parameter in params", "")
		}
		v.paramType(path, filter, feedReserved)
	}
}

// listMax bounds the values of a list.
const listMax = 1000

// params checks a statement's parameters.
func (v *validator) params(at string, params Params, reserved string) {
	for _, p := range params {
		path := yaml.Join(at, yaml.Printable(p.Name))
		known := len(v.found)
		if !yaml.IsIdentifier(strings.TrimPrefix(p.Name, param.ClaimPrefix)) {
			v.add(path, "must be a name of letters, digits and _ that does not start with a digit", "")
		}
		v.paramType(path, Typed{p.Name, p.Type}, reserved)
		if p.ListMax < 0 || p.ListMax > listMax {
			v.add(yaml.Join(path, "list_max"), fmt.Sprintf("must be from 0 to %d", listMax), strconv.Itoa(p.ListMax))
		}
		if param.IsClaim(p.Name) && (p.Default != nil || p.ListMax != 0) {
			v.add(path, "must have neither default nor list_max: the claim of the JWT is its only value", "")
		}
		if p.Default == nil || len(v.found) > known {
			continue
		}
		if _, err := p.Param(); err != nil {
			text := strings.ReplaceAll(strings.Join(p.Default, ", "), param.Absent, "null")
			v.add(yaml.Join(path, "default"), "cannot be used: "+err.Error(), text)
		}
	}
}

// paramType checks the type of a parameter, and that its name is not reserved.
func (v *validator) paramType(path string, p Typed, reserved string) {
	if slices.Contains(strings.Split(reserved, ","), p.Name) {
		v.add(path, "must have another name, here and in sql; reserved: "+strings.ReplaceAll(reserved, ",", ", "), "")
	}
	if !slices.Contains(strings.Split(paramTypes, ","), p.Type) {
		v.add(path, "must be "+orList(paramTypes), p.Type)
	}
}

// Param returns the parameter, or an error and the parameter without its default.
func (p Param) Param() (param.Param, error) {
	one := param.Param{Name: p.Name, Type: param.Type(p.Type), ListMax: p.ListMax}
	if p.Default == nil {
		return one, nil
	}
	if p.Default.isNull() {
		if p.ListMax > 0 {
			return one, errors.New("null, which a list cannot be; its default is a list, or none")
		}
		one.Default, one.Optional = param.Absent, true
		return one, nil
	}
	if n := len(p.Default); n == 0 || n > 1 && p.ListMax == 0 {
		return one, fmt.Errorf("%d values; a list has at least one, and a parameter without list_max exactly one", n)
	}
	argument, err := param.Argument(one, p.Default...)
	if err != nil {
		return one, err
	}
	one.Default, one.Optional = argument, true
	return one, nil
}

// All returns the parameters. A default that cannot be used, which Validate reports, is left out.
func (p Params) All() []param.Param {
	var all []param.Param
	for _, one := range p {
		converted, _ := one.Param()
		all = append(all, converted)
	}
	return all
}

// AllParams returns the parameters of requests: those of the statement, and the filters.
func (f *Feed) AllParams() []param.Param {
	all := f.Params.All()
	for _, filter := range f.Filters {
		all = append(all, param.Filter(filter.Name, param.Type(filter.Type)))
	}
	return all
}
