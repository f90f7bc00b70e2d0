package freight

import (
	"fmt"
	"strconv"
	"strings"
)

// schema is a parsed .sql file.
type schema struct {
	registry   []string // statements that create spillway_schema if it is missing
	migrations []migration
}

// migration is one numbered change. Its number is its position, from 1.
type migration struct {
	tables  []string
	indexes []string
}

// latest returns the version of the newest migration.
func (s schema) latest() int { return len(s.migrations) }

// tables returns the "tables" parts of all migrations.
func (s schema) tables() []string {
	var statements []string
	for _, m := range s.migrations {
		statements = append(statements, m.tables...)
	}
	return statements
}

// indexes returns the "indexes" parts of all migrations.
func (s schema) indexes() []string {
	var statements []string
	for _, m := range s.migrations {
		statements = append(statements, m.indexes...)
	}
	return statements
}

// upgrade returns the statements that bring a database from one version to another.
func (s schema) upgrade(from, to int) []string {
	var statements []string
	for _, m := range s.migrations[from:to] {
		statements = append(statements, m.tables...)
		statements = append(statements, m.indexes...)
	}
	return statements
}

// parseSchema reads an embedded file. Its parts start with a line "--- registry", "---
// migration N: tables" or "--- migration N: indexes".
func parseSchema(text string) (schema, error) {
	var s schema
	part := new([]string) // text before the first part is ignored
	var statement strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if title, ok := strings.CutPrefix(line, "--- "); ok {
			next, err := s.part(title)
			if err != nil {
				return schema{}, err
			}
			part = next
			continue
		}
		if strings.HasPrefix(line, "--") {
			continue
		}
		statement.WriteString(line + "\n")
		if strings.HasSuffix(line, ";") {
			*part = append(*part, strings.TrimSpace(statement.String()))
			statement.Reset()
		}
	}
	if rest := strings.TrimSpace(statement.String()); rest != "" {
		return schema{}, fmt.Errorf("statement without a semicolon: %q", rest)
	}
	return s, nil
}

// part returns the list to which the statements below a title belong.
func (s *schema) part(title string) (*[]string, error) {
	if title == "registry" {
		return &s.registry, nil
	}
	rest, _ := strings.CutPrefix(title, "migration ")
	number, kind, _ := strings.Cut(rest, ": ")
	version, err := strconv.Atoi(number)
	switch {
	case err != nil:
		return nil, fmt.Errorf("unknown part %q", title)
	case kind == "tables" && version == len(s.migrations)+1:
		s.migrations = append(s.migrations, migration{})
		return &s.migrations[version-1].tables, nil
	case kind == "indexes" && version == len(s.migrations) && version > 0:
		return &s.migrations[version-1].indexes, nil
	}
	return nil, fmt.Errorf("migration out of order: %q", title)
}
