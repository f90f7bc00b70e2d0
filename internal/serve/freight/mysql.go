package freight

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
	"spillway/internal/progress"
)

//go:embed mysql.sql
var mysqlSchema string

//go:embed mysql_games.sql
var mysqlGames string

// MySQL commits each CREATE TABLE and DROP TABLE. A data set is therefore created under
// names with this prefix, and one statement renames all tables.
const (
	newPrefix = "spillway_new_"
	oldPrefix = "spillway_old_"
)

func mysqlDialect() dialect {
	return dialect{
		relations: `SELECT LOWER(TABLE_NAME), GROUP_CONCAT(LOWER(COLUMN_NAME) ORDER BY ORDINAL_POSITION)
			FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (%s) GROUP BY TABLE_NAME`,
		indexes:   "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '%s'",
		finish:    func(table string, _ bool) []string { return []string{"ANALYZE TABLE " + table} },
		dropIndex: func(table, index string) string { return "DROP INDEX " + index + " ON " + table },
		elsewhere: "use another database",
		within:    withinMySQL,
		replace:   replaceMySQL,
		vacuum:    func(context.Context, database.URL, []string, *progress.Meter) error { return nil },
	}
}

// mysqlTx is a session that holds the database's lock.
type mysqlTx struct {
	session *database.MySQLSession
	staging bool // there are tables under temporary names
}

// withinMySQL runs work while it holds a lock of the database's name. If work fails, the
// unfinished tables are dropped.
func withinMySQL(ctx context.Context, url database.URL, work func(transaction) error) error {
	connector, err := database.NewMySQLConnector(url, connectTimeout, 0)
	if err != nil {
		return err
	}
	session, err := connector.Connect(ctx)
	if err != nil {
		return explainMySQL(err)
	}
	defer session.Close()
	tx := &mysqlTx{session: session}
	if err := tx.begin(ctx); err != nil {
		return explainMySQL(err)
	}
	err = work(tx)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if tx.staging || ctx.Err() != nil {
			tidyMySQL(connector, session)
		}
		return explainMySQL(err)
	}
	return nil
}

func (tx *mysqlTx) begin(ctx context.Context) error {
	rows, err := tx.query(ctx, fmt.Sprintf("SELECT DATABASE(), GET_LOCK(LEFT(CONCAT('spillway_schema.', DATABASE()), 64), %d)",
		int(lockWait.Seconds())))
	switch {
	case err != nil:
		return fmt.Errorf("begin: %w", err)
	case rows[0][0] == "":
		return errors.New("the URL names no database; write mysql://USER:PASSWORD@HOST:PORT/NAME")
	case rows[0][1] != "1":
		return errors.New("another load is running in this database; try again when it has ended")
	}
	// Rows arrive in the order of their keys in an empty table, so checks are not needed.
	return tx.exec(ctx, fmt.Sprintf("SET lock_wait_timeout = %d, foreign_key_checks = 0, unique_checks = 0", int(lockWait.Seconds())))
}

func (tx *mysqlTx) exec(ctx context.Context, sql string) error { return tx.session.Exec(ctx, sql) }

func (tx *mysqlTx) query(ctx context.Context, sql string) ([][]string, error) {
	return tx.session.Query(ctx, sql)
}

// rowsPerCommit bounds the rows of a transaction. A long one would take long to undo.
const rowsPerCommit = 200_000

// load inserts each chunk by one statement.
func (tx *mysqlTx) load(ctx context.Context, t table, meter *progress.Meter) (err error) {
	task := meter.Start(t.name, "rows", int64(t.total))
	defer func() { task.End(err) }()
	if err := tx.exec(ctx, "SET autocommit = 0"); err != nil {
		return err
	}
	into := fmt.Sprintf("INSERT INTO %s%s (%s) VALUES ('", newPrefix, t.name, strings.Join(t.columns, ", "))
	between := strings.NewReplacer("\t", "','", "\n", "'),('")
	rows := 0
	for c := range t.lines() {
		if err := tx.exec(ctx, into+between.Replace(strings.TrimSuffix(string(c.data), "\n"))+"')"); err != nil {
			return err
		}
		task.Add(int64(c.rows))
		if rows += c.rows; rows < rowsPerCommit {
			continue
		}
		if err := tx.exec(ctx, "COMMIT"); err != nil {
			return err
		}
		rows = 0
	}
	return tx.exec(ctx, "SET autocommit = 1") // which commits
}

// tidyTimeout bounds the end of a statement and the removal of unfinished tables.
const tidyTimeout = 800 * time.Millisecond

// tidyMySQL drops the tables of a failed or interrupted load. Those that remain are
// dropped by the next load.
func tidyMySQL(connector *database.MySQLConnector, session *database.MySQLSession) {
	ctx, cancel := context.WithTimeout(context.Background(), tidyTimeout)
	defer cancel()
	_ = session.Close()
	_ = connector.Kill(ctx, session.ID) // already gone
	again, err := connector.Connect(ctx)
	if err != nil {
		return
	}
	defer again.Close()
	tx := &mysqlTx{session: again}
	if tx.begin(ctx) == nil {
		_ = tx.dropStaged(ctx)
	}
}

// stagedTables returns all names that a load can leave.
func stagedTables() []string {
	var names []string
	for _, table := range slices.Concat([]string{registryTable}, freightApp().tables, gamesApp().tables) {
		names = append(names, newPrefix+table, oldPrefix+table)
	}
	return names
}

func (tx *mysqlTx) dropStaged(ctx context.Context) error {
	return execOne(ctx, tx, "DROP TABLE IF EXISTS "+strings.Join(stagedTables(), ", "))
}

var ourNames = regexp.MustCompile(`\b(` + registryTable + `|` + strings.Join(slices.Concat(freightApp().tables, gamesApp().tables), "|") +
	`)\b`)

// staged replaces the table names in a statement by their temporary names.
func staged(sql string) string { return ourNames.ReplaceAllString(sql, newPrefix+"$1") }

// replaceMySQL creates the tables under temporary names, and renames the old and the new
// tables in one statement. Readers see either data set, and an interruption leaves one
// complete.
func replaceMySQL(ctx context.Context, d dialect, tx transaction, found component, j job, meter *progress.Meter) error {
	my := tx.(*mysqlTx) // within creates no other type
	my.staging = true
	if err := my.dropStaged(ctx); err != nil {
		return err
	}
	for _, sql := range d.schema.registry {
		if err := execOne(ctx, tx, strings.Replace(sql, registryTable, newPrefix+registryTable, 1)); err != nil {
			return err
		}
	}
	if found.has(registryTable) {
		names := strings.Join(found.tables[registryTable], ", ")
		if err := execOne(ctx, tx, fmt.Sprintf("INSERT INTO %s%s (%s) SELECT %s FROM %s", newPrefix, registryTable, names, names,
			registryTable)); err != nil {
			return err
		}
	}
	if err := execAll(ctx, tx, j.record(newPrefix+registryTable)); err != nil {
		return err
	}
	if err := d.fill(ctx, tx, j, staged, meter); err != nil {
		return err
	}
	var renames []string
	for _, table := range append([]string{registryTable}, j.app.tables...) {
		if found.has(table) {
			renames = append(renames, table+" TO "+oldPrefix+table)
		}
		renames = append(renames, newPrefix+table+" TO "+table)
	}
	if err := execOne(ctx, tx, "RENAME TABLE "+strings.Join(renames, ", ")); err != nil {
		return err
	}
	// Everything is complete; an interruption no longer changes anything.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
	defer cancel()
	return my.dropStaged(last)
}

// explainMySQL adds the fix to errors that have a known one.
func explainMySQL(err error) error {
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Number {
	case 1044, 1142, 1227: // access to the database, to a table or to an action denied
		return fmt.Errorf("%w; grant the user SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER and INDEX on the database", err)
	case 1049: // unknown database
		return fmt.Errorf("%w; create it: CREATE DATABASE NAME CHARACTER SET utf8mb4", err)
	case 1205: // lock wait timeout
		return fmt.Errorf("%w; the tables are in use; try again later", err)
	}
	return err
}
