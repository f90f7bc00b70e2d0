//go:build linux

package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib"

	"spillway/experiments/process"
)

// backend is a database server, or SQLite.
type backend struct {
	driver, address, dir string
	pid                  int // 0: the database is in the process of the program
	span                 int // rows that a slow query reads: about 2 ms of CPU
}

// store is a database of its own, with 100,000 items and an empty table for records.
type store struct {
	db            *sql.DB
	url, spillway string // for the drivers and for spillway
}

// startBackend starts a database with its defaults.
func (s *stage) startBackend(database string) (*backend, error) {
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	b := &backend{driver: database, address: address, dir: s.dir, span: 8000}
	data := filepath.Join(s.dir, "cluster")
	c := process.Command{Name: database, Stop: syscall.SIGINT}
	install := []string{"--no-defaults", "--datadir=" + data, "--auth-root-authentication-method=normal", "--skip-test-db"}
	switch database {
	case "postgres":
		binary, err := exec.LookPath("postgres")
		if err == nil {
			binary, err = filepath.EvalSymlinks(binary) // initdb is beside the file
		}
		if err != nil {
			return nil, fmt.Errorf("find postgres: %w", err)
		}
		b.span = 20000
		install = []string{
			filepath.Join(filepath.Dir(binary), "initdb"), "-D", data, "-U", "postgres", "--auth=trust",
			"--encoding=UTF8", "--locale=C",
		}
		c.Args = append([]string{binary, "-D", data, "-p", portOf(address)}, strings.Fields("-c listen_addresses=127.0.0.1 "+
			"-c unix_socket_directories= -c max_connections=300 -c shared_buffers=256MB -c max_wal_size=4GB -c checkpoint_timeout=1h")...)
	case "mysql":
		b.span, c.Stop = 10000, 0
		install = append([]string{"mariadb-install-db"}, install...)
		c.Args = append([]string{"mariadbd", "--no-defaults", "--datadir=" + data, "--port=" + portOf(address), "--socket=" + data + "/sock"},
			strings.Fields("--bind-address=127.0.0.1 --innodb-buffer-pool-size=256M --innodb-log-file-size=512M --skip-log-bin "+
				"--max-connections=300")...)
	default:
		return b, nil
	}
	if c.User, err = owner(database, data); err != nil {
		return nil, err
	}
	initialize := exec.CommandContext(s.ctx, install[0], install[1:]...)
	initialize.SysProcAttr = &syscall.SysProcAttr{Credential: c.User}
	if out, err := initialize.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", install[0], err, out)
	}
	c.Ready = func(ctx context.Context) error {
		server, err := b.open("")
		if err != nil {
			return err
		}
		defer server.db.Close()
		return server.db.PingContext(ctx)
	}
	p, err := s.start(c)
	if err == nil {
		b.pid = p.PID
	}
	return b, err
}

// owner makes a folder that belongs to the user of a database, who is not root.
func owner(name, folder string) (*syscall.Credential, error) {
	err := os.Mkdir(folder, 0o700)
	if err != nil || os.Geteuid() != 0 {
		return nil, err
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("find a user: %w", err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32) // numbers on Linux
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(folder, int(uid), int(gid))
}

// open opens a database; "": the one that always exists.
func (b *backend) open(name string) (*store, error) {
	r := &store{}
	driver := b.driver
	switch b.driver {
	case "postgres":
		driver, r.url = "pgx", "postgres://postgres@"+b.address+"/"+name+"?sslmode=disable"
		if name == "" {
			r.url = "postgres://postgres@" + b.address + "/postgres?sslmode=disable"
		}
		r.spillway = r.url
	case "mysql":
		r.url, r.spillway = "root@tcp("+b.address+")/"+name, "mysql://root@"+b.address+"/"+name
	default:
		file := filepath.Join(b.dir, name+".db")
		r.url = "file:" + file + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
		r.spillway = "sqlite:" + file
	}
	var err error
	if r.db, err = sql.Open(driver, r.url); err != nil {
		return nil, fmt.Errorf("open a database: %w", err)
	}
	r.db.SetMaxOpenConns(1)
	return r, nil
}

// create creates a database.
func (s *stage) create(b *backend, name string) (*store, error) {
	identity := "INTEGER PRIMARY KEY"
	numbers := "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 100000) SELECT n FROM s"
	switch b.driver {
	case "postgres":
		identity, numbers = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "SELECT n FROM generate_series(1, 100000) AS s(n)"
	case "mysql":
		identity, numbers = "bigint AUTO_INCREMENT PRIMARY KEY", "SELECT seq AS n FROM seq_1_to_100000"
	}
	if b.driver != "sqlite" {
		server, err := b.open("")
		if err != nil {
			return nil, err
		}
		defer server.db.Close()
		if _, err := server.db.ExecContext(s.ctx, "CREATE DATABASE "+name); err != nil {
			return nil, fmt.Errorf("create a database: %w", err)
		}
	}
	r, err := b.open(name)
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{
		"CREATE TABLE items (id bigint PRIMARY KEY, name varchar(40) NOT NULL, price double precision NOT NULL, stock bigint NOT NULL)",
		"INSERT INTO items SELECT n, 'a name of twenty-nine letters', n / 8.0, n % 1000 FROM (" + numbers + ") AS numbers",
		"CREATE TABLE records (id " + identity +
			", device bigint NOT NULL, lat double precision, lon double precision, speed double precision)",
		map[string]string{"postgres": "VACUUM ANALYZE items", "mysql": "ANALYZE TABLE items", "sqlite": "ANALYZE"}[b.driver],
	} {
		if _, err := r.db.ExecContext(s.ctx, statement); err != nil {
			return nil, fmt.Errorf("%s: %w", statement, err)
		}
	}
	return r, nil
}
