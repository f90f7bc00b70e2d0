#!/usr/bin/env bash
# sysbench.sh [SECONDS [ROUNDS]]: sysbench's oltp_insert and the same INSERT by spillway load
# in turn, over 1, 50 and 1,000 connections on one MariaDB, which waits for the disk (=1)
# and then for the system only (=2). It prints inserts a second and their ratio. The server
# runs from a temporary folder; the table is emptied before each run.
set -euo pipefail
cd "$(dirname "$0")/../.."
. experiments/servers.sh

seconds=${1:-8}
rounds=${2:-1}
start_mariadb "$PWD/experiments/inserts/mariadb.sql" freight --skip-log-bin --max-connections=1100 --back-log=1100 --open-files-limit=20000

bench=(sysbench oltp_insert --db-driver=mysql --mysql-host=127.0.0.1 --mysql-port="$port" --mysql-user=app --mysql-db=freight --tables=1 --auto-inc=on)
"${bench[@]}" --table-size=1 prepare >/dev/null
c=$(printf '01234567890-%.0s' {1..10})
pad=$(printf '01234567890-%.0s' {1..5})

by_sysbench() {
	"${bench[@]}" --table-size=100000 --threads="$1" --time="$seconds" run | sed -n 's/.*transactions: *[0-9]* *(\([0-9.]*\) per sec.*/\1/p'
}
by_spillway() {
	"$spillway" load "$url" --connections "$1" --duration "${seconds}s" --timeout 30s --json \
		--sql "INSERT INTO sbtest1 (k, c, pad) VALUES (:k, '${c:0:119}', '${pad:0:59}')" --param 'k=random(1,100000)' |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["steps"][0]["rate_hz"])'
}

printf '%-8s %-12s %12s %14s %8s\n' flush connections sysbench/s spillway/s ratio
for flush in 1 2; do
	mariadb --no-defaults -h 127.0.0.1 -P "$port" -u root -e "SET GLOBAL innodb_flush_log_at_trx_commit=$flush"
	for connections in 1 50 1000; do
		for ((round = 0; round < rounds; round++)); do
			ask 'TRUNCATE TABLE sbtest1'
			theirs=$(by_sysbench "$connections")
			ask 'TRUNCATE TABLE sbtest1'
			ours=$(by_spillway "$connections")
			awk -v f="$flush" -v n="$connections" -v a="$theirs" -v b="$ours" \
				'BEGIN { printf "%-8s %-12s %12.0f %14.0f %8.3f\n", f, n, a, b, b / a }'
		done
	done
done
