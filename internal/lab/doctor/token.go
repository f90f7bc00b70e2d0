package doctor

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"spillway/internal/database"
)

// tokenKind tells tokens of a statement apart.
type tokenKind int

const (
	wordToken   tokenKind = iota // a keyword or a plain name
	nameToken                    // a quoted name; text is the name itself
	stringToken                  // 'text'
	numberToken
	paramToken // ? or :name; text is the name, "" for ?
	symbolToken
)

// token is one word, literal or symbol of a statement.
type token struct {
	kind       tokenKind
	text       string
	start, end int // bytes of the source
}

// is reports whether a token is a keyword, whatever its case.
func (t token) is(keyword string) bool {
	return t.kind == wordToken && strings.EqualFold(t.text, keyword)
}

// symbol reports whether a token is that symbol.
func (t token) symbol(s string) bool { return t.kind == symbolToken && t.text == s }

// symbols are those of more than one character, the longest first.
var symbols = []string{"->>", "<=>", "#>>", "->", "<>", "!=", "<=", ">=", "::", "||", "@>", "<@", "#>", ":="}

// statementMax bounds the length of a statement in bytes.
const statementMax = 64 << 10

// tokenize splits a statement as the database's kind reads it: MySQL takes
// "text" for a string and a backslash for an escape.
func tokenize(src string, driver database.Driver) ([]token, error) {
	if len(src) > statementMax {
		return nil, fmt.Errorf("the statement is longer than %d bytes", statementMax)
	}
	if !utf8.ValidString(src) || strings.ContainsRune(src, 0) {
		return nil, fmt.Errorf("the statement is not valid UTF-8 or holds a NUL")
	}
	var tokens []token
	for at := 0; at < len(src); {
		skipped := blank(src[at:], driver)
		if skipped > 0 {
			at += skipped
			continue
		}
		if strings.HasPrefix(src[at:], "/*") {
			return nil, fmt.Errorf("%s: this /* is not closed", place(src, at))
		}
		t, err := nextToken(src[at:], driver)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", place(src, at), err)
		}
		length := t.end
		t.start, t.end = at, at+length
		tokens = append(tokens, t)
		at += length
	}
	return tokens, nil
}

// place is "line:column", both from 1.
func place(src string, at int) string {
	before := src[:at]
	return fmt.Sprintf("%d:%d", 1+strings.Count(before, "\n"), 1+utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]))
}

// blank is the length of the blanks and comments that text begins with; 0 for
// a comment without end.
func blank(text string, driver database.Driver) int {
	n := len(text) - len(strings.TrimLeftFunc(text, unicode.IsSpace))
	if n > 0 {
		return n
	}
	if strings.HasPrefix(text, "--") || driver == database.MySQL && strings.HasPrefix(text, "#") {
		line, _, _ := strings.Cut(text, "\n")
		return min(len(line)+1, len(text))
	}
	if strings.HasPrefix(text, "/*") {
		if inside, _, found := strings.Cut(text[2:], "*/"); found {
			return len(inside) + 4
		}
	}
	return 0
}

// nextToken reads the token that text begins with; its end is its length.
func nextToken(text string, driver database.Driver) (token, error) {
	r, _ := utf8.DecodeRuneInString(text)
	switch {
	case r == '\'' || r == '"' && driver == database.MySQL:
		return quoted(text, stringToken, driver == database.MySQL)
	case r == '"' || r == '`':
		return quoted(text, nameToken, false)
	case r == '?':
		return token{kind: paramToken, end: 1}, nil
	case r == '$':
		return token{}, fmt.Errorf("$ is not taken; write parameters as ? or :name")
	case r >= '0' && r <= '9':
		return numberAt(text), nil
	case isWordRune(r):
		n := wordEnd(text)
		if n == 1 && len(text) > 1 && text[1] == '\'' {
			return token{}, fmt.Errorf("strings such as %s'…' are not taken; write a parameter", text[:1])
		}
		return token{kind: wordToken, text: text[:n], end: n}, nil
	case r == ':' && len(text) > 1 && isWordRune(rune(text[1])):
		n := 1 + wordEnd(text[1:])
		return token{kind: paramToken, text: text[1:n], end: n}, nil
	}
	for _, s := range symbols {
		if strings.HasPrefix(text, s) {
			return token{kind: symbolToken, text: s, end: len(s)}, nil
		}
	}
	n := utf8.RuneLen(r)
	return token{kind: symbolToken, text: text[:n], end: n}, nil
}

// quoted reads a string or a quoted name; a doubled quote stands for one.
func quoted(text string, kind tokenKind, escapes bool) (token, error) {
	quote := text[0]
	var content strings.Builder
	for i := 1; i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\' && i+1 < len(text):
			content.WriteString(text[i : i+2])
			i++
		case text[i] == quote && i+1 < len(text) && text[i+1] == quote:
			content.WriteByte(quote)
			i++
		case text[i] == quote:
			return token{kind: kind, text: content.String(), end: i + 1}, nil
		default:
			content.WriteByte(text[i])
		}
	}
	return token{}, fmt.Errorf("this %c is not closed", quote)
}

// numberAt reads digits, a point and an exponent.
func numberAt(text string) token {
	n := 0
	for n < len(text) {
		c := text[n]
		sign := (c == '+' || c == '-') && (text[n-1] == 'e' || text[n-1] == 'E')
		if !sign && c != '.' && !isWordRune(rune(c)) {
			break
		}
		n++
	}
	return token{kind: numberToken, text: text[:n], end: n}
}

func isWordRune(r rune) bool {
	return r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= utf8.RuneSelf
}

func wordEnd(text string) int {
	for i, r := range text {
		if !isWordRune(r) && r != '$' || unicode.IsSpace(r) {
			return i
		}
	}
	return len(text)
}
