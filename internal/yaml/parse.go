package yaml

import (
	"errors"
	"fmt"
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
	bytesMax  = 256 << 10
	depthMax  = 100 // brackets and braces
	indentMax = 200 // columns before the first word or the last dash of a line
	errorsMax = 100 // reported
)

// parse returns the one document of a file.
func parse(source []byte, empty string) (root ast.Node, errs Errors) {
	if line, column, message := checkText(source); message != "" {
		return nil, Errors{{Line: line, Column: column, Message: message}}
	}
	defer func() {
		// A panic of the parser must not take down a caller that only checks a file.
		if recover() != nil {
			root, errs = nil, Errors{{Line: 1, Column: 1, Message: "cannot be read as YAML"}}
		}
	}()
	tokens := lexer.Tokenize(string(source))
	if t := tooDeep(tokens); t != nil {
		at := position(t)
		message := fmt.Sprintf("nested too deeply: at most %d brackets and %d columns of indentation", depthMax, indentMax)
		return nil, Errors{{Line: at.Line, Column: at.Column, Message: message}}
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, Errors{syntaxError(err)}
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			at := start(doc.Body)
			errs = append(errs, Error{Line: at.Line, Column: at.Column, Message: "a second document; the file must hold one"})
			continue
		}
		root = doc.Body
	}
	if root == nil {
		errs = append(errs, Error{Line: 1, Column: 1, Message: "the file is empty" + empty})
	}
	return root, errs
}

// IsPlain reports whether text, written without quotes, reads back as the same text.
func IsPlain(text string) bool {
	root, errs := parse([]byte(text), "")
	node, ok := root.(*ast.StringNode)
	return len(errs) == 0 && ok && node.Value == text
}

// tooDeep returns the first token beyond the bounds of nesting, or nil.
func tooDeep(tokens token.Tokens) *token.Token {
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		startsLine := t.Prev == nil || t.Prev.Position.Line < t.Position.Line
		if depth > depthMax || (startsLine || t.Type == token.SequenceEntryType) && t.Position.Column > indentMax {
			return t
		}
	}
	return nil
}

// checkText refuses a file that is too large or not text.
func checkText(source []byte) (line, column int, message string) {
	if len(source) > bytesMax {
		return 1, 1, fmt.Sprintf("the file is larger than %d bytes", bytesMax)
	}
	line, column = 1, 1
	for i := 0; i < len(source); {
		r, size := utf8.DecodeRune(source[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return line, column, "not valid UTF-8"
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return line, column, "a control character"
		}
		column++
		i += size
	}
	return 0, 0, ""
}

// syntaxError takes position and reason from the parser's error. It leaves out the excerpt
// of the source, which may hold a secret.
func syntaxError(err error) Error {
	e := Error{Line: 1, Column: 1, Message: "cannot be read as YAML"}
	syntax, ok := errors.AsType[yaml.Error](err)
	if !ok {
		return e
	}
	at := position(syntax.GetToken())
	e.Line, e.Column = at.Line, at.Column
	message := syntax.GetMessage()
	if strings.Contains(strings.ToLower(message), "tab") || strings.Contains(message, "\t") {
		e.Message = "a tab in the indentation; YAML requires spaces"
		return e
	}
	message, _, _ = strings.Cut(message, "\n")
	message, _, _ = strings.Cut(message, "\"") // the rest quotes the file
	if message = strings.TrimRight(message, ": "); message != "" {
		e.Message = "cannot be read as YAML: " + message
	}
	return e
}

// start returns where a node begins.
func start(node ast.Node) Place {
	if block, ok := node.(*ast.MappingNode); ok && !block.IsFlowStyle && len(block.Values) > 0 {
		node = block.Values[0].Key // the block's own token is its first colon
	}
	return position(node.GetToken())
}

func position(t *token.Token) Place {
	if t == nil || t.Position == nil {
		return Place{Line: 1, Column: 1}
	}
	return Place{Line: max(t.Position.Line, 1), Column: max(t.Position.Column, 1)}
}
