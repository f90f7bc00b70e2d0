package chaostest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	connect "spillway/internal/database"
)

// mariaDBSession opens a session of the operator, and returns what runs statements in it.
func mariaDBSession(url string) (run executor, end func(), err error) {
	parsed, err := connect.Parse(url)
	if err != nil {
		return nil, nil, err
	}
	connector, err := connect.NewMySQLConnector(parsed, time.Minute, 0)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := patience()
	session, err := connector.Connect(ctx)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	run = func(statements ...string) (rows [][]string, err error) {
		for _, statement := range append([]string{"SET lock_wait_timeout = 20", "SET innodb_lock_wait_timeout = 20", "SET time_zone = '+00:00'"}, statements...) {
			if rows, err = session.Query(ctx, statement); err != nil {
				return nil, fmt.Errorf("%.200s: %w", statement, err)
			}
		}
		return rows, nil
	}
	return run, func() { _ = session.Close(); cancel() }, nil
}

// openMariaDB starts a server behind an address that can be cut.
func openMariaDB(t *testing.T) *database {
	server := apptest.MySQL(t, "--innodb-flush-log-at-trx-commit=1")
	address := apptest.NewForward(t, server.Addr())
	d := &database{
		url: strings.Replace(server.URL("test"), server.Addr(), address.Addr(), 1), server: server, address: address, current: "test",
		types: []string{
			"bigint NOT NULL", "varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL", "bigint", "varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
			"decimal(14,4)", "double", "datetime(6)", "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
		},
	}
	execute := func(statements ...string) ([][]string, error) {
		run, end, err := mariaDBSession(server.URL("test"))
		if err != nil {
			return nil, err
		}
		defer end()
		return run(statements...)
	}
	d.create = func(table string, key bool) error {
		all := []string{
			"CREATE TABLE " + table + " (" + d.definitions("") + ")",
			"CREATE TABLE " + table + "_archive (" + strings.Join(columns, " longtext, ") + " longtext) CHARACTER SET utf8mb4",
		}
		if key {
			all = append(all, "CREATE UNIQUE INDEX "+table+"_code ON "+table+" (code)")
		}
		_, err := execute(all...)
		return err
	}
	d.rows = func(name, table string, archive bool) ([][]string, error) {
		if archive {
			return execute("SELECT * FROM " + name + "." + table + "_archive")
		}
		found, err := execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = '" + name + "' AND table_name = '" + table + "'")
		if err == nil && found[0][0] == "0" {
			table += "_away"
		}
		return execute("SELECT " + mariaDBText() + " FROM " + name + "." + table)
	}
	d.normalize = func(table string, key bool) error { return normalizeMariaDB(d, execute, table, key) }
	d.endSessions = func() error { return endMariaDBSessions(execute) }
	alone := func(do func() error) error {
		address.To("")
		defer address.To(server.Addr())
		if err := endMariaDBSessions(execute); err != nil {
			return err
		}
		return do()
	}
	d.copy = func(n int) error {
		return alone(func() error { return copyMariaDB(execute, "test", fmt.Sprintf("copy_%d", n)) })
	}
	d.restore = func(n int, _ bool) error {
		return alone(func() error {
			replaced := fmt.Sprintf("replaced_%d", len(d.replaced)+1)
			d.replaced = append(d.replaced, replaced)
			return replaceMariaDB(execute, fmt.Sprintf("copy_%d", n), replaced)
		})
	}
	d.changes = mariaDBChanges(execute)
	return d
}

// mariaDBText is the values of a row as texts, whatever the types of its columns.
func mariaDBText() string {
	var all []string
	for _, name := range columns {
		all = append(all, "CONCAT("+name+")")
	}
	return strings.Join(all, ", ")
}

// endMariaDBSessions ends all sessions but its own, and waits until they have ended.
func endMariaDBSessions(execute executor) error {
	for {
		others, err := execute("SELECT id FROM information_schema.processlist WHERE db = 'test' AND id <> CONNECTION_ID()")
		if err != nil || len(others) == 0 {
			return err
		}
		for _, id := range others {
			_, _ = execute("KILL " + id[0]) // it may have ended
		}
	}
}

// mariaDBTables returns the tables of a database.
func mariaDBTables(execute executor, name string) (tables []string, err error) {
	rows, err := execute("SELECT table_name FROM information_schema.tables WHERE table_schema = '" + name + "' ORDER BY table_name")
	for _, row := range rows {
		tables = append(tables, row[0])
	}
	return tables, err
}

func copyMariaDB(execute executor, from, to string) error {
	tables, err := mariaDBTables(execute, from)
	all := []string{"CREATE DATABASE IF NOT EXISTS " + to}
	for _, table := range tables {
		all = append(all, "CREATE TABLE "+to+"."+table+" LIKE "+from+"."+table, "INSERT INTO "+to+"."+table+" SELECT * FROM "+from+"."+table)
	}
	if err == nil {
		_, err = execute(all...)
	}
	return err
}

// replaceMariaDB gives the database test the tables of a copy. Its own are moved to another.
func replaceMariaDB(execute executor, from, replaced string) error {
	tables, err := mariaDBTables(execute, "test")
	if err != nil {
		return err
	}
	all := []string{"CREATE DATABASE " + replaced}
	for _, table := range tables {
		all = append(all, "DROP TRIGGER IF EXISTS chaos_"+strings.TrimSuffix(table, "_away"), "RENAME TABLE test."+table+" TO "+replaced+"."+table)
	}
	if _, err := execute(all...); err != nil {
		return err
	}
	return copyMariaDB(execute, from, "test")
}

// archiveMariaDB are the statements that move all rows to the archive and keep the table locked.
func archiveMariaDB(table string) []string {
	return []string{
		"SET autocommit = 0", "LOCK TABLES " + table + " WRITE, " + table + "_archive WRITE",
		"INSERT INTO " + table + "_archive SELECT " + mariaDBText() + " FROM " + table, "DELETE FROM " + table, "COMMIT",
	}
}

// normalizeMariaDB gives a table its columns, types, engine and index again.
func normalizeMariaDB(d *database, execute executor, table string, key bool) error {
	tables, err := mariaDBTables(execute, "test")
	if err != nil {
		return err
	}
	var all, changes []string
	if slices.Contains(tables, table+"_away") {
		all = append(all, "RENAME TABLE "+table+"_away TO "+table)
	}
	all = append(all, "DROP TRIGGER IF EXISTS chaos_"+table, "ALTER TABLE "+table+" ENGINE = InnoDB")
	for i, name := range columns {
		all = append(all, "ALTER TABLE "+table+" ADD COLUMN IF NOT EXISTS "+name+" "+d.types[i])
		changes = append(changes, "MODIFY "+name+" "+d.types[i])
	}
	all = append(all, archiveMariaDB(table)...)
	all = append(all, "ALTER TABLE "+table+" DROP COLUMN IF EXISTS added, "+strings.Join(changes, ", "), "UNLOCK TABLES")
	if key {
		all = append(all, "CREATE UNIQUE INDEX IF NOT EXISTS "+table+"_code ON "+table+" (code)")
	}
	_, err = execute(all...)
	return err
}

// mariaDBChanges are the changes of a table.
func mariaDBChanges(execute executor) []tableChange {
	archived := func(table, alter string) error {
		_, err := execute(append(archiveMariaDB(table), "ALTER TABLE "+table+" "+alter, "UNLOCK TABLES")...)
		return err
	}
	trigger := func(condition string) []string {
		return []string{
			"DROP TRIGGER IF EXISTS chaos_%s",
			"CREATE TRIGGER chaos_%s BEFORE INSERT ON %s FOR EACH ROW BEGIN IF " + condition + " THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END",
		}
	}
	update := []string{"DROP TRIGGER IF EXISTS chaos_%s", "CREATE TRIGGER chaos_%s BEFORE UPDATE ON %s FOR EACH ROW SET NEW.label = 'updated'"}
	index := statements("drop index", 3, execute, []string{"DROP INDEX IF EXISTS %s_code ON %s"})
	index.keyOnly = true
	return []tableChange{
		retype(map[string][]string{
			"code": {"varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL", "varchar(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"},
			"n":    {"smallint", "int unsigned", "double", "decimal(20,0)", "varchar(30)", "year"},
			"label": {
				"varchar(20) CHARACTER SET utf8mb4", "varchar(60) CHARACTER SET latin1", "text CHARACTER SET utf8mb4", "int", "enum('a','b')",
				"char(60) CHARACTER SET utf8mb4", "",
			},
			"amount": {"decimal(14,2)", "decimal(6,4)", "double", "varchar(30)", ""}, "r": {"float", "decimal(14,4)", ""},
			"at": {"datetime", "datetime(3)", "timestamp(6) NULL", "date", ""}, "j": {"varchar(10) CHARACTER SET utf8mb4", "longtext CHARACTER SET latin1", ""},
		}, func(table, column, to string) error {
			if to == "" {
				return archived(table, "DROP COLUMN "+column)
			}
			return archived(table, "MODIFY "+column+" "+to)
		}),
		statements("add column", 2, execute, []string{"ALTER TABLE %s ADD COLUMN IF NOT EXISTS added text"},
			[]string{"ALTER TABLE %s ADD COLUMN IF NOT EXISTS added int NOT NULL"}),
		statements("widen with rows", 2, execute, []string{"ALTER TABLE %s MODIFY label varchar(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"},
			[]string{"ALTER TABLE %s MODIFY n decimal(30)"}, []string{"ALTER TABLE %s MODIFY amount decimal(20,6)"}),
		statements(renameTable, 3, execute, []string{"DROP TRIGGER IF EXISTS chaos_%s", "RENAME TABLE %s TO %s_away"}),
		statements("trigger", 6, execute, trigger("NEW.id % 5 = 0"), trigger("true"), update),
		{name: "engine", weight: 4, lasts: true, do: func(r *run, table string) (string, error) {
			engine := r.choose("Aria", "MyISAM", "MEMORY")
			return engine, archived(table, "DROP COLUMN IF EXISTS j, ENGINE = "+engine)
		}},
		index,
		hold("lock table", func(text string, held func()) error {
			_, err := execute(text)
			if err == nil {
				held()
			}
			return err
		}, "LOCK TABLES %s WRITE"),
	}
}
