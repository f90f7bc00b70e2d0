//go:build linux

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"

	"spillway/experiments/process"
)

// A database is a started database server.
type database struct {
	*process.Process
	url string
}

// postgres starts PostgreSQL in an empty directory and runs statements in it. Settings are "name=value".
func (s *stage) postgres(env, settings []string, statements ...string) (*database, error) {
	binary, err := find("postgres", "postgresql", "/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return nil, err
	}
	if binary, err = filepath.EvalSymlinks(binary); err != nil { // initdb is beside the real file
		return nil, fmt.Errorf("find postgres: %w", err)
	}
	user, err := runAs("postgres")
	if err != nil {
		return nil, err
	}
	dir, err := s.folder("postgres", user)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initdb := filepath.Join(filepath.Dir(binary), "initdb")
	if err := s.run(user, initdb, "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"); err != nil {
		return nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	args := []string{binary, "-D", data}
	for _, setting := range append([]string{
		"listen_addresses=127.0.0.1", "port=" + portOf(address), "unix_socket_directories=", "autovacuum=off",
		"shared_preload_libraries=pg_stat_statements",
	}, settings...) {
		args = append(args, "-c", setting)
	}
	url := "postgres://postgres@" + address + "/postgres?sslmode=disable"
	p, err := s.start(process.Command{
		Name: "db", Args: args, Env: env, User: user, Dir: dir, Stop: syscall.SIGINT,
		Ready: func(ctx context.Context) error { return execute(ctx, url, "SELECT 1") },
	})
	if err != nil {
		return nil, err
	}
	return &database{p, url}, execute(s.ctx, url, append([]string{"CREATE EXTENSION pg_stat_statements"}, statements...)...)
}

// execute runs statements over a connection of its own.
func execute(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// redis starts Redis without persistence.
func (s *stage) redis() (*database, error) {
	binary, err := find("redis-server", "redis-server", "/usr/bin/redis-server")
	if err != nil {
		return nil, err
	}
	address, err := process.FreeAddress()
	if err != nil {
		return nil, err
	}
	p, err := s.start(process.Command{
		Name: "redis", Args: []string{binary, "--bind", "127.0.0.1", "--port", portOf(address), "--save", "", "--appendonly", "no"},
		Ready: process.Answers(address),
	})
	return &database{p, "redis://" + address}, err
}

// nginx starts nginx with the content of the http block.
func (s *stage) nginx(workers int, http string, address string) (*process.Process, error) {
	return s.nginxAs(process.Command{Name: "nginx"}, workers, http, address)
}

// nginxAs starts nginx as the command says; its directory has the command's name.
func (s *stage) nginxAs(c process.Command, workers int, http string, address string) (*process.Process, error) {
	binary, err := find("nginx", "nginx-light", "/usr/sbin/nginx")
	if err != nil {
		return nil, err
	}
	dir, err := s.folder(c.Name, nil)
	if err != nil {
		return nil, err
	}
	file, err := s.write(c.Name+"/nginx.conf", fmt.Sprintf(`user root;
daemon off;
worker_processes %d;
pid nginx.pid;
error_log stderr;
events { worker_connections 4096; }
http {
access_log off;
client_body_temp_path body;
proxy_temp_path proxy;
fastcgi_temp_path fastcgi;
uwsgi_temp_path uwsgi;
scgi_temp_path scgi;
keepalive_requests 1000000;
%s
}
`, workers, http))
	if err != nil {
		return nil, err
	}
	c.Args, c.Ready = []string{binary, "-p", dir, "-c", file, "-e", "stderr"}, process.Answers(address)
	return s.start(c)
}

// slowDisk compiles the library that makes fsync slow and returns the environment of a process that it is to slow down.
func (s *stage) slowDisk(milliseconds int) ([]string, error) {
	source, err := filepath.Abs("experiments/inserts/slow_fsync.c")
	if err != nil {
		return nil, fmt.Errorf("find slow_fsync.c: %w", err)
	}
	library := filepath.Join(s.dir, "slow_fsync.so")
	if err := s.run(nil, "cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"); err != nil {
		return nil, err
	}
	return []string{"LD_PRELOAD=" + library, fmt.Sprintf("SLOW_FSYNC_MS=%d", milliseconds)}, nil
}
