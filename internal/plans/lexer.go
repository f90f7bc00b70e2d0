package plans

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Dialect is the SQL that a database reads: Postgres, MySQL or SQLite, the
// first two with settings.
type Dialect uint8

// The dialects and their settings.
const (
	Postgres Dialect = 1 << iota
	MySQL            // MySQL and MariaDB; a backslash in a string is a character (NO_BACKSLASH_ESCAPES)
	SQLite           //
	// a backslash in any string escapes: added to MySQL, its default sql_mode; to Postgres, standard_conforming_strings=off
	BackslashEscapes
	ANSIQuotes // added to MySQL: "x" is a name and not a string
)

// Has reports whether a dialect is another one, or has its setting.
func (d Dialect) Has(other Dialect) bool { return d&other != 0 }

// Kind tells the tokens of a statement apart.
type Kind int

// The kinds of tokens.
const (
	Word    Kind = iota // a keyword or a plain name
	Name                // a quoted name; Text is the name without its quotes
	String              // a string; Text is what is between its quotes
	Number              //
	Param               // :name, ? or $1; Text is the name, "" or "$1"
	Symbol              //
	Comment             //
)

// Token is one word, literal, symbol or comment of a statement.
type Token struct {
	Kind       Kind
	Text       string
	Start, End int // bytes of the source
}

// Is reports whether a token is a keyword, ignoring case.
func (t Token) Is(keyword string) bool { return t.Kind == Word && strings.EqualFold(t.Text, keyword) }

// IsAny reports whether a token is one of some keywords.
func (t Token) IsAny(keywords ...string) bool { return slices.ContainsFunc(keywords, t.Is) }

// IsSymbol reports whether a token is that symbol.
func (t Token) IsSymbol(s string) bool { return t.Kind == Symbol && t.Text == s }

// IsName reports whether a token can name a table or a column.
func (t Token) IsName() bool { return t.Kind == Word || t.Kind == Name }

// Lex splits a statement into tokens as the dialect's database does. Blanks are
// between tokens. After an error it returns the tokens before it. Errors start
// with line and column, both from 1.
//
//   - Postgres: $tag$ strings, E'...' with backslash escapes, nested comments.
//   - MySQL: # comments, -- comments only in front of a blank, "x" as a string,
//     comments that do not nest; E and $ are nothing special.
//   - SQLite: [x] as a name, comments that do not nest; E and $ are nothing special.
//
// A colon starts a parameter except in ::, in :=, and directly after an
// operand, as in a[1:2]. In :claim.sub the point belongs to the name.
func Lex(src string, d Dialect) ([]Token, error) {
	if err := checkText(src); err != nil {
		return nil, err
	}
	l := lexer{src: src, dialect: d}
	var tokens []Token
	for l.pos < len(src) {
		if isBlank(src[l.pos]) {
			l.pos++
			continue
		}
		t, err := l.next()
		if err != nil {
			return tokens, err
		}
		tokens = append(tokens, t)
		l.pos = t.End
	}
	return tokens, nil
}

func checkText(src string) error {
	if i := strings.IndexByte(src, 0); i >= 0 {
		return ErrorAt(src, i, "the statement contains a NUL byte")
	}
	for i, r := range src {
		if _, size := utf8.DecodeRuneInString(src[i:]); r == utf8.RuneError && size == 1 {
			return ErrorAt(src, i, "the statement is not valid UTF-8")
		}
	}
	return nil
}

// ErrorAt returns an error that starts with the line and column of an offset.
func ErrorAt(src string, offset int, format string, args ...any) error {
	before := src[:offset]
	line := 1 + strings.Count(before, "\n")
	column := 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return fmt.Errorf("%d:%d: "+format, append([]any{line, column}, args...)...)
}

type lexer struct {
	src     string
	dialect Dialect
	pos     int
}

// token returns the token of n bytes at the lexer's position. Its text is what
// is between `before` bytes at its start and `after` bytes at its end.
func (l *lexer) token(kind Kind, n, before, after int) Token {
	end := l.pos + n
	return Token{Kind: kind, Text: l.src[l.pos+before : end-after], Start: l.pos, End: end}
}

func (l *lexer) next() (Token, error) {
	rest := l.src[l.pos:]
	switch c := rest[0]; {
	case l.atLineComment(rest):
		return l.token(Comment, l.lineLength(rest), 0, 0), nil
	case strings.HasPrefix(rest, "/*"):
		return l.blockComment(rest)
	case c == '\'', c == '"' && l.dialect.Has(MySQL) && !l.dialect.Has(ANSIQuotes):
		return l.quoted(String, 0, c, l.dialect.Has(BackslashEscapes))
	case c == '"', c == '`':
		return l.quoted(Name, 0, c, false)
	case c == '[' && l.dialect.Has(SQLite):
		return l.quoted(Name, 0, ']', false)
	case c == '$' && l.dialect.Has(Postgres):
		return l.dollar(rest)
	case c == '?':
		return l.token(Param, 1, 1, 0), nil
	case c >= '0' && c <= '9':
		return l.token(Number, numberLength(rest), 0, 0), nil
	case isWord(c):
		return l.word(rest)
	case c == ':':
		name := rest[1 : 1+paramLength(rest[1:])]
		if isParamName(name) && (l.pos == 0 || !isOperandEnd(l.src[l.pos-1])) {
			return l.token(Param, 1+len(name), 1, 0), nil
		}
	}
	for _, s := range []string{"->>", "<=>", "#>>", "->", "<>", "!=", "<=", ">=", "::", "||", "@>", "<@", "#>", ":="} {
		if strings.HasPrefix(rest, s) {
			return l.token(Symbol, len(s), 0, 0), nil
		}
	}
	return l.token(Symbol, 1, 0, 0), nil
}

// atLineComment reports whether a comment starts that ends with the line.
func (l *lexer) atLineComment(rest string) bool {
	switch {
	case !l.dialect.Has(MySQL):
		return strings.HasPrefix(rest, "--")
	case !strings.HasPrefix(rest, "--"):
		return rest[0] == '#'
	}
	return len(rest) == 2 || rest[2] <= ' ' || rest[2] == 0x7f
}

// lineLength returns the length of the line that a text starts with. In PostgreSQL a carriage return ends one too.
func (l *lexer) lineLength(rest string) int {
	ends := "\n"
	if l.dialect.Has(Postgres) {
		ends = "\r\n"
	}
	if i := strings.IndexAny(rest, ends); i >= 0 {
		return i
	}
	return len(rest)
}

// blockComment reads a comment, with PostgreSQL those inside it too.
func (l *lexer) blockComment(rest string) (Token, error) {
	depth := 0
	for i := 0; i+1 < len(rest); i++ {
		switch rest[i : i+2] {
		case "/*":
			if l.dialect.Has(Postgres) || depth == 0 {
				depth++
			}
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			return l.token(Comment, i+1, 0, 0), nil
		}
	}
	return Token{}, ErrorAt(l.src, l.pos, "this /* is not closed")
}

// quoted reads a string or a quoted name after a prefix of some bytes. A
// doubled quote stands for one.
func (l *lexer) quoted(kind Kind, prefix int, quote byte, escapes bool) (Token, error) {
	rest := l.src[l.pos:]
	for i := prefix + 1; i < len(rest); i++ {
		switch {
		case escapes && rest[i] == '\\':
			i++
		case rest[i] == quote && i+1 < len(rest) && rest[i+1] == quote && quote != ']':
			i++
		case rest[i] == quote:
			t := l.token(kind, i+1, prefix+1, 1)
			if kind == Name {
				t.Text = strings.ReplaceAll(t.Text, string([]byte{quote, quote}), string(quote))
			}
			return t, nil
		}
	}
	return Token{}, ErrorAt(l.src, l.pos+prefix, "this %c is not closed", rest[prefix])
}

// dollar reads $tag$...$tag$ or $1.
func (l *lexer) dollar(rest string) (Token, error) {
	tag := 1
	for tag < len(rest) && rest[tag] != '$' && isWord(rest[tag]) {
		tag++
	}
	switch {
	case tag > 1 && rest[1] >= '0' && rest[1] <= '9':
		return l.token(Param, tag, 0, 0), nil
	case tag == len(rest) || rest[tag] != '$':
		return l.token(Symbol, 1, 0, 0), nil
	}
	delimiter := rest[:tag+1]
	end := strings.Index(rest[len(delimiter):], delimiter)
	if end < 0 {
		return Token{}, ErrorAt(l.src, l.pos, "this %s is not closed", delimiter)
	}
	return l.token(String, end+2*len(delimiter), len(delimiter), len(delimiter)), nil
}

// word reads a keyword or a name, or a string with a letter in front.
func (l *lexer) word(rest string) (Token, error) {
	n := wordLength(rest)
	if n == 1 && strings.HasPrefix(rest[1:], "'") {
		escaped := rest[0]|0x20 == 'e' && l.dialect.Has(Postgres)
		if escaped || strings.IndexByte("bBnNxX", rest[0]) >= 0 {
			return l.quoted(String, 1, '\'', escaped || l.dialect.Has(BackslashEscapes))
		}
	}
	return l.token(Word, n, 0, 0), nil
}

// numberLength returns the length of the digits, the point and the exponent
// that a text starts with.
func numberLength(s string) int {
	n := 0
	for n < len(s) {
		sign := (s[n] == '+' || s[n] == '-') && s[n-1]|0x20 == 'e' && n+1 < len(s) && s[n+1] >= '0' && s[n+1] <= '9'
		if !sign && s[n] != '.' && !isWord(s[n]) {
			break
		}
		n++
	}
	return n
}

func isBlank(c byte) bool { return strings.IndexByte(" \t\r\n\f\v", c) >= 0 }

// isWord reports whether c can be part of a name, a keyword or a number. A $
// within a name belongs to it.
func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf
}

func wordLength(s string) int {
	n := 0
	for n < len(s) && (isWord(s[n]) || n > 0 && s[n] == '$') {
		n++
	}
	return n
}

func isOperandEnd(c byte) bool {
	return isWord(c) || c == ')' || c == ']' || c == '"' || c == '\'' || c == '`'
}

// paramLength returns the length of the parameter's name that a text starts with.
func paramLength(s string) int {
	const claim = "claim."
	n := wordLength(s)
	if strings.HasPrefix(s, claim) && n == len(claim)-1 {
		if m := wordLength(s[len(claim):]); isParamName(s[len(claim) : len(claim)+m]) {
			return len(claim) + m
		}
	}
	return n
}

// isParamName reports whether s is an ASCII letter or _, then letters, digits
// and _, perhaps after "claim.".
func isParamName(s string) bool {
	s = strings.TrimPrefix(s, "claim.")
	for i := range len(s) {
		if !isWord(s[i]) || s[i] >= utf8.RuneSelf || i == 0 && s[i] >= '0' && s[i] <= '9' {
			return false
		}
	}
	return s != ""
}
