package target

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"spillway/internal/plans"
)

// statement is the user's SQL statement with named parameters.
type statement struct {
	texts  []string // around the parameters: one more than names
	names  []string // in order of appearance
	values []Value  // one per name
	kind   Kind
}

// parseSQL finds the parameters :name in text. A parameter that is not in params
// is an error.
func parseSQL(text string, dialect plans.Dialect, params map[string]Value) (statement, error) {
	if strings.TrimSpace(text) == "" {
		return statement{}, errors.New("the SQL statement is empty")
	}
	tokens, err := plans.Lex(text, dialect)
	if err != nil {
		return statement{}, fmt.Errorf("--sql: %w", err)
	}
	s := statement{kind: statementKind(tokens)}
	start := 0
	for _, t := range tokens {
		if t.Kind != plans.Param || text[t.Start] != ':' {
			continue
		}
		v, found := params[t.Text]
		if !found {
			return s, fmt.Errorf("the statement has :%s but there is no --param %s=…; add one with random(1,1000), sequence, file:PATH:COLUMN "+
				"or a constant", t.Text, t.Text)
		}
		s.texts = append(s.texts, text[start:t.Start])
		s.names = append(s.names, t.Text)
		s.values = append(s.values, v)
		start = t.End
	}
	s.texts = append(s.texts, text[start:])
	for name := range params {
		if !slices.Contains(s.names, name) {
			return s, fmt.Errorf("--param %s: the statement has no :%s", name, name)
		}
	}
	return s, nil
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
func statementKind(tokens []plans.Token) Kind {
	first := slices.IndexFunc(tokens, func(t plans.Token) bool { return t.Kind == plans.Word })
	if first < 0 {
		return Other
	}
	switch strings.ToUpper(tokens[first].Text) {
	case "SELECT", "VALUES", "TABLE", "SHOW", "WITH", "EXPLAIN", "DESCRIBE":
		return Read
	case "INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE":
		return Write
	}
	return Other
}
