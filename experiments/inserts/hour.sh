#!/usr/bin/env bash
# hour.sh postgres|mariadb [DURATION [mixed]]: 1,000 clients send a record a second each
# for the duration (default 1h) through a stream; then the table must hold exactly the
# records that were acknowledged. The database runs from a temporary folder, fsync on.
# mixed: as fast as they are answered, and of 100 records 10 have a field of the wrong
# type and one is refused by a CHECK of the table (mixed.txt).
set -euo pipefail
cd "$(dirname "$0")/../.."

engine=${1:?hour.sh postgres|mariadb [DURATION]}
duration=${2:-1h}
kind=${3:-steady}
spillway=$PWD/bin/spillway
source=$PWD/experiments/inserts
folder=$(mktemp -d /tmp/spillway-hour.XXXXXX)
chmod 755 "$folder"
pids=()

stop() {
	local status=$?
	trap '' INT TERM
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		kill -TERM "${pids[i]}" 2>/dev/null || continue
		wait "${pids[i]}" 2>/dev/null || true
	done
	rm -rf "$folder"
	exit "$status"
}
trap stop EXIT INT TERM

free_port() {
	python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# as runs a command as a user, when the caller is root.
as() {
	local user=$1
	shift
	if [ "$(id -u)" = 0 ]; then exec setpriv --reuid="$user" --regid="$user" --init-groups "$@"; else exec "$@"; fi
}

port=$(free_port)
case $engine in
postgres)
	bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/postgres | tail -1)")
	install -d -o postgres "$folder/db"
	(as postgres "$bin/initdb" -D "$folder/db" -U postgres -E UTF8 --locale=C --auth=trust >/dev/null)
	(as postgres "$bin/postgres" -D "$folder/db" -c listen_addresses=127.0.0.1 -c port="$port" -c unix_socket_directories= -c shared_buffers=512MB -c max_wal_size=4GB) >"$folder/db.log" 2>&1 &
	pids+=($!)
	url="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
	ask() { psql -X -q -t -A "$url" "$@"; }
	until ask -f "$source/postgres.sql" 2>/dev/null; do sleep 0.2; done
	;;
mariadb)
	install -d -o mysql "$folder/db"
	(as mysql mariadb-install-db --no-defaults --datadir="$folder/db" --auth-root-authentication-method=normal --skip-test-db >/dev/null)
	(as mysql /usr/sbin/mariadbd --no-defaults --datadir="$folder/db" --bind-address=127.0.0.1 --port="$port" --socket="$folder/db/sock" \
		--innodb-buffer-pool-size=512M --innodb-log-file-size=512M --innodb-flush-log-at-trx-commit=1 --log-bin="$folder/db/binlog" --sync-binlog=1 --server-id=1 \
		--init-file="$source/mariadb.sql") >"$folder/db.log" 2>&1 &
	pids+=($!)
	url="mysql://app@127.0.0.1:$port/freight"
	ask() { shift; mariadb --no-defaults -h 127.0.0.1 -P "$port" -u app -N freight -e "$1"; }
	until ask -c 'SELECT 1 FROM positions LIMIT 1' >/dev/null 2>&1; do sleep 0.2; done
	;;
*)
	echo "hour.sh: $engine: want postgres or mariadb" >&2
	exit 2
	;;
esac

case $kind in
steady)
	requests=(--method POST --body '{{"device_id":{random(1,100000)},"latitude":31.2,"longitude":121.5,"speed":61.5}' --rate 1000 --slo 'p99<20ms errors<0.001%')
	;;
mixed)
	ask -c 'ALTER TABLE positions ADD CHECK (speed < 1000)'
	requests=(--requests-file "$source/mixed.txt")
	;;
*)
	echo "hour.sh: $kind: want mixed or nothing" >&2
	exit 2
	;;
esac

listen=127.0.0.1:$(free_port)
admin=127.0.0.1:$(free_port)
sed "s#{{.setting.database}}#$url#" "$source/spillway.yaml" >"$folder/spillway.yaml"
"$spillway" serve "$folder/spillway.yaml" --listen "$listen" --admin "$admin" --data "$folder/data" 2>"$folder/spillway.log" &
pids+=($!)
until curl -sf "http://$admin/readyz" >/dev/null; do sleep 0.2; done

"$spillway" load "http://$listen/positions" --header 'Content-Type: application/json' "${requests[@]}" \
	--connections 1000 --duration "$duration" --watch db=:"$port" --watch app=:"${listen##*:}" \
	-o "$folder/run.ndjson" && met=0 || met=$?
acknowledged=$("$spillway" report "$folder/run.ndjson" --format json | python3 -c '
import json, sys
step = json.load(sys.stdin)["steps"][0]
print(step["requests"] - sum(step["errors"].values()))')
stored=$(ask -c 'SELECT count(*) FROM positions')
echo "acknowledged $acknowledged, stored $stored"
curl -sf "http://$admin/metrics" | grep '^spillway_stream_records_total'
[ "$acknowledged" = "$stored" ] || exit 1
exit "$met"
