package apptest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PgBouncer starts a connection pooler in front of pg for the duration of a test. mode is
// its pool_mode: "session", "transaction" or "statement". Settings are lines of pgbouncer.ini.
// The databases of pg have the same names in PgBouncer.
func PgBouncer(t testing.TB, pg *PostgresServer, mode string, settings ...string) *Server {
	t.Helper()
	s, err := StartPgBouncer(pg, mode, settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t)
	return s
}

// StartPgBouncer is PgBouncer for TestMain. The caller must call Close.
func StartPgBouncer(pg *PostgresServer, mode string, settings ...string) (*Server, error) {
	credential, err := unprivileged("postgres")
	if err != nil {
		return nil, fmt.Errorf("find the user that runs PgBouncer: %w", err)
	}
	s := &Server{name: "pgbouncer", scheme: "postgres://postgres@", query: withoutTLS, credential: credential, stopSignal: syscall.SIGTERM}
	s.ready = func(ctx context.Context) error { return pingPostgres(ctx, s.URL("postgres")) }
	prepare := func() error {
		users, err := s.writeFile("users", "\"postgres\" \"\"\n")
		if err != nil {
			return err
		}
		config := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = %s
default_pool_size = 10
max_client_conn = 1000
server_login_retry = 0.1
%s
`, portOf(pg.addr), portOf(s.addr), users, mode, strings.Join(settings, "\n"))
		file, err := s.writeFile("pgbouncer.ini", config)
		s.args = []string{file}
		return err
	}
	return s, s.setUp("pgbouncer", "/usr/sbin/pgbouncer", prepare)
}

// Nginx starts nginx for the duration of a test. The configuration is the content of the
// http block. In it {addr} is replaced by the address to listen on, and {dir} by the
// server's directory.
func Nginx(t testing.TB, config string) *Server {
	t.Helper()
	s, err := StartNginx(config)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t)
	return s
}

// StartNginx is Nginx for TestMain. The caller must call Close.
func StartNginx(config string) (*Server, error) {
	s := &Server{name: "nginx", scheme: "http://", stopSignal: syscall.SIGTERM}
	s.ready = s.dial
	prepare := func() error {
		file := filepath.Join(s.dir, "nginx.conf")
		s.args = []string{"-p", s.dir, "-c", file, "-e", "stderr"}
		user := ""
		if os.Geteuid() == 0 {
			user = "user root;\n" // the workers write to a directory that only root can enter
		}
		text := user + `daemon off;
worker_processes 1;
pid {dir}/nginx.pid;
error_log stderr;
events { worker_connections 4096; }
http {
access_log off;
client_body_temp_path {dir}/body;
proxy_temp_path {dir}/proxy;
fastcgi_temp_path {dir}/fastcgi;
uwsgi_temp_path {dir}/uwsgi;
scgi_temp_path {dir}/scgi;
` + config + "\n}\n"
		text = strings.NewReplacer("{dir}", s.dir, "{addr}", s.addr).Replace(text)
		return os.WriteFile(file, []byte(text), 0o600)
	}
	return s, s.setUp("nginx-light", "/usr/sbin/nginx", prepare)
}

// Redis starts a Redis server without persistence for the duration of a test. Further
// arguments are command-line options ("--maxmemory", "1gb").
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := StartRedis(args...)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t)
	return s
}

// StartRedis is Redis for TestMain. The caller must call Close.
func StartRedis(args ...string) (*Server, error) {
	s := &Server{name: "redis-server", scheme: "redis://", stopSignal: syscall.SIGTERM}
	s.ready = s.pingRedis
	prepare := func() error {
		s.args = append([]string{
			"--bind", "127.0.0.1", "--port", portOf(s.addr), "--dir", s.dir, "--save", "", "--appendonly", "no",
		}, args...)
		return nil
	}
	return s, s.setUp("redis-server", "/usr/bin/redis-server", prepare)
}

// RedisAt is Redis with a clock that is ahead by offset. Server.SetClock changes it.
func RedisAt(t testing.TB, offset time.Duration, args ...string) *Server {
	t.Helper()
	s := Redis(t, args...)
	s.SetClock(t, offset)
	return s
}

// setUp finds the program, assigns a directory and an address, calls prepare, which writes
// the server's files and arguments, and starts the server. After an error it removes the
// directory.
func (s *Server) setUp(debianPackage, pattern string, prepare func() error) error {
	var err error
	if s.binary, err = findBinary(s.name, debianPackage, pattern); err != nil {
		return err
	}
	return s.setUpAt(prepare)
}

// setUpAt is setUp for a program whose path is known.
func (s *Server) setUpAt(prepare func() error) error {
	var err error
	if s.addr, err = FreeAddr(); err != nil {
		return err
	}
	if s.dir, err = newDirectory(s.credential); err != nil {
		return fmt.Errorf("create a directory for %s: %w", s.name, err)
	}
	if err = prepare(); err == nil {
		err = s.Start()
	}
	if err != nil {
		_ = os.RemoveAll(s.dir)
	}
	return err
}

func (s *Server) dial(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (s *Server) pingRedis(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if line != "+PONG\r\n" {
		return fmt.Errorf("unexpected answer %q", line)
	}
	return nil
}

// portOf returns the port of a host:port address.
func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
