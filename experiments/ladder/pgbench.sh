#!/usr/bin/env bash
# pgbench.sh [SECONDS [ROUNDS]]: spillway's database probe beside pgbench: the same PostgreSQL, 5 connections to it,
# measured in turn. It prints one line per round, in requests per second. The last column is the rate that pgbench -S
# would have if each transaction also cost an empty answer. PostgreSQL runs from a temporary folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
. experiments/servers.sh

seconds=${1:-10}
rounds=${2:-7}
start_postgres /dev/null
pgbench=$(dirname "$(ls /usr/lib/postgresql/*/bin/postgres | tail -1)")/pgbench
"$pgbench" -i -q -s 10 "$url" 2>/dev/null
echo 'SELECT 1;' >"$folder/one.sql"
printf 'log: {level: warn}\nprobes: true\npool: {min: 5, max: 5}\n' >"$folder/spillway.yaml"
export SPILLWAY_DATABASE=$url
start_spillway "$folder/spillway.yaml"

transactions() {
	"$pgbench" "$@" -M prepared -c 5 -j 1 -T "$seconds" "$url" | awk '$1 == "tps" { print $3 }'
}
probe() {
	"$spillway" load "http://$listen$1" --connections 128 --duration "${seconds}s" --warmup 1s --json |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["steps"][0]["rate_hz"])'
}

printf '%12s %12s %12s %14s %14s\n' 'pgbench -S' 'SELECT 1' /probe/empty /probe/database 'with an answer'
for ((round = 0; round < rounds; round++)); do
	select=$(transactions -S)
	database=$(probe /probe/database)
	one=$(transactions -n -f "$folder/one.sql")
	empty=$(probe /probe/empty)
	awk -v s="$select" -v o="$one" -v e="$empty" -v d="$database" 'BEGIN { printf "%12.0f %12.0f %12.0f %14.0f %14.0f\n", s, o, e, d, 1 / (1 / s + 1 / e) }'
done
