package database

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MySQLServer is what answers at a mysql:// URL.
type MySQLServer struct {
	MariaDB bool // else MySQL, or what calls itself so
	Major   int
	Minor   int
	Patch   int
	Text    string // VERSION() as the server writes it
}

var mysqlVersion = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)`)

// parseMySQLServer reads VERSION() and refuses a server that is too old.
func parseMySQLServer(text string) (MySQLServer, error) {
	s := MySQLServer{Text: text, MariaDB: strings.Contains(strings.ToLower(text), "mariadb")}
	// Proxies show MariaDB as what old clients take for a version of MySQL.
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
		return s, fmt.Errorf("the server is %s: MySQL 5.7.8 or MariaDB 10.6 is the oldest that works", text)
	}
	return s, nil
}

// AtLeast reports whether the version is that or a later one, of the server's own
// count: MySQL's and MariaDB's numbers say nothing about each other.
func (s MySQLServer) AtLeast(major, minor, patch int) bool {
	if s.Major != major {
		return s.Major > major
	}
	if s.Minor != minor {
		return s.Minor > minor
	}
	return s.Patch >= patch
}

// DescendingIndexes reports whether an index can be kept in descending order. Older
// servers read DESC in CREATE INDEX and forget it.
func (s MySQLServer) DescendingIndexes() bool {
	if s.MariaDB {
		return s.AtLeast(10, 8, 0)
	}
	return s.AtLeast(8, 0, 0)
}

// Explain returns the words that ask for the plan as a table, with the statement as
// the server understood it as a warning.
func (s MySQLServer) Explain() string {
	if s.MariaDB {
		return "EXPLAIN EXTENDED "
	}
	return "EXPLAIN FORMAT=TRADITIONAL "
}

// cachesStatistics reports whether information_schema shows figures that are up
// to a day old.
func (s MySQLServer) cachesStatistics() bool { return !s.MariaDB && s.AtLeast(8, 0, 3) }

// timeoutSetting is the assignment that bounds a statement. MySQL bounds SELECTs
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

// MySQLDurability is what a server's settings make of a commit.
type MySQLDurability struct {
	FlushLog   int  // innodb_flush_log_at_trx_commit: 1 syncs each commit, 2 writes it, 0 neither; -1 unknown
	BinaryLog  bool // log_bin
	SyncBinlog int  // sync_binlog: 1 syncs the binary log with each commit; -1 unknown
}

// Loss says in words what a commit that was confirmed may lose, "" for nothing.
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

// readDurability reads the settings. What a server does not tell is unknown.
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
