package freight

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"spillway/internal/database"
	"spillway/internal/progress"
)

// transaction is an open transaction, or a session on a database whose tables are not
// created in one.
type transaction interface {
	// exec runs one statement.
	exec(ctx context.Context, sql string) error
	// query returns the rows of a small result as text, NULL as "".
	query(ctx context.Context, sql string) ([][]string, error)
	// load inserts the rows of t into an empty table.
	load(ctx context.Context, t table, meter *progress.Meter) error
}

// schemaVersion is the version of each app's tables, which spillway_schema has.
const schemaVersion = 1

// schema is a parsed .sql file: statements.
type schema struct {
	registry []string // create spillway_schema if it is missing
	tables   []string
	indexes  []string // run when the tables have their rows
}

// parseSchema reads an embedded file. Its parts start with a line "--- registry", "--- tables"
// or "--- indexes".
func parseSchema(text string) (schema, error) {
	var s schema
	parts := map[string]*[]string{"registry": &s.registry, "tables": &s.tables, "indexes": &s.indexes}
	part := new([]string) // text before the first part is ignored
	var statement strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if title, ok := strings.CutPrefix(line, "--- "); ok {
			if part = parts[title]; part == nil {
				return schema{}, fmt.Errorf("unknown part %q", title)
			}
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

// dialect holds the differences between databases.
type dialect struct {
	schema schema // the freight app's, with the registry
	games  schema
	// relations selects the existing tables of a list with their columns, joined by
	// commas.
	relations string
	// indexes selects the names of a table's indexes.
	indexes string
	// finish returns the statements to run after the indexes, in the same transaction. The
	// ids of counted tables continue after the rows loaded.
	finish func(table string, counted bool) []string
	// dropIndex returns the statement that drops an index.
	dropIndex func(table, index string) string
	// elsewhere says how to avoid the tables of others.
	elsewhere string
	// within runs work in a transaction that excludes other loads. It commits if work
	// returns nil and ctx has not ended, and rolls back otherwise.
	within func(ctx context.Context, url database.URL, work func(transaction) error) error
	// vacuum runs after the commit.
	vacuum func(ctx context.Context, url database.URL, tables []string, meter *progress.Meter) error
}

func dialectOf(driver database.Driver) dialect {
	d, text, games := mysqlDialect(), mysqlSchema, mysqlGames
	switch driver {
	case database.Postgres:
		d, text, games = postgresDialect(), postgresSchema, postgresGames
	case database.SQLite:
		d, text, games = sqliteDialect(), sqliteSchema, sqliteGames
	}
	var errs [2]error
	d.schema, errs[0] = parseSchema(text)
	d.games, errs[1] = parseSchema(games)
	if err := errors.Join(errs[:]...); err != nil {
		panic("bug: a schema of freight: " + err.Error())
	}
	return d
}

// schemaOf returns the tables and indexes of an app.
func (d dialect) schemaOf(a app) schema {
	if a.name == gamesApp().name {
		return d.games
	}
	return d.schema
}

// execAll runs statements in order. An error names the statement.
func execAll(ctx context.Context, tx transaction, statements []string) error {
	for _, sql := range statements {
		if err := execOne(ctx, tx, sql); err != nil {
			return err
		}
	}
	return nil
}

func execOne(ctx context.Context, tx transaction, sql string) error {
	if err := tx.exec(ctx, sql); err != nil {
		return fmt.Errorf("run %q: %w", firstLine(sql), err)
	}
	return nil
}

// execMetered runs statements in order and reports progress.
func execMetered(ctx context.Context, tx transaction, label string, statements []string, meter *progress.Meter) (err error) {
	task := meter.Start(label, "", int64(len(statements)))
	defer func() { task.End(err) }()
	for _, sql := range statements {
		if err := execOne(ctx, tx, sql); err != nil {
			return err
		}
		task.Add(1)
	}
	return nil
}

func firstLine(sql string) string {
	line, _, more := strings.Cut(sql, "\n")
	if more {
		line += " …"
	}
	return line
}
