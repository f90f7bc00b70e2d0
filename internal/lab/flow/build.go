package flow

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/ohler55/ojg/jp"

	"spillway/internal/lab/target"
	"spillway/internal/yaml"
)

// builder makes a Flow from a file and reports mistakes to its document.
type builder struct {
	document *yaml.Document
	flow     *Flow
	scope    target.Scope // the variables so far
}

func newBuilder(document *yaml.Document, dir string) *builder {
	return &builder{document: document, flow: &Flow{}, scope: target.Scope{Dir: dir, Names: map[string]int{}}}
}

func (b *builder) build(spec *file) {
	kept, ok := oneOf(spec.Cookies, "iteration", "user", "none")
	if !ok {
		b.document.Reject("cookies", "must be iteration, user or none", spec.Cookies)
	}
	b.flow.cookies = cookies(kept)
	for i := range spec.Data {
		b.data(&spec.Data[i])
	}
	for _, f := range spec.Values {
		b.name(f.path, f.name)
		from := b.typed(f.path, f.text)
		b.flow.values = append(b.flow.values, value{b.variable(f.name), from})
	}
	switch {
	case len(spec.Steps) == 0:
		b.document.Reject("steps", "needs at least one step", "")
	case len(spec.Steps) > stepsMax:
		b.document.Reject("steps", fmt.Sprintf("has %d steps; the limit is %d", len(spec.Steps), stepsMax), "")
	}
	for i := range spec.Steps {
		s := &spec.Steps[i]
		b.defaults(s, spec)
		b.step(yaml.Index("steps", i), s)
	}
	b.flow.names = len(b.scope.Names)
}

// defaults gives a step what it does not have itself.
func (b *builder) defaults(s *stepSpec, spec *file) {
	s.Think = cmp.Or(s.Think, spec.Think)
	s.OnFailure = cmp.Or(s.OnFailure, spec.OnFailure)
	own := s.Headers
	s.Headers = slices.Clone(own)
	for _, h := range spec.Headers {
		if !has(own, h.name) {
			s.Headers = append(s.Headers, h)
		}
	}
}

// has reports whether headers has one of that name.
func has(headers fields, name string) bool {
	return slices.ContainsFunc(headers, func(h field) bool { return strings.EqualFold(h.name, name) })
}

// template compiles text at path.
func (b *builder) template(path, text string) target.Template {
	t, err := b.scope.Parse(text)
	b.check(path, text, err)
	return t
}

// check reports err about the text at path. If an environment variable is part of
// the text, err may quote a secret and is not shown.
func (b *builder) check(path, text string, err error) {
	switch {
	case err == nil:
	case b.document.Places[path].Text != text:
		b.document.Reject(path, "is not valid with the values of its environment variables", "")
	default:
		b.document.Reject(path, err.Error(), "")
	}
}

// name reports a name of a variable that templates cannot use.
func (b *builder) name(path, name string) {
	if !yaml.IsIdentifier(name) || name == "sequence" {
		b.document.Reject(path, "the name must be letters, digits and _, and not sequence", "")
	}
}

// variable adds a variable and returns its index. If the name exists, the later
// value replaces the earlier one.
func (b *builder) variable(name string) int {
	if index, found := b.scope.Names[name]; found {
		return index
	}
	index := len(b.scope.Names)
	b.scope.Names[name] = index
	return index
}

func (b *builder) data(spec *dataSpec) {
	path := yaml.Join("data", spec.Name)
	rows, ok := oneOf(spec.Rows, "in_order", "random", "once")
	if !ok {
		b.document.Reject(yaml.Join(path, "rows"), "must be in_order, random or once", spec.Rows)
	}
	b.name(path, spec.Name)
	if spec.File == "" {
		b.document.Reject(path, "needs a file", "")
		return
	}
	d := &dataset{file: spec.File, order: order(rows), first: len(b.scope.Names)}
	where := yaml.Join(path, "file")
	reader, err := os.Open(target.Within(b.scope.Dir, spec.File))
	if err != nil {
		b.check(where, spec.File, fmt.Errorf("cannot be opened: %w", err))
		return
	}
	defer reader.Close()
	if err := d.read(reader); err != nil {
		b.document.Reject(where, "cannot be read: "+err.Error(), "")
		return
	}
	for _, column := range d.columns {
		name := spec.Name + "." + column
		if _, repeated := b.scope.Names[name]; repeated || !target.IsVariable(name) {
			b.document.Reject(where, fmt.Sprintf("the column %.40q is there twice, or has other characters than letters, digits, blanks and -_.",
				column), "")
			return
		}
		b.variable(name)
	}
	b.flow.data = append(b.flow.data, d)
	if n := int64(len(d.rows)); d.order == once && (b.flow.limited == nil || n < b.flow.left.Load()) {
		b.flow.limited = d
		b.flow.left.Store(n)
	}
}

func (b *builder) step(path string, spec *stepSpec) {
	s := step{name: spec.Name}
	at := func(key string) string { return yaml.Join(path, key) }
	if !isName(s.name) {
		b.document.Reject(at("name"), "must be 1 to 64 letters, digits, blanks and -_./:", s.name)
	}
	if slices.Contains(b.flow.Names(), s.name) {
		b.document.Reject(at("name"), "is the name of an earlier step", s.name)
	}
	s.body = b.body(path, spec)
	s.method = cmp.Or(spec.Method, map[bool]string{true: http.MethodGet, false: http.MethodPost}[s.body == nil])
	if !target.IsMethod(s.method) {
		b.document.Reject(at("method"), "is not a method of HTTP", s.method)
	}
	var err error
	s.path, err = b.scope.ParsePath(spec.Path)
	b.check(at("path"), spec.Path, err)
	for _, h := range spec.Headers {
		b.check(h.path, h.text, target.CheckHeader(h.name, h.text))
		s.headers = append(s.headers, header{h.name, b.template(h.path, h.text)})
	}
	s.checks, err = target.ParseChecks(spec.Checks)
	if err != nil {
		b.document.Reject(at("checks"), err.Error(), "")
	}
	var ok bool
	if s.think, ok = parseThink(spec.Think); !ok {
		b.document.Reject(at("think"), "must be a duration such as 500ms, a range such as 1s..3s, or exponential(2s)", spec.Think)
	}
	failure, ok := oneOf(spec.OnFailure, "end", "continue")
	if !ok {
		b.document.Reject(at("on_failure"), "must be end or continue", spec.OnFailure)
	}
	s.proceed = failure == 1
	s.requires = s.variables()
	for i := range spec.Extract {
		s.extract = append(s.extract, b.extraction(at("extract"), &spec.Extract[i]))
	}
	b.flow.steps = append(b.flow.steps, s)
}

// variables returns the variables that the step uses.
func (s *step) variables() []int {
	used := map[int]bool{}
	add := func(t *target.Template) {
		for _, v := range t.Variables() {
			used[v] = true
		}
	}
	add(&s.path)
	for i := range s.headers {
		add(&s.headers[i].value)
	}
	for i := range s.body {
		if p := &s.body[i]; p.encoding == typed {
			used[p.variable] = true
		} else if p.template != nil {
			add(p.template)
		}
	}
	return slices.Sorted(maps.Keys(used))
}

// isName reports whether s can be the name of a step. Names appear in SLOs in braces.
func isName(s string) bool {
	return s != "" && len(s) <= 64 && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(r rune) bool {
		return r < 0x7f && !strings.ContainsRune(" -_./:", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

func (b *builder) extraction(path string, spec *extractSpec) extraction {
	path = yaml.Join(path, spec.Name)
	e := extraction{name: spec.Name, header: spec.Header}
	pick, ok := oneOf(spec.Pick, "first", "random")
	if !ok {
		b.document.Reject(yaml.Join(path, "pick"), "must be first or random", spec.Pick)
	}
	e.random = pick == 1
	given := 0
	for _, text := range []string{spec.JSON, spec.Header, spec.Regex} {
		if text != "" {
			given++
		}
	}
	if given != 1 {
		b.document.Reject(path, "needs one of json, header and regex", "")
	}
	var err error
	if spec.JSON != "" {
		if e.path, err = jp.ParseString(spec.JSON); err != nil || !strings.HasPrefix(spec.JSON, "$") {
			b.document.Reject(yaml.Join(path, "json"), "must be a JSON path such as $.items[0].id", spec.JSON)
		}
	}
	if spec.Regex != "" {
		if e.pattern, err = regexp.Compile(spec.Regex); err != nil {
			b.document.Reject(yaml.Join(path, "regex"), "is not a regular expression of Go: "+err.Error(), "")
		}
	}
	b.name(path, spec.Name)
	e.variable = b.variable(spec.Name)
	return e
}

// body returns the parts of a step's body, and adds its Content-Type to the headers.
func (b *builder) body(path string, spec *stepSpec) (parts []part) {
	given, contentType := 0, ""
	if spec.Body != nil {
		given++
		parts = []part{{template: new(b.template(yaml.Join(path, "body"), *spec.Body))}}
	}
	if spec.BodyFile != "" {
		given++
		text, err := target.ReadFile(target.Within(b.scope.Dir, spec.BodyFile))
		b.check(yaml.Join(path, "body_file"), spec.BodyFile, err)
		parts = []part{{literal: string(text)}}
	}
	if spec.JSON != nil {
		given, contentType = given+1, "application/json"
		parts = b.json(nil, spec.JSON)
	}
	if spec.Form != nil {
		given, contentType = given+1, "application/x-www-form-urlencoded"
		parts = b.form(spec.Form)
	}
	if given > 1 {
		b.document.Reject(path, "has more than one of body, body_file, json and form", "")
	}
	if contentType != "" && !has(spec.Headers, "Content-Type") {
		spec.Headers = append(spec.Headers, field{path, "Content-Type", contentType})
	}
	return parts
}

func (b *builder) form(form fields) (parts []part) {
	for i, f := range form {
		if i > 0 {
			parts = append(parts, part{literal: "&"})
		}
		name := target.PlainTemplate(f.name)
		text := b.template(f.path, f.text)
		parts = append(parts, part{template: &name, encoding: asForm}, part{literal: "="}, part{template: &text, encoding: asForm})
	}
	return parts
}

// json appends a JSON value to parts.
func (b *builder) json(parts []part, t *tree) []part {
	switch t.kind {
	case yaml.Mapping, yaml.List:
		brackets := map[yaml.Kind]string{yaml.Mapping: "{}", yaml.List: "[]"}[t.kind]
		parts = append(parts, part{literal: brackets[:1]})
		for i := range t.items {
			if i > 0 {
				parts = append(parts, part{literal: ","})
			}
			if t.kind == yaml.Mapping {
				parts = append(parts, part{literal: string(appendJSON(nil, t.keys[i])) + ":"})
			}
			parts = b.json(parts, &t.items[i])
		}
		return append(parts, part{literal: brackets[1:]})
	case yaml.Text:
		return append(parts, b.typed(t.path, t.text))
	}
	if !json.Valid([]byte(t.text)) {
		b.document.Reject(t.path, "is not a number of JSON", t.text)
	}
	return append(parts, part{literal: t.text})
}

// typed returns the part of a text that has a type in JSON: a text that is one value in
// braces has the type of the value.
func (b *builder) typed(path, s string) part {
	template := b.template(path, s)
	inner, opened := strings.CutPrefix(s, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	if opened && closed {
		if variable, found := b.scope.Names[inner]; found {
			return part{encoding: typed, variable: variable}
		}
		if inner == "sequence" || strings.HasPrefix(inner, "random(") && !strings.Contains(inner, "{") {
			return part{template: &template, encoding: asNumber}
		}
	}
	return part{template: &template, encoding: asJSON}
}
