package chaostest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

const (
	// postgresText is the values of a row as texts, whatever the types of its columns.
	postgresText = "id::text, code::text, n::text, label::text, amount::text, r::text, at::timestamp::text, j::text"
	// postgresSession is the settings of the operator's sessions.
	postgresSession = "SET TIME ZONE 'UTC'; SET lock_timeout = '20s'; SET statement_timeout = '50s'"
)

// postgresExecutor runs statements in a database.
func postgresExecutor(url func() string) executor {
	return func(statements ...string) ([][]string, error) {
		ctx, cancel := patience()
		defer cancel()
		conn, err := pgx.Connect(ctx, url())
		if err != nil {
			return nil, err
		}
		defer conn.Close(context.Background())
		var rows [][]string
		for _, statement := range append([]string{postgresSession}, statements...) {
			results, err := conn.PgConn().Exec(ctx, statement).ReadAll()
			if err != nil {
				return nil, fmt.Errorf("%.200s: %w", statement, err)
			}
			rows = nil
			for _, row := range results[len(results)-1].Rows {
				var texts []string
				for _, value := range row {
					texts = append(texts, string(value))
				}
				rows = append(rows, texts)
			}
		}
		return rows, nil
	}
}

// openPostgres starts a server with a database behind an address that can be cut.
func openPostgres(t *testing.T) *database {
	server := apptest.Postgres(t, "synchronous_commit=on")
	current := apptest.DatabaseName(server.CreateDatabase(t))
	address := apptest.NewForward(t, server.Addr())
	d := &database{
		url: strings.Replace(server.URL(current), server.Addr(), address.Addr(), 1), server: server.Server, address: address, current: current,
		types: []string{"bigint NOT NULL", "text NOT NULL", "bigint", "varchar(60)", "numeric(14,4)", "double precision", "timestamptz", "jsonb"},
	}
	execute := postgresExecutor(func() string { return server.URL(current) })
	admin := postgresExecutor(func() string { return server.URL("postgres") })
	skip := "CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF %s THEN %s; END IF; RETURN NEW; END$$"
	_, err := execute("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
		fmt.Sprintf(skip, "skip_some", "NEW.id % 5 = 0", "RETURN NULL"), fmt.Sprintf(skip, "skip_all", "true", "RETURN NULL"),
		fmt.Sprintf(skip, "raise_some", "NEW.id % 5 = 0", "RAISE EXCEPTION 'not this one'"))
	if err != nil {
		t.Fatal(err)
	}
	d.create = func(table string, key bool) error {
		all := []string{
			"CREATE TABLE " + table + " (" + d.definitions("") + ")",
			"CREATE TABLE " + table + "_archive (" + strings.Join(columns, " text, ") + " text)",
		}
		if key {
			all = append(all, "CREATE UNIQUE INDEX "+table+"_code ON "+table+" (code)")
		}
		_, err := execute(all...)
		return err
	}
	d.rows = func(name, table string, archive bool) ([][]string, error) {
		execute := postgresExecutor(func() string { return server.URL(name) })
		if archive {
			return execute("SELECT * FROM " + table + "_archive")
		}
		found, err := execute("SELECT to_regclass('" + table + "') IS NOT NULL")
		if err == nil && found[0][0] != "t" {
			table += "_away"
		}
		return execute("SELECT " + postgresText + " FROM " + table)
	}
	d.normalize = func(table string, key bool) error { return normalizePostgres(d, execute, table, key) }
	d.endSessions = func() error {
		_, err := admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + current + "'")
		return err
	}
	alone := func(statements ...string) error {
		address.To("")
		defer address.To(server.Addr())
		_, err := admin(append([]string{
			"SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = '" + current + "'",
		}, statements...)...)
		return err
	}
	strategy := copyStrategy(t, admin)
	d.copy = func(n int) error {
		return alone(fmt.Sprintf("CREATE DATABASE copy_%d TEMPLATE %s"+strategy, n, current))
	}
	d.restore = func(n int, _ bool) error {
		replaced := fmt.Sprintf("replaced_%d", len(d.replaced)+1)
		err := alone("ALTER DATABASE "+current+" RENAME TO "+replaced, fmt.Sprintf("CREATE DATABASE %s TEMPLATE copy_%d"+strategy, current, n))
		if err == nil {
			d.replaced = append(d.replaced, replaced)
		}
		return err
	}
	d.changes = postgresChanges(execute)
	return d
}

// archivePostgres are the statements, in a transaction, that move all rows to the archive.
func archivePostgres(table string) []string {
	return []string{"INSERT INTO " + table + "_archive SELECT " + postgresText + " FROM " + table, "DELETE FROM " + table}
}

// copyStrategy is how to copy a database: the way that PostgreSQL takes by itself loses indexes of unlogged tables in a crash.
func copyStrategy(t *testing.T, execute executor) string {
	found, err := execute("SELECT current_setting('server_version_num')::int >= 150000")
	if err != nil {
		t.Fatal(err)
	}
	if found[0][0] == "t" {
		return " STRATEGY file_copy"
	}
	return ""
}

// normalizePostgres gives a table its columns, types and index again.
func normalizePostgres(d *database, execute executor, table string, key bool) error {
	all := []string{
		"BEGIN", "ALTER TABLE IF EXISTS " + table + "_away RENAME TO " + table, "LOCK TABLE " + table + " IN ACCESS EXCLUSIVE MODE",
		"DROP TRIGGER IF EXISTS chaos ON " + table,
	}
	for i, name := range columns {
		all = append(all, "ALTER TABLE "+table+" ADD COLUMN IF NOT EXISTS "+name+" "+d.types[i])
	}
	all = append(all, archivePostgres(table)...)
	for i, name := range columns {
		kind := strings.TrimSuffix(d.types[i], " NOT NULL")
		if kind == "text" {
			kind = "text COLLATE \"default\""
		}
		all = append(all, "ALTER TABLE "+table+" ALTER COLUMN "+name+" TYPE "+kind+" USING NULL")
	}
	all = append(all, "ALTER TABLE "+table+" SET LOGGED", "ALTER TABLE "+table+" DROP COLUMN IF EXISTS added")
	if key {
		all = append(all, "CREATE UNIQUE INDEX IF NOT EXISTS "+table+"_code ON "+table+" (code)")
	}
	_, err := execute(append(all, "COMMIT")...)
	return err
}

// postgresChanges are the changes of a table.
func postgresChanges(execute executor) []tableChange {
	archived := func(table string, statements ...string) error {
		all := append([]string{"BEGIN", "LOCK TABLE " + table + " IN ACCESS EXCLUSIVE MODE"}, archivePostgres(table)...)
		_, err := execute(append(append(all, statements...), "COMMIT")...)
		return err
	}
	trigger := func(name string) []string {
		return []string{"DROP TRIGGER IF EXISTS chaos ON %s", "CREATE TRIGGER chaos BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION " + name + "()"}
	}
	index := statements("drop index", 3, execute, []string{"DROP INDEX IF EXISTS %s_code"})
	index.keyOnly = true
	return []tableChange{
		retype(map[string][]string{
			"code": {"text COLLATE loose", "varchar(8)", "char(60)"}, "n": {"smallint", "integer", "double precision", "numeric(20)", "text", "boolean", "oid"},
			"label": {"varchar(20)", "text", "char(60)", "integer", "bytea", "name", ""}, "amount": {"numeric(14,2)", "numeric(6,4)", "real", "text", ""},
			"r": {"real", "numeric(14,4)", "text", ""}, "at": {"timestamptz(0)", "timestamp", "timestamp(3)", "date", ""}, "j": {"json", "text", ""},
		}, func(table, column, to string) error {
			if to == "" {
				return archived(table, "ALTER TABLE "+table+" DROP COLUMN "+column)
			}
			return archived(table, "ALTER TABLE "+table+" ALTER COLUMN "+column+" TYPE "+to+" USING NULL")
		}),
		statements("add column", 2, execute, []string{"ALTER TABLE %s ADD COLUMN IF NOT EXISTS added text"},
			[]string{"BEGIN", "ALTER TABLE %s ADD COLUMN IF NOT EXISTS added int NOT NULL DEFAULT 0", "ALTER TABLE %s ALTER COLUMN added DROP DEFAULT", "COMMIT"}),
		statements("widen with rows", 2, execute, []string{"ALTER TABLE %s ALTER COLUMN label TYPE varchar(100)"}, []string{"ALTER TABLE %s ALTER COLUMN n TYPE numeric"},
			[]string{"ALTER TABLE %s ALTER COLUMN amount TYPE numeric(20,6)"}),
		statements(renameTable, 3, execute, []string{"ALTER TABLE %s RENAME TO %s_away"}),
		statements("trigger", 6, execute, trigger("skip_some"), trigger("skip_all"), trigger("raise_some")),
		{name: "unlogged", weight: 3, lasts: true, do: func(_ *run, table string) (string, error) {
			return "", archived(table, "ALTER TABLE "+table+" SET UNLOGGED")
		}},
		index,
		hold("lock table", func(text string, held func()) error {
			return holdPostgres(execute, text, held)
		}, "LOCK TABLE %s IN ACCESS EXCLUSIVE MODE"),
	}
}

// holdPostgres holds a lock while held runs.
func holdPostgres(execute executor, text string, held func()) error {
	ctx, cancel := patience()
	defer cancel()
	name, err := execute("SELECT 'host=127.0.0.1 user=postgres sslmode=disable port=' || current_setting('port') || ' dbname=' || current_database()")
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, name[0][0])
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	if _, err := conn.PgConn().Exec(ctx, "BEGIN; "+text).ReadAll(); err != nil {
		return err
	}
	held()
	_, err = conn.PgConn().Exec(ctx, "COMMIT").ReadAll()
	return err
}
