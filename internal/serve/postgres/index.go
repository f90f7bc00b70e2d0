package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/feed"
)

// keySource is the table column that a key column shows. Its names are quoted
// where SQL needs it. It is zero when the key column is an expression.
type keySource struct {
	output   string // the key column's name in the feed
	table    string // with its schema where the search path needs it
	schema   string // bare, as plans name it
	relation string // bare
	column   string
	notNull  bool
	kind     string // pg_class.relkind
	oid      uint32
	number   uint16 // of the column
}

// isTable reports whether the source is a table, whose constraints are known.
func (s keySource) isTable() bool { return s.kind == "r" || s.kind == "p" }

// readKeySources looks up where the key's columns come from.
func readKeySources(ctx context.Context, conn *pgconn.PgConn, c *columns) ([]keySource, error) {
	var sources []keySource
	for _, column := range c.key {
		field := c.fields[column.index]
		source := keySource{output: column.name, oid: field.TableOID, number: field.TableAttributeNumber}
		results, err := conn.Exec(ctx, fmt.Sprintf(`
			SELECT c.oid::regclass::text, n.nspname, c.relname, quote_ident(a.attname), a.attnotnull::text, c.relkind::text
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE a.attrelid = %d AND a.attnum = %d`, source.oid, source.number)).ReadAll()
		if err != nil {
			return nil, fmt.Errorf("look up the key column %s: %w", column.name, err)
		}
		if rows := results[0].Rows; len(rows) == 1 {
			source.table, source.schema, source.relation = string(rows[0][0]), string(rows[0][1]), string(rows[0][2])
			source.column, source.notNull, source.kind = string(rows[0][3]), string(rows[0][4]) == "true", string(rows[0][5])
		}
		sources = append(sources, source)
	}
	return sources, nil
}

func checkNotNull(key []keySource) error {
	for _, source := range key {
		if source.isTable() && !source.notNull {
			return fmt.Errorf("the key column %s may be NULL: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL",
				source.output, source.table, source.column)
		}
	}
	return nil
}

// warnUnlessUnique logs a warning when the key's columns are of one table and no
// unique index covers them. Two rows of one key would be shown as one.
func (f *Feed) warnUnlessUnique(ctx context.Context, conn *pgconn.PgConn, key []keySource) error {
	var numbers []string
	for _, source := range key {
		if !source.isTable() || source.oid != key[0].oid {
			return nil
		}
		numbers = append(numbers, fmt.Sprint(source.number))
	}
	results, err := conn.Exec(ctx, fmt.Sprintf(`
		SELECT 1 FROM pg_index
		WHERE indrelid = %d AND indisunique AND indisvalid AND indpred IS NULL
		AND (indkey::int2[])[0:indnkeyatts - 1] <@ ARRAY[%s]::int2[]`, key[0].oid, strings.Join(numbers, ", "))).ReadAll()
	if err != nil {
		return fmt.Errorf("look up unique indexes: %w", err)
	}
	if len(results[0].Rows) == 0 {
		f.db.log.Warn("no unique index covers the feed's key: rows with equal keys would be lost between pages",
			"feed", f.def.Name, "table", key[0].table)
	}
	return nil
}

// adviser turns what was found in a plan into one error that says what to do.
type adviser struct {
	key     []feed.KeyColumn
	sources []keySource                                        // of the key's columns
	indexed func(table string, columns []string) (bool, error) // whether an index starts with these columns
}

// hasIndex reports whether a table has an index that starts with columns.
func hasIndex(ctx context.Context, conn *pgconn.PgConn, table string, columns []string) (bool, error) {
	var where strings.Builder
	for i, column := range columns {
		fmt.Fprintf(&where, " AND pg_get_indexdef(indexrelid, %d, true) = %s", i+1, quoteLiteral(column))
	}
	results, err := conn.Exec(ctx, fmt.Sprintf("SELECT 1 FROM pg_index WHERE indrelid = to_regclass(%s) AND indisvalid AND indpred IS NULL%s LIMIT 1",
		quoteLiteral(table), where.String())).ReadAll()
	if err != nil {
		return false, fmt.Errorf("look up the indexes of %s: %w", table, err)
	}
	return len(results[0].Rows) > 0, nil
}

// ordersFeed reports whether a scan is of the table that all key columns are of.
func (a adviser) ordersFeed(scan planNode) bool {
	for _, source := range a.sources {
		if source.relation != scan.Relation || source.schema != scan.Schema {
			return false
		}
	}
	return true
}

// verdict returns the error for a plan's findings, nil for none. A join without
// an index comes first: while it lacks, no index in the feed's order helps.
func (a adviser) verdict(findings []finding) error {
	if len(findings) == 0 {
		return nil
	}
	for _, f := range findings {
		if f.sorted && !a.oneTable() {
			return fmt.Errorf("%s: the key's columns are of several tables or computed, so no index can give the feed's order; order it by columns of one table", f.problem())
		}
		column, ok := f.joinColumn()
		if !ok || a.ordersFeed(f.scan) {
			continue
		}
		indexed, err := a.indexed(f.scan.table(), []string{column})
		if err != nil {
			return err
		}
		if !indexed {
			return fmt.Errorf("%s; add an index for the join: CREATE INDEX CONCURRENTLY ON %s (%s)", f.problem(), f.scan.table(), column)
		}
	}
	for _, f := range findings {
		if a.ordersFeed(f.scan) {
			return a.adviseOrder(f)
		}
	}
	return fmt.Errorf("%s; add an index on the columns that join or filter it", findings[0].problem())
}

// oneTable reports whether all key columns are columns of one table.
func (a adviser) oneTable() bool {
	return !slices.ContainsFunc(a.sources, func(s keySource) bool { return s.table == "" || s.table != a.sources[0].table })
}

// adviseOrder is the error for a finding on the key's own table.
func (a adviser) adviseOrder(f finding) error {
	columns, all := f.equalities(a.sources)
	filtered := len(columns)
	var create []string
	mixed := false // directions: then an index on the same columns may not do
	for i, source := range a.sources {
		columns = append(columns, source.column)
		direction := " DESC"
		if a.key[i].Ascending {
			direction = ""
		}
		create = append(create, source.column+direction)
		mixed = mixed || a.key[i].Ascending != a.key[0].Ascending
	}
	table := a.sources[0].table
	indexed, err := a.indexed(table, columns)
	if err != nil {
		return err
	}
	if indexed && all && !mixed {
		return fmt.Errorf("%s, although an index on (%s) is there: conditions on other tables drop most rows, or the statement groups them; filter by a column of %s",
			f.problem(), strings.Join(columns, ", "), table)
	}
	command := "CREATE INDEX CONCURRENTLY ON"
	if a.sources[0].kind == "p" {
		command = "CREATE INDEX ON" // a partitioned table takes no CONCURRENTLY
	}
	advice := fmt.Sprintf("%s; add an index in the feed's order: %s %s (%s)",
		f.problem(), command, table, strings.Join(append(columns[:filtered:filtered], create...), ", "))
	if !all {
		advice += ", with the filtered columns first"
	}
	return errors.New(advice)
}

// problem says what a finding is.
func (f finding) problem() string {
	what := "read"
	if f.sorted {
		what = "sort"
	}
	return fmt.Sprintf("the statement would %s about %.0f rows of %s to show %.0f", what, f.rows, f.scan.Relation, f.window)
}

// joinColumn returns the column of the scanned table that it is hashed by.
func (f finding) joinColumn() (string, bool) {
	for _, part := range conjuncts(f.joinCond) {
		left, right, _ := strings.Cut(part, " = ")
		for _, side := range []string{left, right} {
			if column, ok := f.columnOf(side); ok {
				return column, true
			}
		}
	}
	return "", false
}

// plainName matches names that need no quotes, unless they are keywords.
var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// constant matches what an equality compares a column with.
var constant = regexp.MustCompile(`^\(*(\$\d+|'([^']|'')*'|-?[0-9.]+|true|false)\)*(::[a-z ]+(\(\d+\))?)?\)*$`)

// equalities returns the columns of the scanned table that the statement
// compares with constants, and whether these are all of its conditions but those
// on the key.
func (f finding) equalities(key []keySource) (list []string, all bool) {
	all = true
	conditions := slices.Concat(conjuncts(f.scan.IndexCond), conjuncts(f.scan.Recheck), conjuncts(f.scan.Filter))
	for _, part := range conditions {
		left, right, _ := strings.Cut(part, " = ")
		column, ok := f.columnOf(left)
		switch {
		case ok && constant.MatchString(right):
			if !slices.Contains(list, column) {
				list = append(list, column)
			}
		case !f.mentions(part, key):
			all = false
		}
	}
	return list, all
}

// columnOf returns the column of the scanned table that an expression is, but for a cast.
func (f finding) columnOf(expression string) (string, bool) {
	if inner, cast, ok := strings.Cut(expression, ")::"); ok && !strings.ContainsAny(cast, " (") {
		expression = strings.TrimPrefix(inner, "(")
	}
	for _, alias := range []string{f.scan.Alias, quoteIdentifier(f.scan.Alias)} {
		column, ok := strings.CutPrefix(expression, alias+".")
		if ok && !strings.ContainsAny(column, " .()") {
			return column, true
		}
	}
	return "", false
}

// mentions reports whether a condition is about a key column.
func (f finding) mentions(condition string, key []keySource) bool {
	return slices.ContainsFunc(key, func(source keySource) bool {
		return strings.Contains(condition, f.scan.Alias+"."+source.column)
	})
}

// conjuncts splits "((a = 1) AND (b < 2))" into "a = 1" and "b < 2".
func conjuncts(condition string) []string {
	condition = trimParentheses(condition)
	if condition == "" {
		return nil
	}
	var parts []string
	depth, start, quoted := 0, 0, false
	for i := 0; i < len(condition); i++ {
		switch c := condition[i]; {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth == 0 && strings.HasPrefix(condition[i:], " AND "):
			parts = append(parts, trimParentheses(condition[start:i]))
			start = i + len(" AND ")
			i = start - 1
		}
	}
	return append(parts, trimParentheses(condition[start:]))
}

// trimParentheses removes one pair that encloses the whole text.
func trimParentheses(s string) string {
	if !strings.HasPrefix(s, "(") || !strings.HasSuffix(s, ")") {
		return s
	}
	depth, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\'':
			quoted = !quoted
		case quoted:
		case s[i] == '(':
			depth++
		case s[i] == ')':
			depth--
		}
		if depth == 0 && i < len(s)-1 {
			return s
		}
	}
	return s[1 : len(s)-1]
}
