package watch

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
	"spillway/internal/lab/result"
	"spillway/internal/plans"
)

// mysqlReader reads MariaDB and MySQL with one SHOW GLOBAL STATUS per reading. Three figures need an explanation:
//
//   - commits_total is half of Innodb_max_trx_id. InnoDB numbers a transaction that writes twice, at its first write and at its
//     end, and no other transaction. A write that is rolled back counts too. Com_commit omits autocommit, and Handler_commit
//     counts SELECTs and single statements, twice with a binary log. MySQL does not show Innodb_max_trx_id; there
//     commits_total is missing.
//   - fsyncs_total is Innodb_data_fsyncs, which includes the redo log, plus the fsyncs of the binary log: MariaDB's
//     Binlog_group_commits divided by sync_binlog.
//   - wait_wal counts the sessions that are in a commit.
//   - rollbacks_total counts ROLLBACK statements.
type mysqlReader struct {
	config     *mysql.Config
	session    *database.MySQLSession // nil: not open
	limit      float64                // max_connections
	syncBinlog float64                // group commits of the binary log per fsync; 0 if the server leaves it to the operating system
	own        netCounter
	ranks      bool // performance_schema counts statements, and may be read
	digests    digests
}

const (
	mysqlStartup = "SELECT @@version, @@max_connections, @@log_bin, @@sync_binlog, @@performance_schema"
	mysqlStatus  = `SHOW GLOBAL STATUS WHERE variable_name IN (
'Threads_connected', 'Threads_running', 'Questions', 'Innodb_max_trx_id', 'Innodb_data_fsyncs', 'Binlog_group_commits',
'Innodb_row_lock_current_waits', 'Innodb_row_lock_time', 'Com_rollback')`
)

func newMySQL(url database.URL) (*mysqlReader, error) {
	config, err := database.MySQLConfig(url, DatabaseName)
	if err != nil {
		return nil, err
	}
	config.Timeout, config.ReadTimeout, config.WriteTimeout = DatabaseTimeout, DatabaseTimeout, DatabaseTimeout
	return &mysqlReader{config: config}, nil
}

func (r *mysqlReader) open(ctx context.Context) error {
	session, err := database.ConnectMySQL(ctx, r.config)
	if err != nil {
		return err
	}
	r.session = session
	r.own.reopened()
	rows, err := r.query(ctx, mysqlStartup)
	if err != nil {
		return fmt.Errorf("read the version: %w", err)
	}
	if len(rows) != 1 {
		return fmt.Errorf("read the version: got %d rows, want 1", len(rows))
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
	if _, err := r.query(ctx, timeout); err != nil {
		return fmt.Errorf("set the statement timeout: %w", err)
	}
	r.digests, r.ranks = digests{}, row[4] == "1"
	if r.ranks {
		_, err := r.query(ctx, mysqlRanked)
		r.ranks = err == nil // the user may lack the privilege
	}
	return nil
}

// query runs a statement, which the server also counts, and returns its rows as text.
func (r *mysqlReader) query(ctx context.Context, sql string) ([][]string, error) {
	r.own.own++
	return r.session.Query(ctx, sql)
}

func (r *mysqlReader) read(ctx context.Context) (map[string]float64, string, error) {
	rows, err := r.query(ctx, mysqlStatus)
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
	if rows, err := r.query(ctx, mysqlCommitting); err == nil && len(rows) == 1 {
		if value, err := strconv.ParseFloat(rows[0][0], 64); err == nil {
			values[result.WaitPrefix+"wal"] = value
		}
	}
	if _, ok := values["commits_total"]; !ok {
		return values, "commits_total is missing: only MariaDB counts transactions (Innodb_max_trx_id)", nil
	}
	return values, "", nil
}

// values returns the figures, without the sampler's own connection and statements.
func (r *mysqlReader) values(status map[string]float64) map[string]float64 {
	values := map[string]float64{"connections_limit": r.limit}
	set := func(name, variable string, figure func(float64) float64) {
		if value, ok := status[variable]; ok {
			values[name] = figure(value)
		}
	}
	exceptOwn := func(n float64) float64 { return max(0, n-1) }
	set("connections", "Threads_connected", exceptOwn)
	set("connections_active", "Threads_running", exceptOwn)
	set("statements_total", "Questions", r.own.next)
	same := func(n float64) float64 { return n }
	set("rollbacks_total", "Com_rollback", same)
	set("wait_lock", "Innodb_row_lock_current_waits", same)
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

// mysqlCommitting counts the sessions in a commit, by the states of MariaDB and of MySQL 5.7 and 8.0.
const mysqlCommitting = `SELECT COUNT(*) FROM information_schema.processlist
WHERE state IN ('Commit', 'query end', 'waiting for handler commit', 'Waiting for prior transaction to commit')`

// Statements that run, and those that took the most time. Seconds are counted in picoseconds.
const (
	mysqlRunning = `SELECT LEFT(info, 1000), COUNT(*) FROM information_schema.processlist
WHERE command IN ('Query', 'Execute') AND info IS NOT NULL AND id <> CONNECTION_ID() GROUP BY 1 ORDER BY 2 DESC LIMIT 5`
	mysqlRanked = `SELECT digest, SUM(count_star), SUM(sum_timer_wait) / 1e12 FROM performance_schema.events_statements_summary_by_digest
WHERE digest IS NOT NULL GROUP BY 1 ORDER BY 3 DESC LIMIT 50`
	mysqlText = "SELECT LEFT(digest_text, 1000) FROM performance_schema.events_statements_summary_by_digest WHERE digest = '%s' LIMIT 1"
)

// statements implements databaseReader.
func (r *mysqlReader) statements(ctx context.Context) ([]statement, error) {
	rows, err := r.query(ctx, mysqlRunning)
	if err != nil {
		return nil, fmt.Errorf("read the running statements: %w", err)
	}
	var found []statement
	for _, row := range rows {
		if active, err := strconv.ParseFloat(row[1], 64); err == nil {
			found = append(found, statement{withoutLiterals(row[0], plans.MySQL), map[string]float64{"active": active}})
		}
	}
	if !r.ranks {
		return found, nil
	}
	if rows, err = r.query(ctx, mysqlRanked); err != nil {
		return nil, fmt.Errorf("read the ranked statements: %w", err)
	}
	var ranked []digest
	for _, row := range rows {
		calls, err := strconv.ParseFloat(row[1], 64)
		seconds, secondsErr := strconv.ParseFloat(row[2], 64)
		if err == nil && secondsErr == nil && strings.Trim(row[0], "0123456789abcdefABCDEF") == "" {
			ranked = append(ranked, digest{row[0], calls, seconds})
		}
	}
	more, err := r.digests.next(ranked, func(id string) (string, error) {
		rows, err := r.query(ctx, fmt.Sprintf(mysqlText, id))
		if err != nil || len(rows) == 0 || ownStatement(rows[0][0]) {
			return "", err
		}
		return withoutLiterals(rows[0][0], plans.MySQL), nil
	})
	return append(found, more...), err
}

func (r *mysqlReader) close() {
	if r.session != nil {
		r.session.Close() // the session ends even if this fails
		r.session = nil
	}
}
