#!/usr/bin/env bash
# hour.sh postgres|mariadb [DURATION [mixed]]: 1,000 clients send a record a second each
# for the duration (default 1h) through a stream; then the table must hold exactly the
# records that were acknowledged. The database runs from a temporary folder, fsync on.
# mixed: as fast as they are answered, and of 100 records 10 have a field of the wrong
# type and one is refused by a CHECK of the table (mixed.txt).
set -euo pipefail
cd "$(dirname "$0")/../.."
. experiments/servers.sh

engine=${1:?hour.sh postgres|mariadb [DURATION [mixed]]}
duration=${2:-1h}
kind=${3:-steady}
source=$PWD/experiments/inserts

case $engine in
postgres) start_postgres "$source/postgres.sql" ;;
mariadb) start_mariadb "$source/mariadb.sql" freight --log-bin="$folder/db/binlog" --sync-binlog=1 --server-id=1 ;;
*)
	echo "hour.sh: $engine: want postgres or mariadb" >&2
	exit 2
	;;
esac
case $kind in
steady)
	requests=(/positions --method POST --body '{{"device_id":{random(1,100000)},"latitude":31.2,"longitude":121.5,"speed":61.5}' --rate 1000 --slo 'p99<20ms errors<0.0001%')
	;;
mixed)
	ask 'ALTER TABLE positions ADD CHECK (speed < 1000)'
	requests=("" --requests-file "$source/mixed.txt")
	;;
*)
	echo "hour.sh: $kind: want mixed or nothing" >&2
	exit 2
	;;
esac

sed "s#{{.setting.database}}#$url#" "$source/spillway.yaml" >"$folder/spillway.yaml"
start_spillway "$folder/spillway.yaml"
"$spillway" load "http://$listen${requests[0]}" --header 'Content-Type: application/json' "${requests[@]:1}" \
	--connections 1000 --duration "$duration" --watch db=:"$port" --watch app=:"${listen##*:}" \
	-o "$folder/run.ndjson" && met=0 || met=$?
acknowledged=$(answered "$folder/run.ndjson")
stored=$(ask 'SELECT count(*) FROM positions')
echo "acknowledged $acknowledged, stored $stored"
curl -sf "http://$admin/metrics" | grep '^spillway_stream_records_total'
[ "$acknowledged" = "$stored" ] || exit 1
exit "$met"
