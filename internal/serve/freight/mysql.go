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

// MySQL makes and drops tables at once, transaction or not. So a data set is made
// under names that begin like this, and all tables get their names in one statement.
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

// mysqlTx is a session on MySQL that overlaps with no other one in the same database.
type mysqlTx struct {
	session *database.MySQLSession
	local   bool // LOAD DATA LOCAL is allowed
	staging bool // there are tables under other names
}

// withinMySQL holds a lock of the database's name. When the work fails, what it made
// so far is dropped.
func withinMySQL(ctx context.Context, url database.URL, work func(transaction) error) error {
	connector, err := database.NewMySQLConnector(url, connectTimeout, 0)
	if err != nil {
		return err
	}
	session, err := connector.Connect(ctx)
	if err != nil {
		return explainMySQL(err)
	}
	defer session.Conn.Close()
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
	rows, err := tx.query(ctx, fmt.Sprintf("SELECT DATABASE(), GET_LOCK(LEFT(CONCAT('spillway_schema.', DATABASE()), 64), %d), @@local_infile", int(lockWait.Seconds())))
	switch {
	case err != nil:
		return fmt.Errorf("begin: %w", err)
	case rows[0][0] == "":
		return errors.New("the URL names no database: write mysql://USER:PASSWORD@HOST:PORT/NAME")
	case rows[0][1] != "1":
		return errors.New("another load is at work in this database: try again when that has ended")
	}
	tx.local = rows[0][2] == "1"
	// Keys are checked against nothing while rows come in their order into an empty table.
	return tx.exec(ctx, fmt.Sprintf("SET lock_wait_timeout = %d, foreign_key_checks = 0, unique_checks = 0", int(lockWait.Seconds())))
}

func (tx *mysqlTx) exec(ctx context.Context, sql string) error { return tx.session.Exec(ctx, sql) }

func (tx *mysqlTx) query(ctx context.Context, sql string) ([][]string, error) {
	return tx.session.Query(ctx, sql)
}

// tidyWait is for the server to end a statement and to drop unfinished tables.
const tidyWait = 800 * time.Millisecond

// tidyMySQL drops what a failed or interrupted load has made. What it does not manage
// in little time, the next load does.
func tidyMySQL(connector *database.MySQLConnector, session *database.MySQLSession) {
	ctx, cancel := context.WithTimeout(context.Background(), tidyWait)
	defer cancel()
	_ = session.Conn.Close()
	_ = connector.Kill(ctx, session.ID) // gone already: fine
	again, err := connector.Connect(ctx)
	if err != nil {
		return
	}
	defer again.Conn.Close()
	tx := &mysqlTx{session: again}
	if tx.begin(ctx) == nil {
		_ = tx.dropStaged(ctx)
	}
}

// stagedTables are all names that a load may leave.
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

var ourNames = regexp.MustCompile(`\b(` + registryTable + `|` + strings.Join(slices.Concat(freightApp().tables, gamesApp().tables), "|") + `)\b`)

// staged gives the tables in a statement the names that they have until all is there.
func staged(sql string) string { return ourNames.ReplaceAllString(sql, newPrefix+"$1") }

// replaceMySQL makes all under other names, and then, in one statement, gives the new
// tables their names and takes them from the old: readers see either data set, and an
// interruption at any moment leaves one whole.
func replaceMySQL(ctx context.Context, d dialect, tx transaction, found component, j job, meter *progress.Meter) error {
	my := tx.(*mysqlTx) // this dialect's within makes no other
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
		if err := execOne(ctx, tx, fmt.Sprintf("INSERT INTO %s%s (%s) SELECT %s FROM %s", newPrefix, registryTable, names, names, registryTable)); err != nil {
			return err
		}
	}
	if err := execAll(ctx, tx, j.record(newPrefix+registryTable, d.schemaOf(j.app).latest(), stateComplete)); err != nil {
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
	// All is there now: an interruption changes nothing any more.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
	defer cancel()
	return my.dropStaged(last)
}

// explainMySQL adds the fix to the errors that have a known one.
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
		return fmt.Errorf("%w; the tables are in use: try again when that has ended", err)
	}
	return err
}
