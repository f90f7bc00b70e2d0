package watch

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
)

// mysqlReader reads MariaDB and MySQL, one SHOW GLOBAL STATUS a reading. What counts what was measured on MariaDB 10.11
// against strace, 100 transactions of each kind:
//
//   - commits_total: half of what Innodb_max_trx_id has advanced. InnoDB numbers a transaction that writes twice, when it
//     first writes and when it ends, and others never: an autocommitted INSERT is one, a transaction of two INSERTs is one, a
//     SELECT none, a write that is rolled back one. Com_commit leaves autocommit out; Handler_commit counts SELECTs, each statement of
//     a transaction and its COMMIT, all twice with a binary log (1, 3, 1 and 1; 2, 6, 1 and 2 with it).
//     MySQL does not tell that number: there commits_total is left out.
//   - fsyncs_total: Innodb_data_fsyncs, which holds those of the redo log (an Innodb_os_log_fsyncs, where there is one, is
//     part of it), and those of the binary log: MariaDB's Binlog_group_commits divided by sync_binlog.
//   - rollbacks_total: ROLLBACK statements.
type mysqlReader struct {
	connector  driver.Connector
	conn       driver.Conn
	limit      float64 // max_connections
	syncBinlog float64 // group commits of the binary log to an fsync; 0 when the server leaves it to the system
	statements ownless
}

// mysqlCounters gives status variables their names. Where there are two, the second is read where the server has no
// first: MariaDB no longer has InnoDB's count of rows, but its own, of all engines.
var mysqlCounters = map[string][]string{
	"log_writes_total":              {"Innodb_log_writes"},
	"row_lock_waits_total":          {"Innodb_row_lock_waits"},
	"row_lock_current":              {"Innodb_row_lock_current_waits"},
	"wait_lock":                     {"Innodb_row_lock_current_waits"},
	"rows_inserted_total":           {"Innodb_rows_inserted", "Handler_write"},
	"rows_read_total":               {"Innodb_rows_read", "Rows_read"},
	"rollbacks_total":               {"Com_rollback"},
	"aborted_connects_total":        {"Aborted_connects"},
	"connects_total":                {"Connections"},
	"refused_max_connections_total": {"Connection_errors_max_connections"},
}

const (
	mysqlStartup = "SELECT @@version, @@max_connections, @@log_bin, @@sync_binlog"
	mysqlStatus  = `SHOW GLOBAL STATUS WHERE variable_name IN (
'Threads_connected', 'Threads_running', 'Questions', 'Innodb_max_trx_id', 'Innodb_data_fsyncs', 'Binlog_group_commits',
'Innodb_log_writes', 'Innodb_row_lock_waits', 'Innodb_row_lock_current_waits', 'Innodb_row_lock_time',
'Innodb_rows_inserted', 'Innodb_rows_read', 'Handler_write', 'Rows_read', 'Com_rollback', 'Aborted_connects', 'Connections', 'Connection_errors_max_connections')`
)

func newMySQL(url database.URL) (*mysqlReader, error) {
	config, err := mysql.ParseDSN(url.DSN())
	if err != nil {
		return nil, fmt.Errorf("read %s: a parameter of it is wrong", url) // the driver's error may quote the address
	}
	config.Timeout, config.ReadTimeout, config.WriteTimeout = DatabaseTimeout, DatabaseTimeout, DatabaseTimeout
	config.Logger = &mysql.NopLogger{}
	config.ConnectionAttributes = "program_name:" + DatabaseName
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("read %s: a parameter of it is wrong", url)
	}
	return &mysqlReader{connector: connector}, nil
}

func (r *mysqlReader) open(ctx context.Context) error {
	conn, err := r.connector.Connect(ctx)
	if err != nil {
		return err
	}
	r.conn = conn
	r.statements.reopened()
	rows, err := r.query(ctx, mysqlStartup, 4)
	if err != nil {
		return fmt.Errorf("ask for the version: %w", err)
	}
	if len(rows) != 1 {
		return fmt.Errorf("ask for the version: %d rows", len(rows))
	}
	row := rows[0]
	if r.limit, err = strconv.ParseFloat(row[1], 64); err != nil {
		return fmt.Errorf("read max_connections: %w", err)
	}
	r.syncBinlog = 0
	if row[2] == "1" {
		if r.syncBinlog, err = strconv.ParseFloat(row[3], 64); err != nil {
			return fmt.Errorf("read sync_binlog: %w", err)
		}
	}
	timeout := fmt.Sprintf("SET SESSION max_execution_time = %d", DatabaseTimeout.Milliseconds())
	if strings.Contains(row[0], "MariaDB") {
		timeout = fmt.Sprintf("SET SESSION max_statement_time = %g", DatabaseTimeout.Seconds())
	}
	if _, err := r.query(ctx, timeout, 0); err != nil {
		return fmt.Errorf("bound the time of a statement: %w", err)
	}
	return nil
}

// query runs a statement and returns its rows as text.
func (r *mysqlReader) query(ctx context.Context, sql string, columns int) ([][]string, error) {
	queryer, ok := r.conn.(driver.QueryerContext)
	if !ok {
		return nil, errors.New("the driver's connections run no statements")
	}
	r.statements.own++
	answer, err := queryer.QueryContext(ctx, sql, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	if len(answer.Columns()) != columns {
		return nil, fmt.Errorf("%d columns instead of %d", len(answer.Columns()), columns)
	}
	var rows [][]string
	values := make([]driver.Value, columns)
	for columns > 0 {
		err := answer.Next(values)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		row := make([]string, columns)
		for i, value := range values {
			row[i] = mysqlText(value)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// mysqlText is a column as text; the driver gives text as bytes and numbers as they are.
func mysqlText(value driver.Value) string {
	switch v := value.(type) {
	case nil:
		return ""
	case []byte:
		return string(v)
	}
	return fmt.Sprint(value)
}

func (r *mysqlReader) read(ctx context.Context) (map[string]float64, string, error) {
	rows, err := r.query(ctx, mysqlStatus, 2)
	if err != nil {
		return nil, "", fmt.Errorf("read status: %w", err)
	}
	status := make(map[string]float64, len(rows))
	for _, row := range rows {
		if value, err := strconv.ParseFloat(row[1], 64); err == nil {
			status[row[0]] = value
		}
	}
	values := r.values(status)
	if _, ok := values["commits_total"]; !ok {
		return values, "this server counts no transactions (Innodb_max_trx_id is MariaDB's): commits_total is left out", nil
	}
	return values, "", nil
}

// values names the figures. The session's own: one connection, running the statement that asks.
func (r *mysqlReader) values(status map[string]float64) map[string]float64 {
	values := map[string]float64{"connections_limit": r.limit}
	for name, variables := range mysqlCounters {
		for _, variable := range slices.Backward(variables) {
			if value, ok := status[variable]; ok {
				values[name] = value
			}
		}
	}
	set := func(name, variable string, figure func(float64) float64) {
		if value, ok := status[variable]; ok {
			values[name] = figure(value)
		}
	}
	butOwn := func(n float64) float64 { return max(0, n-1) }
	set("connections", "Threads_connected", butOwn)
	set("connections_active", "Threads_running", butOwn)
	set("statements_total", "Questions", r.statements.next)
	set("commits_total", "Innodb_max_trx_id", func(n float64) float64 { return math.Floor(n / 2) })
	set("row_lock_seconds_total", "Innodb_row_lock_time", func(ms float64) float64 { return ms / 1000 })
	set("fsyncs_total", "Innodb_data_fsyncs", func(n float64) float64 {
		if r.syncBinlog > 0 {
			n += status["Binlog_group_commits"] / r.syncBinlog
		}
		return n
	})
	return values
}

func (r *mysqlReader) close() {
	if r.conn != nil {
		r.conn.Close() // an error here is one of a session that is given up
		r.conn = nil
	}
}
