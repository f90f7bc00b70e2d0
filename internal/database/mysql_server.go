package database

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MySQLServer is the version of a server at a mysql:// URL.
type MySQLServer struct {
	MariaDB bool   // otherwise MySQL
	Text    string // VERSION() of the server

	version [3]int
}

// parseMySQLServer reads VERSION() and refuses a server that is too old.
func parseMySQLServer(text string) (MySQLServer, error) {
	s := MySQLServer{Text: text, MariaDB: strings.Contains(strings.ToLower(text), "mariadb")}
	// Proxies prefix MariaDB's version for old clients of MySQL.
	plain := strings.TrimPrefix(text, "5.5.5-")
	if _, err := fmt.Sscanf(plain, "%d.%d.%d", &s.version[0], &s.version[1], &s.version[2]); err != nil {
		return s, fmt.Errorf("the server's version %.40q cannot be read", text)
	}
	if s.MariaDB && !s.AtLeast(10, 6, 0) || !s.MariaDB && !s.AtLeast(5, 7, 8) {
		return s, fmt.Errorf("the server is %s; MySQL 5.7.8 or MariaDB 10.6 or later is required", text)
	}
	return s, nil
}

// AtLeast reports whether the version is at least that one. MySQL and MariaDB count
// independently.
func (s MySQLServer) AtLeast(major, minor, patch int) bool {
	return slices.Compare(s.version[:], []int{major, minor, patch}) >= 0
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
