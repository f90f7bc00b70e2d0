package chaostest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
)

// sqliteExecutor runs statements on a file.
func sqliteExecutor(file string) executor {
	return func(statements ...string) ([][]string, error) {
		conn, err := sqlite.OpenConn(file, sqlite.OpenReadWrite|sqlite.OpenCreate|sqlite.OpenWAL)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		conn.SetBusyTimeout(30 * time.Second)
		var rows [][]string
		for _, statement := range statements {
			rows = nil
			err = sqlitex.ExecuteTransient(conn, statement, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
				var texts []string
				for i := range stmt.ColumnCount() {
					if stmt.ColumnType(i) == sqlite.TypeFloat {
						texts = append(texts, strconv.FormatFloat(stmt.ColumnFloat(i), 'g', -1, 64))
					} else {
						texts = append(texts, stmt.ColumnText(i))
					}
				}
				rows = append(rows, texts)
				return nil
			}})
			if err != nil {
				return nil, fmt.Errorf("%.200s: %w", statement, err)
			}
		}
		return rows, nil
	}
}

// openSQLite returns a file that can be replaced by a copy.
func openSQLite(t *testing.T) *database {
	dir := apptest.Directory(t)
	current := filepath.Join(dir, "app.db")
	execute := sqliteExecutor(current)
	d := &database{
		url: "sqlite:" + current, current: current,
		types: []string{"INTEGER NOT NULL", "TEXT NOT NULL", "INTEGER", "TEXT", "TEXT", "REAL", "TEXT", "TEXT"},
	}
	d.create = func(table string, key bool) error {
		all := []string{"CREATE TABLE " + table + " (" + d.definitions("") + ")", "CREATE TABLE " + table + "_archive (" + strings.Join(columns, ", ") + ")"}
		if key {
			all = append(all, "CREATE UNIQUE INDEX "+table+"_code ON "+table+" (code)")
		}
		_, err := execute(all...)
		return err
	}
	d.rows = func(name, table string, archive bool) ([][]string, error) {
		execute := sqliteExecutor(name)
		if archive {
			return execute("SELECT * FROM " + table + "_archive")
		}
		found, err := execute("SELECT count(*) FROM sqlite_schema WHERE name = '" + table + "'")
		if err == nil && found[0][0] == "0" {
			table += "_away"
		}
		return execute("SELECT " + strings.Join(columns, ", ") + " FROM " + table)
	}
	d.normalize = func(table string, key bool) error {
		away, err := execute("SELECT count(*) FROM sqlite_schema WHERE name = '" + table + "_away'")
		if err != nil {
			return err
		}
		all := []string{"BEGIN IMMEDIATE"}
		if away[0][0] != "0" {
			all = append(all, "ALTER TABLE "+table+"_away RENAME TO "+table)
		}
		_, err = execute(append(all, "DROP TRIGGER IF EXISTS chaos_"+table, "COMMIT")...)
		if err == nil {
			err = rebuildSQLite(d, execute, table, "", "")
		}
		return err
	}
	copyOf := func(n int) string { return filepath.Join(dir, fmt.Sprintf("copy-%d.db", n)) }
	d.copy = func(n int) error {
		_, err := execute("VACUUM INTO '" + copyOf(n) + "'")
		return err
	}
	d.restore = func(n int, running bool) error {
		replaced := filepath.Join(dir, fmt.Sprintf("replaced-%d.db", len(d.replaced)+1))
		if err := replaceFile(current, replaced, copyOf(n), running); err != nil {
			return err
		}
		d.replaced = append(d.replaced, replaced)
		return nil
	}
	d.changes = sqliteChanges(d, execute)
	return d
}

// replaceFile puts a copy in the place of a file, which gets another name. If the program runs,
// it has the file open, and its log stays where it is, as after mv.
func replaceFile(file, replaced, from string, running bool) error {
	for _, suffix := range []string{"-wal", ""} {
		move := os.Rename
		if running {
			move = os.Link
		}
		if err := move(file+suffix, replaced+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if !running {
		_ = os.Remove(file + "-shm") // it may be missing
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	to, err := os.Create(file + ".new")
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, source); err != nil {
		return errors.Join(err, to.Close())
	}
	if err := to.Close(); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil || !running {
		return err
	}
	return awaitLog(file, replaced)
}

// awaitLog waits until the program has noticed that its file was replaced: until then nobody else
// may open the new one, because SQLite would write what the old log has into it.
func awaitLog(file, replaced string) error {
	ctx, cancel := patience()
	defer cancel()
	for ctx.Err() == nil {
		old, err := os.Stat(replaced + "-wal")
		now, errNow := os.Stat(file + "-wal")
		if err != nil || errNow != nil || !os.SameFile(old, now) {
			return nil
		}
		queue.Sleep(ctx, 20*time.Millisecond)
	}
	return errors.New("the program has not noticed within a minute that its file was replaced")
}

// rebuildSQLite moves the rows of a table to the archive and creates it again. A column has
// another type, or is missing if that is empty.
func rebuildSQLite(d *database, execute executor, table, column, to string) error {
	has, err := execute("SELECT name FROM pragma_table_info('" + table + "')")
	if err != nil {
		return err
	}
	found := make(map[string]bool)
	for _, row := range has {
		found[row[0]] = true
	}
	var values, definitions []string
	for i, name := range columns {
		value, kind := name, d.types[i]
		if !found[name] {
			value = "NULL"
		}
		values = append(values, value)
		if name == column {
			kind = to
		}
		if kind != "" {
			definitions = append(definitions, name+" "+kind)
		}
	}
	all := []string{
		"BEGIN IMMEDIATE", "INSERT INTO " + table + "_archive SELECT " + strings.Join(values, ", ") + " FROM " + table, "DROP TABLE " + table,
		"CREATE TABLE " + table + " (" + strings.Join(definitions, ", ") + ")",
	}
	if table == "keyed" {
		all = append(all, "CREATE UNIQUE INDEX "+table+"_code ON "+table+" (code)")
	}
	_, err = execute(append(all, "COMMIT")...)
	return err
}

// sqliteChanges are the changes of a table.
func sqliteChanges(d *database, execute executor) []tableChange {
	trigger := func(condition, action string) []string {
		return []string{"DROP TRIGGER IF EXISTS chaos_%s", "CREATE TRIGGER chaos_%s BEFORE INSERT ON %s WHEN " + condition + " BEGIN SELECT RAISE(" + action + "); END"}
	}
	index := statements("drop index", 3, execute, []string{"DROP INDEX IF EXISTS %s_code"})
	index.keyOnly = true
	return []tableChange{
		retype(map[string][]string{
			"code": {"TEXT COLLATE NOCASE NOT NULL", "STRING NOT NULL"}, "n": {"TEXT", "REAL", "BLOB", "BOOLEAN"}, "label": {"INTEGER", "STRING", "BLOB", ""},
			"amount": {"DECIMAL(14,4)", "REAL", "INTEGER", "BLOB", ""}, "r": {"INTEGER", "TEXT", "DECIMAL(20,4)", ""}, "at": {"DATETIME", "INTEGER", "REAL", ""},
			"j": {"JSON", "BLOB", "INTEGER", ""},
		}, func(table, column, to string) error { return rebuildSQLite(d, execute, table, column, to) }),
		statements("add column", 2, execute, []string{"ALTER TABLE %s ADD COLUMN added TEXT"}, []string{"ALTER TABLE %s ADD COLUMN added INTEGER NOT NULL DEFAULT 0"}),
		statements(renameTable, 3, execute, []string{"DROP TRIGGER IF EXISTS chaos_%s", "ALTER TABLE %s RENAME TO %s_away"}),
		statements("trigger", 6, execute, trigger("NEW.id % 5 = 0", "IGNORE"), trigger("1", "IGNORE"), trigger("NEW.id % 5 = 0", "ABORT, 'not this one'")),
		index,
		hold("lock file", func(text string, held func()) error {
			conn, err := sqlite.OpenConn(d.current, sqlite.OpenReadWrite|sqlite.OpenWAL)
			if err != nil {
				return err
			}
			defer conn.Close()
			conn.SetBusyTimeout(30 * time.Second)
			if err := sqlitex.ExecuteTransient(conn, text, nil); err != nil {
				return err
			}
			held()
			return sqlitex.ExecuteTransient(conn, "COMMIT", nil)
		}, "BEGIN IMMEDIATE"),
	}
}
