# servers.sh is sourced by scripts that measure: PostgreSQL, MariaDB and Redis from temporary folders, on free
# ports of 127.0.0.1, stopped when the script ends.

spillway=$PWD/bin/spillway
folder=$(mktemp -d /tmp/spillway-measure.XXXXXX)
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

# start_postgres FILE and start_mariadb FILE NAME [OPTION...] start a database with tables
# of FILE, and set port, url, and ask: a function that prints what a statement returns.
start_postgres() {
	port=$(free_port)
	bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/postgres | tail -1)")
	install -d -o postgres "$folder/db"
	(as postgres "$bin/initdb" -D "$folder/db" -U postgres -E UTF8 --locale=C --auth=trust >/dev/null)
	run_postgres &
	pids+=($!)
	url="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
	ask() { psql -X -q -t -A "$url" -c "$1"; }
	until psql -X -q "$url" -f "$1" >/dev/null 2>&1; do sleep 0.2; done
}

# run_postgres is the server's process, also for a start after the first.
run_postgres() {
	as postgres "$bin/postgres" -D "$folder/db" -c listen_addresses=127.0.0.1 -c port="$port" -c unix_socket_directories= -c shared_buffers=512MB -c max_wal_size=4GB >>"$folder/db.log" 2>&1
}

start_mariadb() {
	local tables=$1
	schema=$2
	shift 2
	port=$(free_port)
	install -d -o mysql "$folder/db"
	(as mysql mariadb-install-db --no-defaults --datadir="$folder/db" --auth-root-authentication-method=normal --skip-test-db >/dev/null)
	(as mysql /usr/sbin/mariadbd --no-defaults --datadir="$folder/db" --bind-address=127.0.0.1 --port="$port" --socket="$folder/db/sock" \
		--innodb-buffer-pool-size=1G --innodb-log-file-size=512M --innodb-flush-log-at-trx-commit=1 "$@" --init-file="$tables") >"$folder/db.log" 2>&1 &
	pids+=($!)
	url="mysql://app@127.0.0.1:$port/$schema"
	ask() { mariadb --no-defaults -h 127.0.0.1 -P "$port" -u app -N "$schema" -e "$1"; }
	until ask 'SELECT 1' >/dev/null 2>&1; do sleep 0.2; done
}

# start_spillway FILE starts serve with a configuration, and sets listen and admin.
start_spillway() {
	listen=127.0.0.1:$(free_port)
	admin=127.0.0.1:$(free_port)
	"$spillway" serve "$1" --listen "$listen" --admin "$admin" --data "$folder/data" 2>"$folder/spillway.log" &
	pids+=($!)
	until curl -sf "http://$admin/readyz" | grep -qv '"serves":false'; do
		kill -0 "$!" || { cat "$folder/spillway.log" >&2; exit 1; }
		sleep 0.2
	done
}

# answered prints how many requests of a result file were answered as they should be.
answered() {
	"$spillway" report "$1" --format json | python3 -c '
import json, sys
step = json.load(sys.stdin)["steps"][0]
print(step["requests"] - sum(step["errors"].values()))'
}
