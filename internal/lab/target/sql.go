package target

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// statement is the user's SQL statement with named parameters.
type statement struct {
	texts  []string // around the parameters: one more than names
	names  []string // in order of appearance
	values []Value  // one per name
	kind   Kind
}

// parseSQL finds the parameters :name in text. Colons in quotes, comments, ::type
// and := are literal. A parameter that is not in params is an error.
func parseSQL(text string, params map[string]Value) (statement, error) {
	s := statement{kind: statementKind(text)}
	if strings.TrimSpace(text) == "" {
		return s, errors.New("the SQL statement is empty")
	}
	start, i := 0, 0
	for i < len(text) {
		n := skipToken(text[i:])
		if text[i] != ':' || n != 1 {
			i += n
			continue
		}
		name := leadingWord(text[i+1:])
		if name == "" || i > 0 && isWordByte(text[i-1]) {
			i++
			continue
		}
		v, found := params[name]
		if !found {
			return s, fmt.Errorf("the statement has :%s but there is no --param %s=…; add one with random(1,1000), sequence, file:PATH:COLUMN or a constant", name, name)
		}
		s.texts = append(s.texts, text[start:i])
		s.names = append(s.names, name)
		s.values = append(s.values, v)
		i += 1 + len(name)
		start = i
	}
	s.texts = append(s.texts, text[start:])
	for name := range params {
		if !slices.Contains(s.names, name) {
			return s, fmt.Errorf("--param %s: the statement has no :%s", name, name)
		}
	}
	return s, nil
}

// skipToken returns the length of the quoted text, comment, :: or := at the start
// of text, otherwise 1.
func skipToken(text string) int {
	until := func(prefix int, end string) int {
		if n := strings.Index(text[prefix:], end); n >= 0 {
			return prefix + n + len(end)
		}
		return len(text)
	}
	switch {
	case text[0] == '\'' || text[0] == '"' || text[0] == '`':
		return until(1, text[:1])
	case strings.HasPrefix(text, "--"):
		return until(2, "\n")
	case strings.HasPrefix(text, "/*"):
		return until(2, "*/")
	case strings.HasPrefix(text, "::"), strings.HasPrefix(text, ":="):
		return 2
	}
	return 1
}

func isWordByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// leadingWord returns the identifier at the start of text, or "".
func leadingWord(text string) string {
	n := 0
	for n < len(text) && isWordByte(text[n]) {
		n++
	}
	if n == 0 || text[0] >= '0' && text[0] <= '9' {
		return ""
	}
	return text[:n]
}

// render returns the statement with placeholder(i), from 1, for each parameter.
func (s *statement) render(placeholder func(i int) string) string {
	var b strings.Builder
	for i, text := range s.texts {
		b.WriteString(text)
		if i < len(s.names) {
			b.WriteString(placeholder(i + 1))
		}
	}
	return b.String()
}

// statementKind classifies a statement by its first word.
func statementKind(text string) Kind {
	text = strings.TrimLeft(text, " \t\r\n(")
	switch strings.ToUpper(leadingWord(text)) {
	case "SELECT", "VALUES", "TABLE", "SHOW", "WITH", "EXPLAIN", "DESCRIBE":
		return Read
	case "INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE":
		return Write
	}
	return Other
}
