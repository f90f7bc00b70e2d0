//go:build linux

package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib"

	"spillway/experiments/process"
)

// backend is a database server, or SQLite.
type backend struct {
	ctx     context.Context
	driver  string // of database/sql
	address string
	dir     string
	pid     int // 0: the database is in the process of the program
	span    int // rows that a slow query reads: about 2 ms of CPU
}

// records is the table that stores what is posted, in a database of its own.
type records struct {
	db            *sql.DB
	url, spillway string // of the database, for the drivers and for spillway
	empty         string // statement
}

// startBackend starts a database with its defaults.
func (s *stage) startBackend(database string) (*backend, error) {
	b := &backend{ctx: s.ctx, driver: "sqlite", dir: s.dir, span: 8000}
	var err error
	if b.address, err = process.FreeAddress(); err != nil {
		return nil, err
	}
	var c process.Command
	switch data := filepath.Join(s.dir, "cluster"); database {
	case "postgres":
		b.driver, b.span = "postgres", 20000
		c, err = s.postgresCommand(data, portOf(b.address))
	case "mariadb":
		b.driver, b.span = "mysql", 10000
		c, err = s.mariadbCommand(data, portOf(b.address))
	default:
		return b, nil
	}
	if err != nil {
		return nil, err
	}
	c.Ready = func(ctx context.Context) error {
		store, err := b.open("")
		if err != nil {
			return err
		}
		defer store.db.Close()
		return store.db.PingContext(ctx)
	}
	p, err := s.start(c)
	if err == nil {
		b.pid = p.PID
	}
	return b, err
}

func (s *stage) postgresCommand(data, port string) (process.Command, error) {
	as, err := s.ownedFolder("postgres", data)
	if err != nil {
		return process.Command{}, err
	}
	binary, err := exec.LookPath("postgres")
	if err == nil {
		binary, err = filepath.EvalSymlinks(binary) // initdb is beside the file
	}
	if err != nil {
		return process.Command{}, fmt.Errorf("find postgres: %w", err)
	}
	initdb := filepath.Join(filepath.Dir(binary), "initdb")
	return process.Command{Name: "postgres", User: as, Stop: syscall.SIGINT, Args: []string{
		binary, "-D", data, "-c", "listen_addresses=127.0.0.1", "-c", "port=" + port, "-c", "unix_socket_directories=",
		"-c", "max_connections=300", "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB", "-c", "checkpoint_timeout=1h",
	}}, s.command(as, initdb, "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
}

func (s *stage) mariadbCommand(data, port string) (process.Command, error) {
	as, err := s.ownedFolder("mysql", data)
	if err != nil {
		return process.Command{}, err
	}
	return process.Command{Name: "mariadb", User: as, Args: []string{
		"mariadbd", "--no-defaults", "--datadir=" + data, "--bind-address=127.0.0.1", "--port=" + port, "--socket=" + data + "/sock",
		"--innodb-buffer-pool-size=256M", "--innodb-log-file-size=512M", "--skip-log-bin", "--max-connections=300",
	}}, s.command(as, "mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
}

// ownedFolder makes a folder that belongs to a user.
func (s *stage) ownedFolder(name, path string) (*syscall.Credential, error) {
	as, err := runAs(name)
	if err == nil {
		err = os.Mkdir(path, 0o700)
	}
	if err == nil && as != nil {
		err = os.Chown(path, int(as.Uid), int(as.Gid))
	}
	if err != nil {
		return nil, fmt.Errorf("make a folder for %s: %w", name, err)
	}
	return as, nil
}

// open opens a database of the server; "": the one that always exists.
func (b *backend) open(name string) (*records, error) {
	r := &records{empty: "TRUNCATE TABLE records"}
	driver := b.driver
	switch b.driver {
	case "postgres":
		driver = "pgx"
		r.url = "postgres://postgres@" + b.address + "/" + or(name, "postgres") + "?sslmode=disable"
		r.spillway = r.url
	case "mysql":
		r.url = "root@tcp(" + b.address + ")/" + or(name, "mysql")
		r.spillway = "mysql://root@" + b.address + "/" + name
	default:
		file := filepath.Join(b.dir, name+".db")
		r.url = "file:" + file + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
		r.spillway, r.empty = "sqlite:"+file, "DELETE FROM records"
	}
	var err error
	if r.db, err = sql.Open(driver, r.url); err != nil {
		return nil, fmt.Errorf("open a database: %w", err)
	}
	r.db.SetMaxOpenConns(1)
	return r, nil
}

func or(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

// create creates a database with 100,000 items and an empty table for records.
func (b *backend) create(name string) (*records, error) {
	identity := map[string]string{
		"postgres": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
		"sqlite": "INTEGER PRIMARY KEY",
	}[b.driver]
	numbers := map[string]string{
		"postgres": "SELECT n FROM generate_series(1, 100000) AS s(n)", "mysql": "SELECT seq AS n FROM seq_1_to_100000",
		"sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 100000) SELECT n FROM s",
	}[b.driver]
	if b.driver != "sqlite" {
		server, err := b.open("")
		if err != nil {
			return nil, err
		}
		defer server.db.Close()
		if _, err := server.db.ExecContext(b.ctx, "CREATE DATABASE "+name); err != nil {
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
		map[string]string{"postgres": "VACUUM ANALYZE items"}[b.driver],
	} {
		if statement == "" {
			continue
		}
		if _, err := r.db.ExecContext(b.ctx, statement); err != nil {
			return nil, fmt.Errorf("%s: %w", statement, err)
		}
	}
	return r, nil
}

// queriesAndStream is the configuration of q, slow and w.
func queriesAndStream(b *backend) string {
	slow := fmt.Sprintf("%s:id AND id <= :id + %d", selectSlow, b.span)
	return "queries:\n" +
		"  - {path: /q, sql: '" + selectItem + ":id', params: {id: integer}, one: true}\n" +
		"  - {path: /slow, sql: '" + slow + "', params: {id: integer}, one: true, timeout: 10s}\n" +
		"streams:\n" +
		"  - {path: /w, table: records, columns: {device: {type: integer, required: true}, lat: real, lon: real, speed: real}}\n"
}

// clear empties the table.
func (r *records) clear(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if _, err := r.db.ExecContext(ctx, r.empty); err != nil {
		return fmt.Errorf("empty a table: %w", err)
	}
	return nil
}

// check makes sure that the table has at least as many records as were answered.
func (r *records) check(ctx context.Context, workload string, answered int64) error {
	if r == nil || workload != "w" {
		return nil
	}
	var stored int64
	if err := r.db.QueryRowContext(ctx, "SELECT count(*) FROM records").Scan(&stored); err != nil {
		return fmt.Errorf("count the records: %w", err)
	}
	if stored < answered {
		return fmt.Errorf("%d records were answered and %d are stored", answered, stored)
	}
	return nil
}
