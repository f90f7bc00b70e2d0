package freight

import (
	"context"
	"embed"
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

// parseSchema returns the statements of a .sql file by its parts, which start with a line "--- TITLE".
func parseSchema(text string) (map[string][]string, error) {
	parts, title, statement := map[string][]string{}, "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if next, ok := strings.CutPrefix(line, "--- "); ok {
			title = next
			continue
		}
		if strings.HasPrefix(line, "--") {
			continue
		}
		statement += line + "\n"
		if strings.HasSuffix(line, ";") {
			parts[title], statement = append(parts[title], strings.TrimSpace(statement)), ""
		}
	}
	if rest := strings.TrimSpace(statement); rest != "" {
		return nil, fmt.Errorf("statement without a semicolon: %q", rest)
	}
	return parts, nil
}

// dialect holds the differences between databases.
type dialect struct {
	// schema has "registry", which creates spillway_schema if it is missing, and for each app "APP tables" and "APP indexes".
	schema map[string][]string
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

//go:embed *.sql
var schemas embed.FS

func dialectOf(driver database.Driver) dialect {
	d := map[database.Driver]func() dialect{
		database.MySQL: mysqlDialect, database.Postgres: postgresDialect, database.SQLite: sqliteDialect,
	}[driver]()
	text, err := schemas.ReadFile(string(driver) + ".sql")
	if err == nil {
		d.schema, err = parseSchema(string(text))
	}
	if err != nil {
		panic("bug: a schema of freight: " + err.Error())
	}
	return d
}

// execAll runs statements in order. An error names the statement.
func execAll(ctx context.Context, tx transaction, statements ...string) error {
	for _, sql := range statements {
		if err := tx.exec(ctx, sql); err != nil {
			line, _, more := strings.Cut(sql, "\n")
			if more {
				line += " …"
			}
			return fmt.Errorf("run %q: %w", line, err)
		}
	}
	return nil
}

// execMetered runs statements in order and reports progress.
func execMetered(ctx context.Context, tx transaction, label string, statements []string, meter *progress.Meter) (err error) {
	task := meter.Start(label, "", int64(len(statements)))
	defer func() { task.End(err) }()
	for _, sql := range statements {
		if err := execAll(ctx, tx, sql); err != nil {
			return err
		}
		task.Add(1)
	}
	return nil
}
