package apptest

import (
	"context"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// MariaDB starts a MariaDB server for the duration of a test. It accepts user root without
// a password from loopback, and has an empty database named test. Settings are command-line
// options ("--max-connections=10"). They override the defaults, which disable fsync.
func MariaDB(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := StartMariaDB(settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t)
	return s
}

// StartMariaDB is MariaDB for TestMain. The caller must call Close.
func StartMariaDB(settings ...string) (*Server, error) {
	install, err := findBinary("mariadb-install-db", "mariadb-server")
	if err != nil {
		return nil, err
	}
	credential, err := unprivileged("mysql")
	if err != nil {
		return nil, fmt.Errorf("find the user that runs MariaDB: %w", err)
	}
	s := &Server{name: "mariadbd", scheme: "mysql://root@", credential: credential, stopSignal: syscall.SIGTERM}
	s.ready = s.pingMySQL
	prepare := func() error {
		s.args = append(s.mariaDBArgs(), settings...)
		return s.installMariaDB(install)
	}
	return s, s.setUp("mariadb-server", "/usr/sbin/mariadbd", prepare)
}

// mariaDBArgs are the options of every MariaDB server.
func (s *Server) mariaDBArgs() []string {
	return []string{
		"--no-defaults", "--datadir=" + s.dataDir(), "--socket=" + filepath.Join(s.dir, "socket"), "--tmpdir=" + s.dir,
		"--bind-address=127.0.0.1", "--port=" + portOf(s.addr), "--skip-name-resolve",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", mariaDBLogSize,
	}
}

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }

// mariaDBLogSize keeps the redo log small, which is written when the data directory is created.
const mariaDBLogSize = "--innodb-log-file-size=16M"

// installMariaDB creates the data directory with the program mariadb-install-db.
func (s *Server) installMariaDB(install string) error {
	options := []string{"--no-defaults", "--auth-root-authentication-method=normal", "--skip-name-resolve", mariaDBLogSize}
	return copyTemplate(s.binary, strings.Join(options, " "), s.credential, s.dataDir(), func(to string) error {
		dir := filepath.Dir(to)
		return initialize(s.credential, dir, []string{"TMPDIR=" + dir}, install, append(options, "--datadir="+to)...)
	})
}

// pingMySQL connects once and creates the database test if it is missing.
func (s *Server) pingMySQL(ctx context.Context) error {
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr, config.Logger = "root", "tcp", s.addr, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return err
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	execer, ok := conn.(driver.ExecerContext)
	if !ok {
		return fmt.Errorf("the driver's connection cannot execute statements")
	}
	_, err = execer.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS test", nil)
	return err
}
