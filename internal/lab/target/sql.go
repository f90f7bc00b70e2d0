package target

import (
	"fmt"
	"slices"
	"strings"
)

// statement is one SQL statement with named parameters, as the user gave it.
type statement struct {
	texts  []string // around the parameters, one more than names
	names  []string // in order of appearance
	values []Value  // one for each of names
	kind   Kind
}

// parseSQL finds the parameters in text: :name for each name in params. A colon
// inside quotes and comments, in ::type and in front of another word is itself,
// but a word that looks like a parameter and is none is an error.
func parseSQL(text string, params map[string]Value) (statement, error) {
	s := statement{kind: statementKind(text)}
	if strings.TrimSpace(text) == "" {
		return s, fmt.Errorf("the SQL statement is empty")
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
			return s, fmt.Errorf("the statement has :%s but there is no --param %s=…; write random(1,1000), sequence, file:PATH:COLUMN or a constant", name, name)
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

// skipToken returns the length of the quoted text, comment or double colon that
// text begins with, else 1.
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

// leadingWord returns the name that text begins with; it does not begin with a digit.
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

// render returns the statement with placeholder(i), i from 1, for each parameter.
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

// statementKind goes by the first word.
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
