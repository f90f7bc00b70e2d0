package apptest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// postgresBinaries is where Debian installs PostgreSQL's programs, outside of PATH.
const postgresBinaries = "/usr/lib/postgresql/*/bin/"

// withoutTLS ends the URLs of PostgreSQL. By default, a client asks for TLS first, and connects
// a second time when that is refused.
const withoutTLS = "?sslmode=disable"

// PostgresServer is a separate PostgreSQL cluster with superuser postgres and no password.
// It listens on a loopback port and on a Unix socket in its directory.
type PostgresServer struct {
	*Server
	databases atomic.Int64 // created by CreateDatabase
}

// Postgres starts a PostgreSQL server for the duration of a test. Settings are lines of
// postgresql.conf, "name=value". They override the defaults, which use little memory and
// disable fsync.
func Postgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	pg, err := StartPostgres(settings...)
	if err != nil {
		t.Fatal(err)
	}
	pg.closeAfter(t)
	return pg
}

// StartPostgres is Postgres for TestMain. The caller must call Close.
func StartPostgres(settings ...string) (*PostgresServer, error) {
	binary, err := findBinary("postgres", "postgresql", postgresBinaries+"postgres")
	if err != nil {
		return nil, err
	}
	if binary, err = filepath.EvalSymlinks(binary); err != nil { // initdb is in the directory of the real file
		return nil, err
	}
	credential, err := unprivileged("postgres")
	if err != nil {
		return nil, fmt.Errorf("find the user that runs PostgreSQL: %w", err)
	}
	dir, err := newDirectory(credential)
	if err != nil {
		return nil, fmt.Errorf("create a directory for PostgreSQL: %w", err)
	}
	pg, err := newPostgres(binary, dir, credential, settings)
	if err == nil {
		err = pg.Start()
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return pg, nil
}

func newPostgres(binary, dir string, credential *syscall.Credential, settings []string) (*PostgresServer, error) {
	addr, err := FreeAddr()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initdb := filepath.Join(filepath.Dir(binary), "initdb")
	options := []string{"--no-sync", "--no-instructions", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8"}
	err = copyTemplate(initdb, strings.Join(options, " "), credential, data, func(to string) error {
		return initialize(credential, filepath.Dir(to), nil, initdb, append(options, "--pgdata="+to)...)
	})
	if err != nil {
		return nil, err
	}
	pg := &PostgresServer{Server: &Server{
		name:       "postgres",
		binary:     binary,
		args:       postgresArgs(data, dir, addr, settings),
		dir:        dir,
		addr:       addr,
		scheme:     "postgres://postgres@",
		query:      withoutTLS,
		credential: credential,
		stopSignal: syscall.SIGINT, // fast shutdown: ends the sessions
	}}
	pg.ready = func(ctx context.Context) error { return pingPostgres(ctx, pg.URL("postgres")) }
	pg.release = func() { releaseMemory(data) }
	return pg, nil
}

// releaseMemory removes the System V shared memory of a PostgreSQL that was killed and did not
// start again. The seventh line of its postmaster.pid has the key and the id.
func releaseMemory(data string) {
	text, _ := os.ReadFile(filepath.Join(data, "postmaster.pid")) // absent after a stop
	if lines := strings.Split(string(text), "\n"); len(lines) > 6 {
		var key, id int
		if n, _ := fmt.Sscan(lines[6], &key, &id); n == 2 {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	}
}

func postgresArgs(data, socketDir, addr string, settings []string) []string {
	args := []string{"-D", data}
	defaults := []string{
		"listen_addresses=127.0.0.1", "port=" + portOf(addr), "unix_socket_directories=" + socketDir,
		"fsync=off", "synchronous_commit=off", "full_page_writes=off",
		"dynamic_shared_memory_type=mmap", // in the data directory: nothing is left in /dev/shm after a kill
		"wal_level=minimal", "max_wal_senders=0", "shared_buffers=64MB", "max_connections=100",
		"jit=off", "autovacuum=off", // statements plan and cost the same each time
	}
	for _, setting := range append(defaults, settings...) {
		args = append(args, "-c", setting)
	}
	return args
}

func pingPostgres(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx)
}

// SocketURL returns the URL of a database through the Unix socket.
func (pg *PostgresServer) SocketURL(database string) string {
	return "postgres://postgres@/" + database + "?host=" + pg.dir + "&port=" + portOf(pg.addr)
}

// DatabaseName returns the name of the database in a URL.
func DatabaseName(url string) string {
	name, _, _ := strings.Cut(url[strings.LastIndexByte(url, '/')+1:], "?")
	return name
}

// CreateDatabase creates an empty database, which exists until the server is closed, and
// returns its URL.
func (pg *PostgresServer) CreateDatabase(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", pg.databases.Add(1))
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, pg.URL("postgres"))
	if err != nil {
		t.Fatalf("create a database: %v", err)
	}
	defer conn.Close(ctx)
	create := "CREATE DATABASE " + name
	major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	if n, err := strconv.Atoi(major); err == nil && n >= 15 {
		create += " STRATEGY FILE_COPY" // half the work of the default, and the only one of earlier versions
	}
	if _, err := conn.Exec(ctx, create); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	return pg.URL(name)
}
