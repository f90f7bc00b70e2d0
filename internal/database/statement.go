package database

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Statement is one SELECT with named parameters, taken apart: text and
// parameters in turn. It is immutable and may be used concurrently.
type Statement struct {
	texts  []string // one more than params: the text before, between and behind them
	params []string // in order of appearance, repeated as often as they occur
}

// ParseStatement reads one statement that starts with SELECT, WITH or VALUES and
// whose parameters are written :name. One semicolon at the end is dropped, and
// so are comments that end with the line, so that the text can be wrapped in
// parentheses. A colon is no parameter inside quotes and comments, in ::type, in :=, and
// directly behind an operand, as in a[1:2]. Quotes are read as the SQL standard
// has them: a backslash escapes in E'...' only.
//
// Errors start with line and column, both from 1, and say what to write.
func ParseStatement(sql string) (Statement, error) { return parseWith(lexer{src: sql}) }

// ParseMySQLStatement is ParseStatement for MySQL and MariaDB. There -- starts a
// comment only in front of a blank, a control character or the end (5--1 is 6), #
// starts one too, comments within comments do not count, and $ and E before a
// quote are nothing special. A backslash in a string is a character, as
// MySQLConnector's sessions have it.
func ParseMySQLStatement(sql string) (Statement, error) {
	return parseWith(lexer{src: sql, mysql: true})
}

// ParseStatementFor reads a statement as the driver's database does.
func ParseStatementFor(driver Driver, sql string) (Statement, error) {
	if driver == MySQL {
		return ParseMySQLStatement(sql)
	}
	return ParseStatement(sql)
}

func parseWith(l lexer) (Statement, error) {
	if err := l.run(); err != nil {
		return Statement{}, err
	}
	return Statement{texts: l.texts, params: l.params}, nil
}

// Names returns the distinct parameters in the order of their first use.
func (s Statement) Names() []string {
	var names []string
	for _, p := range s.params {
		if !slices.Contains(names, p) {
			names = append(names, p)
		}
	}
	return names
}

// Render returns the statement with each parameter replaced by what placeholder
// returns for its name; it is called once for each occurrence, in order.
func (s Statement) Render(placeholder func(name string) string) string {
	var b strings.Builder
	for i, p := range s.params {
		b.WriteString(s.texts[i])
		b.WriteString(placeholder(p))
	}
	if len(s.texts) > 0 {
		b.WriteString(s.texts[len(s.texts)-1])
	}
	return b.String()
}

// lexer walks the source once. What it has walked over but not yet moved to
// texts is in text.
type lexer struct {
	src    string
	mysql  bool // read as MySQL does
	pos    int
	text   strings.Builder
	texts  []string
	params []string
	opened []int // offsets of parentheses not closed yet
	first  bool  // the first word has been seen
	end    int   // offset of the semicolon behind the statement, +1; 0: none yet
}

func (l *lexer) run() error {
	if err := l.checkBytes(); err != nil {
		return err
	}
	for l.pos < len(l.src) {
		if err := l.step(); err != nil {
			return err
		}
	}
	if !l.first {
		return l.errorAt(0, "the statement is empty; it starts with SELECT, WITH or VALUES")
	}
	if n := len(l.opened); n > 0 {
		return l.errorAt(l.opened[n-1], "this ( is not closed")
	}
	l.texts = append(l.texts, strings.TrimRight(l.text.String(), " \t\r\n\f\v"))
	l.texts[0] = strings.TrimLeft(l.texts[0], " \t\r\n\f\v")
	return nil
}

func (l *lexer) checkBytes() error {
	if i := strings.IndexByte(l.src, 0); i >= 0 {
		return l.errorAt(i, "the statement holds a NUL byte")
	}
	for i, r := range l.src {
		if _, size := utf8.DecodeRuneInString(l.src[i:]); r == utf8.RuneError && size == 1 {
			return l.errorAt(i, "the statement is not valid UTF-8")
		}
	}
	return nil
}

// step walks over one token.
func (l *lexer) step() error {
	c := l.src[l.pos]
	switch {
	case isBlank(c):
		l.take(1)
		return nil
	case l.atLineComment():
		l.pos += lengthTo(l.src[l.pos:], '\n') // dropped: it would swallow what is put behind the statement
		return nil
	case l.at("/*"):
		return l.blockComment()
	}
	if err := l.checkStart(c); err != nil {
		return err
	}
	switch {
	case c == '\'':
		return l.quoted(c, false)
	case c == '"', c == '`':
		return l.quoted(c, false)
	case c == '$' && !l.mysql:
		return l.dollar()
	case c == ':':
		l.colon()
	case isWord(c):
		return l.word()
	case c == ';':
		l.end = l.pos + 1
		l.pos++
	case c == '(':
		l.opened = append(l.opened, l.pos)
		l.take(1)
	case c == ')':
		if len(l.opened) == 0 {
			return l.errorAt(l.pos, "this ) closes nothing")
		}
		l.opened = l.opened[:len(l.opened)-1]
		l.take(1)
	default:
		l.take(1)
	}
	return nil
}

// atLineComment reports whether a comment begins that ends with the line.
func (l *lexer) atLineComment() bool {
	rest := l.src[l.pos:]
	switch {
	case !l.mysql:
		return strings.HasPrefix(rest, "--")
	case !strings.HasPrefix(rest, "--"):
		return rest[0] == '#'
	}
	return len(rest) == 2 || rest[2] <= ' ' || rest[2] == 0x7f
}

// checkStart refuses a second statement, and a first one that does not read.
func (l *lexer) checkStart(c byte) error {
	if l.end > 0 {
		return l.errorAt(l.end-1, "several statements; write one, without this ;")
	}
	if l.first || c == '(' {
		return nil
	}
	word := l.src[l.pos : l.pos+wordLength(l.src[l.pos:])]
	switch strings.ToUpper(word) {
	case "SELECT", "WITH", "VALUES":
		l.first = true
		return nil
	}
	return l.errorAt(l.pos, "the statement must start with SELECT, WITH or VALUES")
}

// word walks over a name, a keyword or a number; E'...' is a string with escapes.
func (l *lexer) word() error {
	n := wordLength(l.src[l.pos:])
	escapes := n == 1 && !l.mysql && (l.src[l.pos] == 'E' || l.src[l.pos] == 'e')
	l.take(n)
	if escapes && l.at("'") {
		return l.quoted('\'', true)
	}
	return nil
}

// colon takes a parameter, or leaves a cast, an assignment or a slice alone.
func (l *lexer) colon() {
	if l.at("::") || l.at(":=") {
		l.take(2)
		return
	}
	name := l.src[l.pos+1:]
	name = name[:wordLength(name)]
	if !isName(name) || l.pos > 0 && isOperandEnd(l.src[l.pos-1]) {
		l.take(1)
		return
	}
	l.texts = append(l.texts, l.text.String())
	l.text.Reset()
	l.params = append(l.params, name)
	l.pos += 1 + len(name)
}

// quoted walks over a string or a quoted name; a doubled quote stands for one.
func (l *lexer) quoted(quote byte, escapes bool) error {
	for i := l.pos + 1; i < len(l.src); i++ {
		switch {
		case escapes && l.src[i] == '\\':
			i++
		case l.src[i] == quote && i+1 < len(l.src) && l.src[i+1] == quote:
			i++
		case l.src[i] == quote:
			l.take(i + 1 - l.pos)
			return nil
		}
	}
	return l.errorAt(l.pos, "this %c is not closed", quote)
}

// dollar walks over $tag$...$tag$.
func (l *lexer) dollar() error {
	rest := l.src[l.pos+1:]
	tag := 0
	for tag < len(rest) && rest[tag] != '$' && isWord(rest[tag]) {
		tag++
	}
	if tag > 0 && rest[0] >= '0' && rest[0] <= '9' {
		return l.errorAt(l.pos, "parameters by number ($%s) are not taken; write :name", rest[:tag])
	}
	if tag == len(rest) || rest[tag] != '$' {
		l.take(1)
		return nil
	}
	delimiter := l.src[l.pos : l.pos+tag+2]
	end := strings.Index(l.src[l.pos+len(delimiter):], delimiter)
	if end < 0 {
		return l.errorAt(l.pos, "this %s is not closed", delimiter)
	}
	l.take(end + 2*len(delimiter))
	return nil
}

// blockComment walks over a comment, and with PostgreSQL those inside it.
func (l *lexer) blockComment() error {
	depth := 0
	for i := l.pos; i+1 < len(l.src); i++ {
		switch l.src[i : i+2] {
		case "/*":
			if !l.mysql || depth == 0 {
				depth++
			}
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			l.take(i + 1 - l.pos)
			return nil
		}
	}
	return l.errorAt(l.pos, "this /* is not closed")
}

// take moves n bytes of the source to the text; behind the last semicolon
// there are only blanks and comments, which are dropped.
func (l *lexer) take(n int) {
	if l.end == 0 {
		l.text.WriteString(l.src[l.pos : l.pos+n])
	}
	l.pos += n
}

func (l *lexer) at(prefix string) bool { return strings.HasPrefix(l.src[l.pos:], prefix) }

func (l *lexer) errorAt(offset int, format string, args ...any) error {
	before := l.src[:offset]
	line := 1 + strings.Count(before, "\n")
	column := 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return fmt.Errorf("%d:%d: "+format, append([]any{line, column}, args...)...)
}

func isBlank(c byte) bool { return strings.IndexByte(" \t\r\n\f\v", c) >= 0 }

// isWord says whether c is part of a name, a keyword or a number. A $ within a
// name belongs to it.
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

// isName says whether s names a parameter: an ASCII letter or _, then letters,
// digits and _.
func isName(s string) bool {
	for i := range len(s) {
		if !isWord(s[i]) || s[i] >= utf8.RuneSelf || i == 0 && s[i] >= '0' && s[i] <= '9' {
			return false
		}
	}
	return s != ""
}

func lengthTo(s string, c byte) int {
	if i := strings.IndexByte(s, c); i >= 0 {
		return i
	}
	return len(s)
}
