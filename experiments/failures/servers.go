//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"spillway/experiments/process"
)

// nginx starts nginx with one worker and the content of an http block, on that address.
func (s *stage) nginx(address, http string) *process.Process {
	dir := s.folder("nginx", &syscall.Credential{})
	file := s.write("nginx/nginx.conf", fmt.Sprintf(`user root; daemon off; worker_processes 1; pid nginx.pid; error_log stderr; worker_rlimit_nofile 65536;
events { worker_connections 16384; }
http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
keepalive_requests 100000000;
%s
}
`, http))
	return s.start(process.Command{
		Name: "nginx", Args: []string{s.find("nginx", "nginx", "/usr/sbin/nginx"), "-p", dir, "-c", file, "-e", "stderr"}, Cores: workCores,
		Ready: s.answers(address),
	})
}

// apache starts Apache with PHP: prefork, because Debian's PHP is not built for threads. The script is the page of every path.
func (s *stage) apache(address, php string, cores []int) *process.Process {
	dir := s.folder("apache", s.as("www-data"))
	s.write("apache/html/index.php", php)
	s.write("apache/php.ini", "zend_extension = opcache\nopcache.enable = 1\ndisplay_errors = Off\nlog_errors = On\nextension = pgsql\n")
	module := s.find("libphp", "libapache2-mod-php php-pgsql", "/usr/lib/apache2/modules/libphp*.so")
	file := s.write("apache/apache.conf", fmt.Sprintf(`ServerRoot "%[1]s"
ServerName localhost
Listen %[2]s
PidFile "%[1]s/apache.pid"
DefaultRuntimeDir "%[1]s"
Mutex pthread
ErrorLog "|/bin/cat >&2"
LogLevel error php:notice
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule php_module %[3]s
ServerLimit 256
MaxRequestWorkers 256
StartServers 32
MinSpareServers 16
MaxSpareServers 256
MaxConnectionsPerChild 0
ListenBacklog 4096
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 60
PHPINIDir "%[1]s"
DocumentRoot "%[1]s/html"
<Directory "%[1]s/html">
Require all granted
SetHandler application/x-httpd-php
</Directory>
`, dir, address, module))
	return s.start(process.Command{
		Name: "apache", Args: []string{s.find("apache2", "apache2-bin", "/usr/sbin/apache2"), "-DFOREGROUND", "-f", file},
		Env:  []string{"PHP_INI_SCAN_DIR="},
		User: s.as("www-data"), Cores: cores, Ready: s.answers(address), Stop: syscall.SIGTERM,
	})
}

// A database is a started database server.
type database struct {
	*process.Process
	address, url string
}

// flags watch the database and its process.
func (d *database) flags() []string {
	if d == nil || d.Process == nil {
		return nil
	}
	return append(watch(d.Process), "--watch-db", "db="+d.url)
}

// postgres starts PostgreSQL with tables and settings, "name=value".
func (s *stage) postgres(tables string, settings ...string) *database {
	dir := filepath.Dir(s.find("postgres", "postgresql", "/usr/lib/postgresql/*/bin/postgres"))
	user := s.as("postgres")
	data := filepath.Join(s.folder("postgres", user), "data")
	s.runAs(user, filepath.Join(dir, "initdb"), "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
	s.append(filepath.Join(data, "pg_hba.conf"), "host all all 10.0.0.0/8 trust\n")
	address := hostAddress + ":5432"
	args := []string{filepath.Join(dir, "postgres"), "-D", data}
	for _, one := range append([]string{
		"listen_addresses=*", "unix_socket_directories=", "autovacuum=off",
		"shared_buffers=128MB",
	}, settings...) {
		args = append(args, "-c", one)
	}
	p := s.start(process.Command{
		Name: "db", Args: args, User: user, Stop: syscall.SIGINT, Cores: workCores,
		Ready: func(context.Context) error {
			return s.try(s.find("psql", "postgresql-client", ""), "-XqtA", "-h", hostAddress, "-U", "postgres", "-c", "SELECT 1")
		},
	})
	s.inside(s.network, s.find("psql", "postgresql-client", ""), "-Xq", "-h", hostAddress, "-U", "postgres", "-v",
		"ON_ERROR_STOP=1", "-f", s.write("tables.sql", tables))
	return &database{p, address, "postgres://postgres@" + address + "/postgres?sslmode=disable"}
}

// pgbouncer starts a pool of sessions in front of the PostgreSQL at a host.
func (s *stage) pgbouncer(host string) (*process.Process, string) {
	user, address := s.as("postgres"), hostAddress+":6432"
	file := s.write("pgbouncer.ini", `[databases]
postgres = host=`+host+` port=5432 dbname=postgres user=postgres
[pgbouncer]
listen_addr = `+hostAddress+`
listen_port = 6432
unix_socket_dir =
auth_type = any
pool_mode = session
max_client_conn = 10000
default_pool_size = 50
listen_backlog = 4096
log_connections = 0
log_disconnections = 0
`)
	return s.start(process.Command{
		Name: "pgbouncer", Args: []string{s.find("pgbouncer", "pgbouncer", "/usr/sbin/pgbouncer"), file}, User: user,
		Stop: syscall.SIGINT, Cores: loadCores,
		Ready: s.answers(address),
	}), address
}

// emptyMySQL makes an empty data folder and returns how its server is started: that of MariaDB, or of the stories, MySQL 5.7.
func (s *stage) emptyMySQL(engine string) (args []string, data string, owner *syscall.Credential) {
	if engine == "mysql57" {
		cache, err := os.UserCacheDir()
		s.check(err)
		server := s.find("MySQL 5.7", "maven, then scripts/mysql.sh", filepath.Join(cache, "spillway/mysql-5.7*/bin/mysqld"))
		home := filepath.Dir(filepath.Dir(server))
		data = filepath.Join(s.dir, "mysql")
		s.runAs(nil, "cp", "-r", filepath.Join(home, "data"), data)
		return []string{server, "--no-defaults", "--basedir=" + home, "--user=root"}, data, nil
	}
	owner = s.as("mysql")
	data = s.folder("mariadb", owner)
	s.runAs(owner, s.find("mariadb-install-db", "mariadb-server", ""), "--no-defaults", "--datadir="+data,
		"--auth-root-authentication-method=normal", "--skip-test-db")
	return []string{s.find("mariadbd", "mariadb-server", "/usr/sbin/mariadbd"), "--no-defaults"}, data, owner
}

// mysql starts MariaDB or MySQL with tables and options. A disk of that many milliseconds per fsync is made by a library.
func (s *stage) mysql(engine, fsyncMs, group, tables string, options ...string) *database {
	args, data, owner := s.emptyMySQL(engine)
	var env []string
	if fsyncMs != "0" {
		library := filepath.Join(s.dir, "slow_fsync.so")
		s.runAs(nil, "cc", "-shared", "-fPIC", "-O2", "-o", library, s.abs("experiments/inserts/slow_fsync.c"), "-ldl")
		env = []string{"LD_PRELOAD=" + library, "SLOW_FSYNC_MS=" + fsyncMs}
	}
	address := hostAddress + ":3306"
	init := s.write("init.sql", "CREATE DATABASE shop;\nCREATE USER app@'%';\nGRANT ALL ON *.* TO app@'%';\n")
	args = append(append(args, "--datadir="+data, "--bind-address="+hostAddress, "--port=3306",
		"--socket="+data+"/sock", "--innodb-buffer-pool-size=256M", "--innodb-log-file-size=256M", "--skip-name-resolve",
		"--back-log=4096", "--init-file="+init), options...)
	client := []string{s.find("mariadb", "mariadb-client", ""), "--no-defaults", "-h", hostAddress, "-P", "3306", "-u", "app", "shop", "-e"}
	p := s.start(process.Command{
		Name: "db", Args: args, Env: env, User: owner, Group: group, Cores: workCores,
		Ready: func(context.Context) error { return s.try(append(client, "SELECT 1")...) },
	})
	if tables != "" {
		s.inside(s.network, append(client, "source "+s.write("tables.sql", tables))...)
	}
	return &database{p, address, "mysql://app@" + address + "/shop"}
}

// redis starts Redis without persistence, in a namespace.
func (s *stage) redis(network *process.Process, address string) *process.Process {
	host, port, _ := strings.Cut(address, ":")
	pid := 0
	if network != nil {
		pid = network.PID
	}
	return s.start(process.Command{
		Name: "redis", Args: []string{
			s.find("redis-server", "redis-server", ""), "--bind", host, "--port", port, "--save", "",
			"--appendonly", "no", "--protected-mode", "no",
		},
		Cores: workCores, Network: pid, Ready: s.answersIn(network, address),
	})
}

// service starts one of the stories' services.
func (s *stage) service(name, address string, files int, flags ...string) *process.Process {
	return s.start(process.Command{
		Name: "app", Args: append([]string{s.abs(s.o.services), name, "--listen", address}, flags...), Files: files,
		Cores: workCores, Ready: s.answers(address),
	})
}

// serve starts spillway with a configuration.
func (s *stage) serve(address, config string) *process.Process {
	file := s.write("spillway.yaml", config)
	return s.start(process.Command{
		Name: "app", Args: []string{
			s.abs(s.o.spillway), "serve", file, "--listen", address, "--admin", "127.0.0.1:8081", "--data",
			filepath.Join(s.dir, "data"),
		},
		Cores: workCores, Ready: func(context.Context) error {
			return s.try("curl", "-sf", "-o", filepath.Join(s.dir, "readyz"), "http://127.0.0.1:8081/readyz")
		},
	})
}
