package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a file. The parser's work grows with the square of depth and keys.
const (
	bytesMax    = 256 << 10
	depthMax    = 50
	indentMax   = 200 // columns before the first word of a line
	mistakesMax = 50  // reported
)

// A Mistake is one thing that is wrong in a file, with its place.
type Mistake struct {
	File         string
	Line, Column int    // from 1
	Path         string // of the value, "services.web.command.0"; "" is the file
	Message      string // one line
}

// Error returns one line: FILE:LINE:COLUMN: PATH: MESSAGE.
func (m Mistake) Error() string {
	if m.Path == "" {
		return fmt.Sprintf("%s:%d:%d: %s", m.File, m.Line, m.Column, m.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", m.File, m.Line, m.Column, m.Path, m.Message)
}

// Mistakes are all that was found, in the file's order.
type Mistakes []Mistake

// Error returns one line for each mistake.
func (m Mistakes) Error() string {
	lines := make([]string, len(m))
	for i, one := range m {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// ReadFile reads the experiment at path as Read does.
func ReadFile(path string) (*File, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, &UseError{fmt.Sprintf("read experiment: %v", err)}
	}
	return Read(path, source)
}

// Read reads an experiment from YAML, fills in defaults and checks everything that the text alone can tell; templates
// and programs are for Check. name stands for the file in messages. The error is Mistakes.
func Read(name string, source []byte) (*File, error) {
	root, mistakes := parse(source)
	f := &File{name: name, source: source}
	if len(mistakes) == 0 {
		d := decoder{places: map[string]place{}}
		d.decode("", root, reflect.ValueOf(f).Elem())
		f.places, mistakes = d.places, d.mistakes
	}
	if len(mistakes) == 0 {
		f.setDefaults()
		mistakes = f.validate()
	}
	if len(mistakes) == 0 {
		return f, nil
	}
	slices.SortStableFunc(mistakes, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	mistakes = slices.Compact(mistakes)
	mistakes = mistakes[:min(len(mistakes), mistakesMax)]
	for i := range mistakes {
		mistakes[i].File = name
	}
	return nil, mistakes
}

// parse returns the one document of a file.
func parse(source []byte) (root ast.Node, mistakes Mistakes) {
	whole := func(message string) Mistakes { return Mistakes{{Line: 1, Column: 1, Message: message}} }
	switch {
	case len(source) > bytesMax:
		return nil, whole(fmt.Sprintf("larger than %d bytes", bytesMax))
	case !utf8.Valid(source):
		return nil, whole("not valid UTF-8")
	case strings.ContainsFunc(string(source), func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' && r != '\n' || r == 0x7f }):
		return nil, whole("holds a control character")
	}
	defer func() {
		// A panic of the parser must not take down a caller that only checks a file.
		if recover() != nil {
			root, mistakes = nil, whole("cannot be read as YAML")
		}
	}()
	tokens := lexer.Tokenize(string(source))
	if t := tooDeep(tokens); t != nil {
		at := tokenPlace(t)
		return nil, Mistakes{{Line: at.line, Column: at.column, Message: "nested too deeply"}}
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, Mistakes{syntaxMistake(err)}
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			at := position(doc.Body)
			return nil, Mistakes{{Line: at.line, Column: at.column, Message: "a second document; an experiment is one"}}
		}
		root = doc.Body
	}
	if root == nil {
		return nil, whole("the file is empty")
	}
	return root, nil
}

// tooDeep returns the first token that is nested deeper than the bounds, or nil.
func tooDeep(tokens token.Tokens) *token.Token {
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		starts := t.Prev == nil || t.Prev.Position.Line < t.Position.Line || t.Type == token.SequenceEntryType
		if depth > depthMax || starts && t.Position.Column > indentMax {
			return t
		}
	}
	return nil
}

func syntaxMistake(err error) Mistake {
	m := Mistake{Line: 1, Column: 1, Message: "cannot be read as YAML"}
	var syntax yaml.Error
	if !errors.As(err, &syntax) {
		return m
	}
	at := tokenPlace(syntax.GetToken())
	m.Line, m.Column = at.line, at.column
	if message, _, _ := strings.Cut(syntax.GetMessage(), "\n"); message != "" {
		m.Message += ": " + message
	}
	return m
}
