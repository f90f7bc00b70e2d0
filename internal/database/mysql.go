package database

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MySQLConnector opens sessions on a MySQL or MariaDB server. It keeps none of them. Its methods can be called concurrently.
type MySQLConnector struct {
	connector        driver.Connector
	statementTimeout time.Duration
}

// NewMySQLConnector returns the connector for a mysql:// URL. It does not connect. The
// server stops a statement that runs longer than statementTimeout; 0 means no limit.
//
// It refuses the URL parameters charset and collation. It overrules interpolateParams (parameters in the statement's text),
// multiStatements and allowAllFiles (LOAD DATA of any local file), readTimeout, maxAllowedPacket and clientFoundRows (how the server
// counts rows that a statement leaves unchanged).
func NewMySQLConnector(u URL, connectTimeout, statementTimeout time.Duration) (*MySQLConnector, error) {
	config, err := MySQLConfig(u, "")
	if err != nil {
		return nil, err
	}
	if err := checkCharset(u.DSN()); err != nil {
		return nil, fmt.Errorf("read %s: %w", u, err)
	}
	config.InterpolateParams, config.MultiStatements = false, false
	config.AllowAllFiles, config.ParseTime, config.ColumnsWithAlias = false, false, false
	config.MaxAllowedPacket = 0 // the server's
	config.ReadTimeout = 0      // a COMMIT may take any time
	config.ClientFoundRows = false
	config.Loc = time.UTC
	config.Timeout = cmp.Or(config.Timeout, connectTimeout)
	dial := newDialer(config.Timeout).DialContext
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if s, ok := ctx.Value(dialing{}).(*MySQLSession); ok && err == nil {
			s.raw, err = newSocket(conn)
			return s.raw, err
		}
		return conn, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("read %s: %s", u, withoutPassword(err))
	}
	return &MySQLConnector{connector: connector, statementTimeout: statementTimeout}, nil
}

// MySQLConfig returns the configuration of one connection to a MySQL or MariaDB server, for a client that keeps the server's
// own settings: a load, a watch or doctor. The server shows name for its sessions; "" means what the URL says.
// User, password and certificates of each connection are those that the files of the URL hold then.
func MySQLConfig(u URL, name string) (*mysql.Config, error) {
	config, err := mysqlConfig(u)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", u, err)
	}
	if u.read != nil || u.tls != (TLSFiles{}) {
		err = config.Apply(mysql.BeforeConnect(func(_ context.Context, c *mysql.Config) error {
			now, err := u.current()
			if err != nil {
				return err
			}
			current, err := mysqlConfig(now)
			if err != nil {
				return fmt.Errorf("read %s: %w", now, err)
			}
			c.User, c.Passwd, c.TLS = current.User, current.Passwd, current.TLS
			return nil
		}))
		if err != nil {
			return nil, err
		}
	}
	config.Logger = &mysql.NopLogger{}
	if name != "" {
		config.ConnectionAttributes = "program_name:" + name
	}
	return config, nil
}

// mysqlConfig reads the address and its files. Parameters that the driver does not know are variables of the session.
func mysqlConfig(u URL) (*mysql.Config, error) {
	config, err := mysql.ParseDSN(u.DSN())
	if err != nil {
		return nil, errors.New(withoutPassword(err))
	}
	if u.tls == (TLSFiles{}) {
		return config, nil
	}
	if config.TLSConfig != "" && config.TLSConfig != "true" {
		return nil, fmt.Errorf("ssl-ca, ssl-cert and ssl-key check the server's certificate; write tls=true instead of tls=%s", config.TLSConfig)
	}
	host, _, err := net.SplitHostPort(config.Addr)
	if err != nil {
		return nil, errors.New("ssl-ca, ssl-cert and ssl-key need a host; a socket has no TLS")
	}
	config.TLS, err = u.tls.Config(host)
	return config, err
}

// ConnectMySQL opens a session with the server's own settings. Its Server and ID are not set.
func ConnectMySQL(ctx context.Context, config *mysql.Config) (*MySQLSession, error) {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, errors.New(withoutPassword(err))
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &MySQLSession{MySQLConn: conn.(MySQLConn)}, nil
}

// withoutPassword returns the text of a driver's error about a DSN only if it cannot contain the password.
func withoutPassword(err error) string {
	if text := err.Error(); strings.HasPrefix(text, "invalid DSN") || strings.HasPrefix(text, "invalid value / unknown config name") {
		return text
	}
	return "a parameter has a value that cannot be read"
}

// checkCharset refuses a connection character set other than utf8mb4.
func checkCharset(dsn string) error {
	_, query, _ := strings.Cut(dsn[strings.LastIndexByte(dsn, '/')+1:], "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return errEscape
	}
	if charset := values.Get("charset"); charset != "" && charset != "utf8mb4" {
		return errors.New("charset must be utf8mb4, because sessions use UTF-8 and the server converts other columns; remove it")
	}
	if values.Has("collation") {
		return errors.New("collation cannot be set, because comparisons use the column's; remove it")
	}
	return nil
}

// MySQLConn is a connection of the driver.
type MySQLConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// MySQLSession is one connection. One goroutine uses it at a time.
type MySQLSession struct {
	MySQLConn
	ID     uint64 // the server's number for the connection
	User   string // as the server sees it
	Server MySQLServer
	raw    *socket // of Connect; nil: of another function
}

// dialing is the key of a context: the session whose connection is being opened.
type dialing struct{}

// Interrupt ends the connection that Connect has opened, and the statement on it fails. It may be called at any time.
func (s *MySQLSession) Interrupt() { _ = s.raw.Close() }

// Connect opens a session: utf8mb4, UTC, READ COMMITTED, InnoDB for new tables, results without a limit, and a strict sql_mode. In it the
// id 0 stays 0, and a backslash in a string is a character, as in the SQL standard. The server's other modes stay. Servers that are too
// old are refused.
func (m *MySQLConnector) Connect(ctx context.Context) (*MySQLSession, error) {
	s := &MySQLSession{}
	conn, err := m.connector.Connect(context.WithValue(ctx, dialing{}, s))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s.MySQLConn = conn.(MySQLConn)
	if err := s.setUp(ctx, m.statementTimeout); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// Kill ends a connection and its current statement over a separate connection. It succeeds if the connection has already ended.
func (m *MySQLConnector) Kill(ctx context.Context, id uint64) error {
	conn, err := m.connector.Connect(ctx)
	if err != nil {
		return fmt.Errorf("kill connection %d: %w", id, err)
	}
	defer conn.Close()
	err = (&MySQLSession{MySQLConn: conn.(MySQLConn)}).Exec(ctx, "KILL "+strconv.FormatUint(id, 10))
	if refused, ok := errors.AsType[*mysql.MySQLError](err); ok && refused.Number == errNoSuchThread {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill connection %d: %w", id, err)
	}
	return nil
}

// Error numbers of the server that this file distinguishes.
const (
	errNoSuchThread  = 1094
	errUnknownEngine = 1286
)

func (s *MySQLSession) setUp(ctx context.Context, statementTimeout time.Duration) error {
	rows, err := s.Query(ctx, "SELECT VERSION(), CONNECTION_ID(), @@SESSION.sql_mode, CURRENT_USER()")
	if err != nil {
		return fmt.Errorf("read the server's version: %w", err)
	}
	if len(rows) != 1 {
		return errors.New("read the server's version: no answer")
	}
	if s.Server, err = parseMySQLServer(rows[0][0]); err != nil {
		return err
	}
	s.User = rows[0][3]
	if s.ID, err = strconv.ParseUint(rows[0][1], 10, 64); err != nil {
		return fmt.Errorf("read the connection's number: %w", err)
	}
	settings := []string{
		"NAMES utf8mb4",
		"time_zone = '+00:00'",
		"sql_mode = '" + pinnedMode(rows[0][2]) + "'",
		"default_storage_engine = InnoDB",
		"sql_select_limit = DEFAULT",
		"sql_quote_show_create = 1",
		"optimizer_switch = 'derived_merge=on'",
		s.Server.timeoutSetting(statementTimeout),
	}
	if s.Server.cachesStatistics() {
		settings = append(settings, "information_schema_stats_expiry = 0")
	}
	if err := s.Exec(ctx, "SET "+strings.Join(settings, ", ")); err != nil {
		if refused, ok := errors.AsType[*mysql.MySQLError](err); ok && refused.Number == errUnknownEngine {
			return fmt.Errorf("the server has no InnoDB, which is required; start it without skip-innodb (%w)", err)
		}
		return fmt.Errorf("set the session's variables: %w", err)
	}
	if err := s.Exec(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
		return fmt.Errorf("set the isolation level: %w", err)
	}
	return nil
}

// pinnedMode returns the server's sql_mode with the modes that this program relies on.
func pinnedMode(mode string) string {
	var modes []string
	strict := false
	for name := range strings.SplitSeq(mode, ",") {
		switch name {
		case "", "NO_BACKSLASH_ESCAPES", "NO_AUTO_VALUE_ON_ZERO", "EMPTY_STRING_IS_NULL": // the last would bind "" as NULL
			continue
		case "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES":
			strict = true
		}
		modes = append(modes, name)
	}
	modes = append(modes, "NO_BACKSLASH_ESCAPES", "NO_AUTO_VALUE_ON_ZERO") // the latter stores the id 0 as 0
	if !strict {
		modes = append(modes, "STRICT_TRANS_TABLES")
	}
	return strings.Join(modes, ",")
}

// Exec runs one statement without parameters.
func (s *MySQLSession) Exec(ctx context.Context, sql string) error {
	_, err := s.ExecContext(ctx, sql, nil)
	return err
}

// Query returns the rows of a small result as text, NULL as "". Parameters require a configuration with InterpolateParams.
func (s *MySQLSession) Query(ctx context.Context, sql string, params ...driver.Value) ([][]string, error) {
	named := make([]driver.NamedValue, len(params))
	for i, value := range params {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: value}
	}
	rows, err := s.QueryContext(ctx, sql, named)
	if err != nil {
		return nil, err
	}
	all, err := ReadTexts(rows)
	return all, errors.Join(err, rows.Close())
}

// ReadTexts returns the rows of a small result as text, NULL as "". The caller closes rows.
func ReadTexts(rows driver.Rows) ([][]string, error) {
	var all [][]string
	values := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(values); err != nil {
			if errors.Is(err, io.EOF) {
				return all, nil
			}
			return nil, err
		}
		row := make([]string, len(values))
		for i, value := range values {
			switch v := value.(type) {
			case nil:
			case []byte:
				row[i] = string(v)
			default:
				row[i] = fmt.Sprint(v)
			}
		}
		all = append(all, row)
	}
}

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

// AtLeast reports whether the version is at least that one. MySQL and MariaDB count independently.
func (s MySQLServer) AtLeast(major, minor, patch int) bool {
	return slices.Compare(s.version[:], []int{major, minor, patch}) >= 0
}

// DescendingIndexes reports whether an index can have descending columns. Older servers ignore DESC in CREATE INDEX.
func (s MySQLServer) DescendingIndexes() bool {
	if s.MariaDB {
		return s.AtLeast(10, 8, 0)
	}
	return s.AtLeast(8, 0, 0)
}

// Explain returns the keywords that ask for the plan as a table, and for the rewritten statement as a warning.
func (s MySQLServer) Explain() string {
	if s.MariaDB {
		return "EXPLAIN EXTENDED "
	}
	return "EXPLAIN FORMAT=TRADITIONAL "
}

// cachesStatistics reports whether information_schema can be up to a day old.
func (s MySQLServer) cachesStatistics() bool { return !s.MariaDB && s.AtLeast(8, 0, 3) }

// timeoutSetting returns the assignment that limits a statement. MySQL limits SELECTs only.
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

// TLSFiles names the PEM files of a client's TLS connections: the authorities that it trusts, and
// its own certificate with its key. "" stands for none.
type TLSFiles struct {
	CA, Cert, Key string
}

// Config reads the files. Without CA the authorities of the system are trusted.
func (f TLSFiles) Config(serverName string) (*tls.Config, error) {
	config := &tls.Config{ServerName: serverName, MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("read the certificate authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read the certificate authorities: %s holds no certificate in PEM", f.CA)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("a client's certificate and its key are given together")
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("read the client's certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
