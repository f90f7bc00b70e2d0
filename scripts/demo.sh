#!/usr/bin/env bash
# Starts nginx in front of spillway on PostgreSQL, Redis and, if it is installed,
# MariaDB, with a small freight data set. All run from a temporary folder on free
# ports of 127.0.0.1. Prints the URLs and runs until Ctrl-C, which stops the
# servers and removes the folder.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PATH:/usr/sbin:/sbin
spillway=$PWD/bin/spillway
folder=
names=() # of the servers, in the order of their start
declare -A pids=()

# stop ends the servers in reverse order, kills those that do not end within
# 15 s, and removes the folder. It runs whenever the script exits. The servers
# run in separate sessions, so Ctrl-C does not reach them directly.
stop() {
	local status=$? i name
	trap '' INT TERM HUP
	for ((i = ${#names[@]} - 1; i >= 0; i--)); do
		name=${names[i]}
		stop_one "$name" "${pids[$name]}"
	done
	[ -z "$folder" ] || rm -rf "$folder"
	exit "$status"
}

# signal_of prints the signal for a fast and clean stop of a server.
signal_of() {
	case $1 in
	postgres) echo INT ;; # fast shutdown: does not wait for clients
	*) echo TERM ;;
	esac
}

stop_one() {
	local name=$1 pid=$2 i
	kill -s "$(signal_of "$name")" "$pid" 2>/dev/null || return 0
	for ((i = 0; i < 150; i++)); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	echo "$name did not end within 15 s and was killed" >&2
	kill -KILL "$pid" 2>/dev/null || true
}

fail() {
	echo "demo: $1" >&2
	exit 3
}

# free_port prints a port that nothing listens on, below the ephemeral range. It
# tries the first argument first.
free_port() {
	local port=${1:-$((20000 + RANDOM % 10000))}
	while [[ " $taken " == *" $port "* ]] || (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
		port=$((20000 + RANDOM % 10000))
	done
	echo "$port"
}
taken=

# as prints the command prefix that runs a server as its own user, because
# PostgreSQL and MariaDB refuse to run as root. With --pdeathsig the kernel ends
# the server if this script is killed.
as() {
	local user=$1 signal=$2
	echo setsid setpriv --pdeathsig "$signal"
	[ "$(id -u)" -ne 0 ] || echo --reuid "$user" --regid "$user" --init-groups
}

# make_folder creates the folder of a server.
make_folder() {
	mkdir -p "$folder/$1"
	[ "$(id -u)" -ne 0 ] || chown "$2" "$folder/$1"
}

# start NAME USER COMMAND… starts a server and writes its output to NAME.log.
start() {
	local name=$1 user=$2
	shift 2
	# shellcheck disable=SC2046 # words
	(cd "$folder/$name" && exec $(as "$user" "$(signal_of "$name")") "$@") >"$folder/$name.log" 2>&1 &
	names+=("$name")
	pids[$name]=$!
}

# once NAME USER COMMAND… runs a command as the server's user and prints its
# output only if it fails.
once() {
	local name=$1 user=$2
	shift 2
	# shellcheck disable=SC2046 # words
	(cd "$folder/$name" && exec $(as "$user" TERM) "$@") >"$folder/$name-once.log" 2>&1 || {
		tail -20 "$folder/$name-once.log" >&2
		fail "$name: $1 failed; its output is above"
	}
}

# ready NAME COMMAND… waits until the command succeeds.
ready() {
	local name=$1 i
	shift
	for ((i = 0; i < 600; i++)); do
		"$@" >/dev/null 2>&1 && return
		kill -0 "${pids[$name]}" 2>/dev/null || break
		sleep 0.1
	done
	tail -20 "$folder/$name.log" >&2
	fail "$name is not ready; its last lines are above"
}

# answers PORT PATH succeeds if a URL of this host answers with status 200.
answers() {
	local status
	exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
	printf 'GET %s HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' "$2" >&3
	read -r -t 5 _ status _ <&3 || true
	exec 3>&- 3<&-
	[ "${status:-}" = 200 ]
}

start_postgres() {
	local bin=
	bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1)
	[ -x "$bin/postgres" ] || bin=$(dirname "$(command -v postgres || fail 'PostgreSQL is not installed: apt-get install postgresql')")
	postgres_port=$(free_port)
	taken+=" $postgres_port"
	make_folder postgres postgres
	once postgres postgres "$bin/initdb" -D data -U postgres -E UTF8 --locale=C --auth=trust --no-sync
	start postgres postgres "$bin/postgres" -D data -c listen_addresses=127.0.0.1 -c "port=$postgres_port" -c unix_socket_directories=
	ready postgres "$bin/pg_isready" -q -h 127.0.0.1 -p "$postgres_port"
	once postgres postgres "$bin/psql" -X -q -h 127.0.0.1 -p "$postgres_port" -U postgres -c 'CREATE DATABASE freight'
	postgres_url="postgres://postgres@127.0.0.1:$postgres_port/freight?sslmode=disable"
}

start_redis() {
	command -v redis-server >/dev/null || fail 'Redis is not installed: apt-get install redis-server'
	redis_port=$(free_port)
	taken+=" $redis_port"
	make_folder redis redis
	start redis redis redis-server --bind 127.0.0.1 --port "$redis_port" --save '' --appendonly no --dir "$folder/redis"
	ready redis redis-cli -p "$redis_port" ping
	redis-cli -p "$redis_port" set spillway:probe:demo 'hello from Redis' >/dev/null
}

# serves_mysql succeeds if this spillway accepts a mysql:// database.
serves_mysql() {
	DEMO_NAME=spillway DEMO_KEY=$demo_key DEMO_DATABASE=mysql://spillway@127.0.0.1:1/freight DEMO_REDIS=redis://127.0.0.1:1 \
		"$spillway" config check deploy/demo/spillway.yaml >/dev/null 2>&1
}

start_mariadb() {
	mariadb_port=$(free_port)
	taken+=" $mariadb_port"
	make_folder mariadb mysql
	once mariadb mysql mariadb-install-db --no-defaults --datadir="$folder/mariadb/data" --skip-test-db --auth-root-authentication-method=normal
	start mariadb mysql mariadbd --no-defaults --datadir="$folder/mariadb/data" --socket="$folder/mariadb/sock" \
		--pid-file="$folder/mariadb/pid" --bind-address=127.0.0.1 --port="$mariadb_port" --skip-name-resolve
	ready mariadb mariadb-admin --no-defaults --socket="$folder/mariadb/sock" --user=root ping
	mariadb --no-defaults --socket="$folder/mariadb/sock" --user=root -e "
		CREATE DATABASE freight CHARACTER SET utf8mb4;
		CREATE USER spillway@'127.0.0.1';
		GRANT ALL ON freight.* TO spillway@'127.0.0.1'"
	mariadb_url="mysql://spillway@127.0.0.1:$mariadb_port/freight"
}

# start_spillway NAME URL seeds a database and serves it.
start_spillway() {
	local name=$1 url=$2 port admin
	echo "data set for $name"
	"$spillway" seed freight --database "$url" --users 10000 --days 366 --per-day 563 --random-seed 77
	game=$("$spillway" seed games --database "$url" --apps 200 --records 100000 --index right)
	port=$(free_port)
	taken+=" $port"
	admin=$(free_port)
	taken+=" $admin"
	make_folder "$name" root
	DEMO_NAME=$name DEMO_KEY=$demo_key DEMO_DATABASE=$url DEMO_REDIS=redis://127.0.0.1:$redis_port \
		start "$name" root "$spillway" serve "$PWD/deploy/demo/spillway.yaml" --listen "127.0.0.1:$port" --admin "127.0.0.1:$admin" --data data
	ready "$name" answers "$port" /goodslist
	listen_port=$port
	admin_port=$admin
}

# fill TEMPLATE FILE fills in a template of deploy/demo.
fill() {
	sed -e "s|@DIR@|$folder/nginx|g" -e "s|@PORT@|$public_port|g" \
		-e "s|@POSTGRES@|${upstream_postgres}|g" -e "s|@MARIADB@|${upstream_mariadb:-}|g" "deploy/demo/$1" >"$folder/nginx/$2"
}

start_nginx() {
	command -v nginx >/dev/null || fail 'nginx is not installed: apt-get install nginx'
	public_port=$(free_port 6001)
	make_folder nginx root
	fill nginx.conf nginx.conf
	if [ -n "${upstream_mariadb:-}" ]; then
		fill nginx-mariadb-upstream.conf upstream-mariadb.conf
		fill nginx-mariadb-location.conf location-mariadb.conf
	fi
	start nginx root nginx -p "$folder/nginx" -e stderr -c "$folder/nginx/nginx.conf"
	ready nginx answers "$public_port" /goodslist
}

print_urls() {
	local base="http://127.0.0.1:$public_port"
	cat <<TEXT

the page                    $base/
newest orders, PostgreSQL   $base/openapi/goodslist?offset=0
TEXT
	[ -z "${upstream_mariadb:-}" ] || echo "newest orders, MariaDB      $base/mariadb/goodslist?offset=0"
	cat <<TEXT
create an order             curl --json '{"users_id": 7, "goods_name": "steel pipes, 12 t"}' $base/orders
report a position           curl --json '{"device_id": 7, "latitude": 31.23, "longitude": 121.47}' $base/positions
records of a game           $base/game_record?app_id=$(sed -E 's/.*app_id ([^,]+), token (.*)/\1\&token=\2/' <<<"$game")
popup of a driver           $base/popup?user=7&app_version=29
hello                       $base/hello
one Redis GET               $base/probe/redis?key=demo
one SQL statement           $base/probe/database
metrics (PostgreSQL's)      http://127.0.0.1:$admin_postgres/metrics
readiness (PostgreSQL's)    http://127.0.0.1:$admin_postgres/readyz, also /readyz/reads and /readyz/writes

load test                   bin/spillway load '$base/openapi/goodslist' --rate 1000 --duration 10s --watch web=:$public_port
Ctrl-C stops everything.
TEXT
}

[ -x "$spillway" ] || fail 'bin/spillway does not exist: run make build first'
command -v setpriv >/dev/null || fail 'setpriv is not installed: apt-get install util-linux'
trap stop EXIT
trap 'exit 0' INT TERM HUP
folder=$(mktemp -d "${TMPDIR:-/tmp}/spillway-demo-XXXXXX")
chmod 755 "$folder"
demo_key=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') # signs the tokens of shows

start_postgres
start_redis
start_spillway spillway "$postgres_url"
upstream_postgres=$listen_port
admin_postgres=$admin_port

# MariaDB is optional.
if ! command -v mariadbd >/dev/null; then
	echo 'without MariaDB: it is not installed (apt-get install mariadb-server)'
elif ! serves_mysql; then
	echo 'without MariaDB: this spillway does not serve from mysql:// yet'
else
	start_mariadb
	start_spillway spillway-mariadb "$mariadb_url"
	upstream_mariadb=$listen_port
fi

start_nginx
print_urls

# If a server ends unexpectedly, the demo ends.
wait -n || true
for name in "${names[@]}"; do
	kill -0 "${pids[$name]}" 2>/dev/null || {
		tail -20 "$folder/$name.log" >&2
		fail "$name ended unexpectedly; its last lines are above"
	}
done
