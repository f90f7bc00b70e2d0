package freight

import (
	"context"
	"fmt"
	"strings"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/database"
	"spillway/internal/progress"
)

func sqliteDialect() dialect {
	return dialect{
		relations: `SELECT lower(m.name), (SELECT group_concat(t.name, ',') FROM pragma_table_info(m.name) t)
			FROM sqlite_master m
			WHERE m.type IN ('table', 'view') AND lower(m.name) IN (%s)`,
		indexes:   "SELECT name FROM sqlite_master WHERE type = 'index' AND lower(tbl_name) = '%s'",
		finish:    func(table string, _ bool) []string { return []string{"ANALYZE " + table} },
		dropIndex: func(_, index string) string { return "DROP INDEX " + index },
		elsewhere: "use another file",
		within:    withinSQLite,
		vacuum:    func(context.Context, database.URL, []string, *progress.Meter) error { return nil },
	}
}

// sqliteTx is a transaction on a SQLite file.
type sqliteTx struct {
	conn *sqlite.Conn
}

// withinSQLite runs work as the only writer of the file. It does not change the journal
// mode.
func withinSQLite(ctx context.Context, url database.URL, work func(transaction) error) (err error) {
	conn, err := sqlite.OpenConn(url.Path(), sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err != nil {
		return err
	}
	defer func() {
		if closed := conn.Close(); err == nil {
			err = closed
		}
	}()
	conn.SetBusyTimeout(lockWait)
	conn.SetInterrupt(ctx.Done())
	// An index is sorted in runs of the cache's size, and a run cannot be interrupted. A
	// larger cache would not be faster.
	if err := sqlitex.ExecuteTransient(conn, "PRAGMA cache_size = -8192", nil); err != nil {
		return err
	}
	end, err := sqlitex.ImmediateTransaction(conn)
	if err != nil {
		if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
			return fmt.Errorf("begin: %w; another process is writing to the file; try again when it has ended", err)
		}
		return fmt.Errorf("begin: %w", err)
	}
	defer end(&err)
	return work(sqliteTx{conn: conn})
}

func (tx sqliteTx) exec(_ context.Context, sql string) error {
	return sqlitex.ExecuteTransient(tx.conn, sql, nil)
}

func (tx sqliteTx) query(_ context.Context, sql string) ([][]string, error) {
	var rows [][]string
	err := sqlitex.ExecuteTransient(tx.conn, sql, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		row := make([]string, stmt.ColumnCount())
		for i := range row {
			row[i] = stmt.ColumnText(i)
		}
		rows = append(rows, row)
		return nil
	}})
	return rows, err
}

// load inserts row by row through one prepared statement.
func (tx sqliteTx) load(_ context.Context, t table, meter *progress.Meter) (err error) {
	task := meter.Start(t.name, "rows", int64(t.total))
	defer func() { task.End(err) }()
	stmt, err := tx.conn.Prepare(fmt.Sprintf("INSERT INTO %s (%s) VALUES (?%s)",
		t.name, strings.Join(t.columns, ", "), strings.Repeat(", ?", len(t.columns)-1)))
	if err != nil {
		return err
	}
	for c := range t.lines() {
		for line := range strings.Lines(string(c.data)) {
			for i, value := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
				stmt.BindText(i+1, value) // which is stored in the column's type
			}
			if _, err := stmt.Step(); err != nil {
				return err
			}
			if err := stmt.Reset(); err != nil {
				return err
			}
		}
		task.Add(int64(c.rows))
	}
	return nil
}
