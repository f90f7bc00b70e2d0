package database

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MySQLServer is the version of a server at a mysql:// URL.
type MySQLServer struct {
	MariaDB bool // otherwise MySQL
	Major   int
	Minor   int
	Patch   int
	Text    string // VERSION() of the server
}

var mysqlVersion = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)`)

// parseMySQLServer reads VERSION() and refuses a server that is too old.
func parseMySQLServer(text string) (MySQLServer, error) {
	s := MySQLServer{Text: text, MariaDB: strings.Contains(strings.ToLower(text), "mariadb")}
	// Proxies prefix MariaDB's version for old clients of MySQL.
	plain := strings.TrimPrefix(text, "5.5.5-")
	numbers := mysqlVersion.FindStringSubmatch(plain)
	if numbers == nil {
		return s, fmt.Errorf("the server's version %.40q cannot be read", text)
	}
	for i, field := range []*int{&s.Major, &s.Minor, &s.Patch} {
		n, err := strconv.Atoi(numbers[i+1])
		if err != nil {
			return s, fmt.Errorf("the server's version %.40q cannot be read", text)
		}
		*field = n
	}
	if s.MariaDB && !s.AtLeast(10, 6, 0) || !s.MariaDB && !s.AtLeast(5, 7, 8) {
		return s, fmt.Errorf("the server is %s; MySQL 5.7.8 or MariaDB 10.6 or later is required", text)
	}
	return s, nil
}

// AtLeast reports whether the version is at least that one. MySQL and MariaDB count
// independently.
func (s MySQLServer) AtLeast(major, minor, patch int) bool {
	if s.Major != major {
		return s.Major > major
	}
	if s.Minor != minor {
		return s.Minor > minor
	}
	return s.Patch >= patch
}

// DescendingIndexes reports whether an index can have descending columns. Older servers
// ignore DESC in CREATE INDEX.
func (s MySQLServer) DescendingIndexes() bool {
	if s.MariaDB {
		return s.AtLeast(10, 8, 0)
	}
	return s.AtLeast(8, 0, 0)
}

// Explain returns the keywords that ask for the plan as a table, and for the rewritten
// statement as a warning.
func (s MySQLServer) Explain() string {
	if s.MariaDB {
		return "EXPLAIN EXTENDED "
	}
	return "EXPLAIN FORMAT=TRADITIONAL "
}

// cachesStatistics reports whether information_schema can be up to a day old.
func (s MySQLServer) cachesStatistics() bool { return !s.MariaDB && s.AtLeast(8, 0, 3) }

// timeoutSetting returns the assignment that limits a statement. MySQL limits SELECTs
// only.
func (s MySQLServer) timeoutSetting(limit time.Duration) string {
	if s.MariaDB {
		return "max_statement_time = " + strconv.FormatFloat(limit.Seconds(), 'f', 6, 64)
	}
	milliseconds := limit.Milliseconds()
	if limit > 0 {
		milliseconds = max(1, milliseconds)
	}
	return "max_execution_time = " + strconv.FormatInt(milliseconds, 10)
}

// MySQLDurability holds the settings that decide whether a commit is durable.
type MySQLDurability struct {
	FlushLog   int  // innodb_flush_log_at_trx_commit: 1 syncs each commit, 2 writes it, 0 neither; -1 unknown
	BinaryLog  bool // log_bin
	SyncBinlog int  // sync_binlog: 1 syncs the binary log with each commit; -1 unknown
}

// Loss describes what a confirmed commit can lose, "" for nothing.
func (d MySQLDurability) Loss() string {
	var losses []string
	switch d.FlushLog {
	case 1:
	case 2:
		losses = append(losses, "up to a second of commits when the host crashes (innodb_flush_log_at_trx_commit = 2)")
	case 0:
		losses = append(losses, "up to a second of commits when the server crashes (innodb_flush_log_at_trx_commit = 0)")
	default:
		losses = append(losses, "an unknown amount (innodb_flush_log_at_trx_commit cannot be read)")
	}
	if d.BinaryLog && d.SyncBinlog != 1 {
		losses = append(losses, fmt.Sprintf("commits that replicas never see when the host crashes (sync_binlog = %d)", d.SyncBinlog))
	}
	return strings.Join(losses, "; ")
}

// readDurability reads the settings. A setting that the server does not show is unknown.
func readDurability(ctx context.Context, s *MySQLSession) (MySQLDurability, error) {
	d := MySQLDurability{FlushLog: -1, SyncBinlog: -1}
	rows, err := s.Query(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')")
	if err != nil {
		return d, err
	}
	for _, row := range rows {
		n, err := strconv.Atoi(row[1])
		if err != nil {
			n = -1
		}
		switch row[0] {
		case "innodb_flush_log_at_trx_commit":
			d.FlushLog = n
		case "sync_binlog":
			d.SyncBinlog = n
		case "log_bin":
			d.BinaryLog = row[1] == "ON" || row[1] == "1"
		}
	}
	return d, nil
}
