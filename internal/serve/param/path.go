package param

import (
	"bytes"
	"net/url"
	"strings"

	"spillway/internal/yaml"
)

// Path is the path of a feed or a query. Each of its segments is literal, or a parameter: in /orders/{id}, the second one is the
// value of id.
type Path struct {
	Text     string
	segments []segment
}

// segment is what follows a slash.
type segment struct {
	literal string
	name    string // of a parameter; "": the segment is literal
}

// NewPath returns the path that a text is.
func NewPath(text string) *Path {
	p := &Path{Text: text}
	for part := range strings.SplitSeq(strings.TrimPrefix(text, "/"), "/") {
		one := segment{literal: part}
		if inner := strings.TrimSuffix(strings.TrimPrefix(part, "{"), "}"); len(inner)+2 == len(part) && yaml.IsIdentifier(inner) {
			one.name = inner
		}
		p.segments = append(p.segments, one)
	}
	return p
}

// Names returns the parameters in their order. p may be nil.
func (p *Path) Names() []string {
	var names []string
	if p == nil {
		return nil
	}
	for _, s := range p.segments {
		if s.name != "" {
			names = append(names, s.name)
		}
	}
	return names
}

// Shape returns the path with {} in the place of each parameter. Paths with equal shapes match the same requests.
func (p *Path) Shape() string {
	var shape strings.Builder
	for _, s := range p.segments {
		if s.name != "" {
			s.literal = "{}"
		}
		shape.WriteString("/" + s.literal)
	}
	return shape.String()
}

// Compare orders paths that may match the same request: the first one serves it. It has a literal segment where the other one
// has a parameter, at the first difference from the left.
func (p *Path) Compare(other *Path) int { return strings.Compare(p.order(), other.order()) }

func (p *Path) order() string {
	order := make([]byte, len(p.segments))
	for i, s := range p.segments {
		if s.name != "" {
			order[i] = 1
		}
	}
	return string(order)
}

// Matches reports whether a request has the path. written is its path as its client has written it. The literal segments must be
// the same bytes. A parameter has a value, which is not "." or "..".
func (p *Path) Matches(written []byte) bool {
	for _, s := range p.segments {
		if len(written) == 0 || written[0] != '/' {
			return false
		}
		var value []byte
		if value, written = cutSegment(written[1:]); s.name == "" {
			if string(value) != s.literal {
				return false
			}
			continue
		}
		if text := string(value); text == "" || text == "." || text == ".." || bytes.IndexByte(value, '#') >= 0 {
			return false
		}
	}
	return len(written) == 0
}

// Value returns the value of a parameter in the path of a request that Matches, percent-decoded if that is possible; nil: the path
// does not have the parameter. It may share the memory of written. p may be nil.
func (p *Path) Value(written []byte, name string) []byte {
	if p == nil {
		return nil
	}
	for _, s := range p.segments {
		var value []byte
		if value, written = cutSegment(written[1:]); s.name != name {
			continue
		}
		if bytes.IndexByte(value, '%') < 0 {
			return value
		}
		if decoded, err := url.PathUnescape(string(value)); err == nil {
			return []byte(decoded)
		}
		return value
	}
	return nil
}

// cutSegment returns the segment at the beginning of a path, and what follows it.
func cutSegment(path []byte) (segment, rest []byte) {
	end := bytes.IndexByte(path, '/')
	if end < 0 {
		end = len(path)
	}
	return path[:end], path[end:]
}
