#!/usr/bin/env bash
# sysbench.sh [SECONDS [ROUNDS]]: sysbench's oltp_insert and the same INSERT by spillway load
# in turn, over 1, 50 and 1,000 connections on one MariaDB, which waits for the disk (=1)
# and then for the system only (=2). It prints inserts a second and their ratio. The server
# runs from a temporary folder; the table is emptied before each run.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-8}
rounds=${2:-1}
spillway=$PWD/bin/spillway
for program in sysbench mariadb mariadb-install-db /usr/sbin/mariadbd "$spillway"; do
	command -v "$program" >/dev/null || {
		echo "sysbench.sh: $program is missing: make build, apt-get install mariadb-server sysbench" >&2
		exit 2
	}
done
folder=$(mktemp -d /tmp/spillway-sysbench.XXXXXX)
chmod 755 "$folder"
server=

stop() {
	local status=$?
	trap '' INT TERM
	if [ -n "$server" ]; then
		kill -TERM "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	rm -rf "$folder"
	exit "$status"
}
trap stop EXIT INT TERM

# as runs a command as a user, when the caller is root.
as() {
	local user=$1
	shift
	if [ "$(id -u)" = 0 ]; then exec setpriv --reuid="$user" --regid="$user" --init-groups "$@"; else exec "$@"; fi
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
if [ "$(id -u)" = 0 ]; then install -d -o mysql "$folder/db"; else mkdir "$folder/db"; fi
(as mysql mariadb-install-db --no-defaults --datadir="$folder/db" --auth-root-authentication-method=normal --skip-test-db >/dev/null)
(as mysql /usr/sbin/mariadbd --no-defaults --datadir="$folder/db" --bind-address=127.0.0.1 --port="$port" --socket="$folder/db/sock" \
	--innodb-buffer-pool-size=512M --innodb-log-file-size=512M --innodb-flush-log-at-trx-commit=1 --skip-log-bin \
	--max-connections=1100 --back-log=1100 --open-files-limit=20000) >"$folder/db.log" 2>&1 &
server=$!
ask() { mariadb --no-defaults -h 127.0.0.1 -P "$port" -u root -N -e "$1"; }
for ((i = 0; ; i++)); do
	ask 'CREATE DATABASE IF NOT EXISTS sbtest' 2>/dev/null && break
	if ! kill -0 "$server" 2>/dev/null || [ "$i" -gt 300 ]; then
		cat "$folder/db.log" >&2
		exit 3
	fi
	sleep 0.2
done

bench=(sysbench oltp_insert --db-driver=mysql --mysql-host=127.0.0.1 --mysql-port="$port" --mysql-user=root --mysql-db=sbtest --tables=1 --auto-inc=on)
"${bench[@]}" --table-size=1 prepare >/dev/null
c=$(printf '01234567890-%.0s' {1..10})
pad=$(printf '01234567890-%.0s' {1..5})

by_sysbench() {
	"${bench[@]}" --table-size=100000 --threads="$1" --time="$seconds" run | sed -n 's/.*transactions: *[0-9]* *(\([0-9.]*\) per sec.*/\1/p'
}
by_spillway() {
	"$spillway" load "mysql://root@127.0.0.1:$port/sbtest" --connections "$1" --duration "${seconds}s" --timeout 30s --json \
		--sql "INSERT INTO sbtest1 (k, c, pad) VALUES (:k, '${c:0:119}', '${pad:0:59}')" --param 'k=random(1,100000)' |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["steps"][0]["rate_hz"])'
}

printf '%-8s %-12s %12s %14s %8s\n' flush connections sysbench/s spillway/s ratio
for flush in 1 2; do
	ask "SET GLOBAL innodb_flush_log_at_trx_commit=$flush"
	for connections in 1 50 1000; do
		for ((round = 0; round < rounds; round++)); do
			ask 'TRUNCATE TABLE sbtest.sbtest1'
			theirs=$(by_sysbench "$connections")
			ask 'TRUNCATE TABLE sbtest.sbtest1'
			ours=$(by_spillway "$connections")
			awk -v f="$flush" -v n="$connections" -v a="$theirs" -v b="$ours" \
				'BEGIN { printf "%-8s %-12s %12.0f %14.0f %8.3f\n", f, n, a, b, b / a }'
		done
	done
done
