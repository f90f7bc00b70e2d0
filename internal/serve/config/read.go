package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
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
	maxBytes  = 256 << 10 // of the file
	maxDepth  = 100       // of brackets and braces
	maxIndent = 200       // columns before the first word or the last dash of a line
	maxErrors = 100       // mistakes reported
)

// Load reads the file at path, with the process's environment and files, as
// Read does.
func Load(path string, checks ...Check) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return Read(path, src, os.LookupEnv, os.ReadFile, checks...)
}

// Read reads a configuration from YAML. Name stands for the file in errors;
// env looks up a variable of the environment for ${NAME}; readFile reads the
// file of a secret written as file:PATH.
//
// The error is an Errors with every mistake that was found: those of the file's
// form, those of Validate, and those of the checks. It holds no secret.
func Read(name string, src []byte, env func(string) (string, bool), readFile func(string) ([]byte, error), checks ...Check) (Config, error) {
	root, errs := parse(src)
	if len(errs) > 0 {
		return Config{}, named(name, errs)
	}
	c := Default()
	d := decoder{env: env, readFile: readFile, places: map[string]place{}}
	d.decode("", root, reflect.ValueOf(&c).Elem())
	var found Mistakes
	if errors.As(c.Validate(checks...), &found) {
		for _, m := range found {
			d.mistake(m)
		}
	}
	if len(d.errs) > 0 {
		return Config{}, named(name, d.errs)
	}
	return c, nil
}

// named puts the mistakes into order and the file's name into each.
func named(name string, errs Errors) Errors {
	errs = errs.sort()
	if len(errs) >= maxErrors {
		last := errs[len(errs)-1]
		last.Path, last.Message = "", fmt.Sprintf("%d mistakes or more; no more are reported", maxErrors)
		errs = append(errs, last)
	}
	for i := range errs {
		errs[i].File = name
	}
	return errs
}

// parse returns the one document of a file.
func parse(src []byte) (root ast.Node, errs Errors) {
	if line, column, message := checkText(src); message != "" {
		return nil, Errors{{Line: line, Column: column, Message: message}}
	}
	defer func() {
		// A panic of the parser must not take down a caller that only checks a file.
		if recover() != nil {
			root, errs = nil, Errors{{Line: 1, Column: 1, Message: "cannot be read as YAML"}}
		}
	}()
	tokens := lexer.Tokenize(string(src))
	if t := tooDeep(tokens); t != nil {
		at := position(t)
		return nil, Errors{{Line: at.line, Column: at.column, Message: "nested too deeply for a configuration"}}
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
			errs = append(errs, Error{Line: at.line, Column: at.column, Message: "a second document; a configuration is one"})
			continue
		}
		root = doc.Body
	}
	if root == nil {
		errs = append(errs, Error{Line: 1, Column: 1, Message: "the file is empty; for the built-in configuration give no file"})
	}
	return root, errs
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
		startsLine := t.Prev == nil || t.Prev.Position.Line < t.Position.Line
		if depth > maxDepth || (startsLine || t.Type == token.SequenceEntryType) && t.Position.Column > maxIndent {
			return t
		}
	}
	return nil
}

// checkText refuses what is no text, or too much of it.
func checkText(src []byte) (line, column int, message string) {
	if len(src) > maxBytes {
		return 1, 1, fmt.Sprintf("the file is larger than %d bytes", maxBytes)
	}
	line, column = 1, 1
	for i := 0; i < len(src); {
		r, size := utf8.DecodeRune(src[i:])
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

// syntaxError takes position and reason from the parser's error, and leaves
// the excerpt of the source out: it may hold a secret.
func syntaxError(err error) Error {
	e := Error{Line: 1, Column: 1, Message: "cannot be read as YAML"}
	var syntax yaml.Error
	if !errors.As(err, &syntax) {
		return e
	}
	at := position(syntax.GetToken())
	e.Line, e.Column = at.line, at.column
	message := syntax.GetMessage()
	if strings.Contains(strings.ToLower(message), "tab") || strings.Contains(message, "\t") {
		e.Message = "a tab where YAML wants spaces"
		return e
	}
	message, _, _ = strings.Cut(message, "\n")
	message, _, _ = strings.Cut(message, "\"") // what it quotes is the file's
	if message = strings.TrimRight(message, ": "); message != "" {
		e.Message = "cannot be read as YAML: " + message
	}
	return e
}

// place is where a value stands in the file.
type place struct {
	line, column int
	written      string // the value as written, if ${NAME} in it was expanded
}

func position(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{line: 1, column: 1}
	}
	return place{line: max(t.Position.Line, 1), column: max(t.Position.Column, 1)}
}
