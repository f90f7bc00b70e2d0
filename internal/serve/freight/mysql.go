package freight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
	"spillway/internal/progress"
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
		vacuum:    func(context.Context, database.URL, []string, *progress.Meter) error { return nil },
	}
}

// mysqlTx is a session that holds the database's lock.
type mysqlTx struct {
	session *database.MySQLSession
}

// withinMySQL runs work while it holds a lock of the database's name. MySQL commits each CREATE TABLE and DROP TABLE, so that
// what a failed work has done stays.
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
	tx := mysqlTx{session: session}
	if err = tx.begin(ctx); err == nil {
		err = work(tx)
	}
	if ctx.Err() != nil {
		last, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		_ = session.Close()
		_ = connector.Kill(last, session.ID) // it may have ended
		return ctx.Err()
	}
	return explainMySQL(err)
}

// killTimeout bounds the end of an interrupted statement.
const killTimeout = 800 * time.Millisecond

func (tx mysqlTx) begin(ctx context.Context) error {
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

func (tx mysqlTx) exec(ctx context.Context, sql string) error { return tx.session.Exec(ctx, sql) }

func (tx mysqlTx) query(ctx context.Context, sql string) ([][]string, error) {
	return tx.session.Query(ctx, sql)
}

// rowsPerCommit bounds the rows of a transaction. A long one would take long to undo.
const rowsPerCommit = 200_000

// load inserts each chunk by one statement.
func (tx mysqlTx) load(ctx context.Context, t table, meter *progress.Meter) (err error) {
	task := meter.Start(t.name, "rows", int64(t.total))
	defer func() { task.End(err) }()
	if err := tx.exec(ctx, "SET autocommit = 0"); err != nil {
		return err
	}
	into := fmt.Sprintf("INSERT INTO %s (%s) VALUES ('", t.name, strings.Join(t.columns, ", "))
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
