package apptest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// MySQLVariable names the environment variable that decides which server MySQL starts. It
// is unset or empty for MariaDB, "galera" for the first node of a MariaDB Galera cluster,
// or else the directory of an unpacked MySQL server, as scripts/mysql.sh prepares it.
const MySQLVariable = "SPILLWAY_MYSQL"

const galeraName = "galera"

// MySQLKind is a kind of server behind mysql:// URLs.
type MySQLKind uint8

// The kinds.
const (
	KindMariaDB MySQLKind = iota
	KindGalera
	KindMySQL
)

// KindOfMySQL returns the kind of server that MySQL starts.
func KindOfMySQL() MySQLKind {
	switch os.Getenv(MySQLVariable) {
	case "":
		return KindMariaDB
	case galeraName:
		return KindGalera
	}
	return KindMySQL
}

// MySQL starts the server that MySQLVariable names for the duration of a test. As with
// MariaDB, it accepts user root without a password from loopback, has an empty database
// named test, and settings are command-line options.
func MySQL(t testing.TB, settings ...string) *Server {
	t.Helper()
	switch KindOfMySQL() {
	case KindMariaDB:
		return MariaDB(t, settings...)
	case KindGalera:
		return Galera(t, settings...).Nodes[0]
	}
	s, err := startMySQL(os.Getenv(MySQLVariable), settings)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t)
	return s
}

// mysqlUsers has a server that does not resolve names accept root from loopback.
const mysqlUsers = `CREATE USER IF NOT EXISTS root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
`

// startMySQL starts the MySQL server of a directory with a copy of its empty data
// directory.
func startMySQL(home string, settings []string) (*Server, error) {
	s := &Server{name: "mysqld", scheme: "mysql://root@", stopSignal: syscall.SIGTERM, binary: filepath.Join(home, "bin", "mysqld")}
	s.ready = s.pingMySQL
	empty := filepath.Join(home, "data")
	for _, needed := range []string{s.binary, empty} {
		if _, err := os.Stat(needed); err != nil {
			return nil, fmt.Errorf("%s is not the directory of a MySQL server; run scripts/mysql.sh to get one: %w", home, err)
		}
	}
	prepare := func() error {
		if output, err := exec.Command("cp", "-r", empty, s.dataDir()).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w\n%s", empty, err, output)
		}
		if err := os.WriteFile(filepath.Join(s.dir, "users.sql"), []byte(mysqlUsers), 0o600); err != nil {
			return err
		}
		s.args = []string{
			"--no-defaults", "--basedir=" + home, "--datadir=" + s.dataDir(), "--socket=" + filepath.Join(s.dir, "socket"), "--tmpdir=" + s.dir,
			"--pid-file=" + filepath.Join(s.dir, "pid"), "--bind-address=127.0.0.1", "--port=" + portOf(s.addr), "--skip-name-resolve",
			"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M",
			"--init-file=" + filepath.Join(s.dir, "users.sql"),
		}
		if os.Geteuid() == 0 {
			s.args = append(s.args, "--user=root")
		}
		if strings.Contains(filepath.Base(home), "-8") {
			s.args = append(s.args, "--mysqlx=OFF", "--skip-log-bin")
		}
		s.args = append(s.args, settings...)
		return nil
	}
	return s, s.setUpAt(prepare)
}
