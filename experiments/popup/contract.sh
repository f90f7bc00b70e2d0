#!/usr/bin/env bash
# contract.sh memory|redis [RATE [DURATION]]: the seed's contract. One million users saw a
# popup; of ten requests one is a new user's. An open loop of RATE requests a second
# (default 30000) over 500 connections, for DURATION (default 5m); then popup_events must
# hold a show for each popup that was answered. MariaDB and Redis run from a temporary
# folder, innodb_flush_log_at_trx_commit = 1, appendfsync everysec.
set -euo pipefail
cd "$(dirname "$0")/../.."
. experiments/servers.sh

store=${1:?contract.sh memory|redis [RATE [DURATION]]}
rate=${2:-30000}
duration=${3:-5m}
source=$PWD/experiments/popup

start_mariadb "$source/mariadb.sql" popups --skip-log-bin
redis_port=$(free_port)
redis-server --bind 127.0.0.1 --port "$redis_port" --dir "$folder" --save "" --appendonly yes --appendfsync everysec --maxmemory 4gb --maxmemory-policy noeviction >"$folder/redis.log" &
pids+=($!)
sed "s#{{.setting.database}}#$url#; s#{{.setting.redis}}#redis://127.0.0.1:$redis_port#; s#{{.setting.store}}#$store#" "$source/spillway.yaml" >"$folder/spillway.yaml"
start_spillway "$folder/spillway.yaml"
until [ "$(curl -s -o /dev/null -w '%{http_code}' "http://$listen/popup?user=ready&city=c0&channel=app&age=25&vip=false")" = 200 ]; do sleep 0.2; done

"$spillway" load "http://$listen/" --requests-file "$source/requests.txt" --rate "$rate" --connections 500 --duration "$duration" \
	--slo 'p99<70ms errors<0.0001%' --watch db=:"$port" --watch app=:"${listen##*:}" --watch redis=:"$redis_port" \
	-o "$folder/run.ndjson" && met=0 || met=$?

# figure prints a metric.
figure() { curl -sf "http://$admin/metrics" | awk -v name="$1" '$1 == name { printf "%d\n", $2 }'; }
for ((i = 0; i < 600; i++)); do
	[ "$(figure spillway_popup_events_waiting)" = 0 ] && break
	sleep 0.5
done
shown=$(figure 'spillway_popup_events_total{kind="show"}')
stored=$(ask 'SELECT count(*) FROM popup_events')
echo "shown $shown, stored $stored"
[ "$shown" = "$stored" ] || exit 1
exit "$met"
