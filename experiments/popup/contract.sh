#!/usr/bin/env bash
# contract.sh memory|redis [RATE [DURATION]]: the seed's contract, with all its clauses. One
# million users saw a popup an hour ago, and 100,000 of them a day ago, which is due again. Of
# 100 requests 87 are of users who wait, 10 of new users, 1 of those who are due, and 2 click
# what a user saw. An open loop of RATE requests a second (default 30000) over 500 connections,
# for DURATION (default 5m); then popup_events must hold a show for each popup that was answered
# and a click for each that was accepted. MariaDB and Redis (1 GB) run from a temporary folder,
# innodb_flush_log_at_trx_commit = 1, appendfsync everysec.
set -euo pipefail
cd "$(dirname "$0")/../.."
. experiments/servers.sh

store=${1:?contract.sh memory|redis [RATE [DURATION]]}
rate=${2:-30000}
duration=${3:-5m}
source=$PWD/experiments/popup

start_mariadb "$source/mariadb.sql" popups --skip-log-bin --max-connections=800
redis_port=$(free_port)
redis-server --bind 127.0.0.1 --port "$redis_port" --dir "$folder" --save "" --appendonly yes --appendfsync everysec --maxmemory 1gb --maxmemory-policy noeviction >"$folder/redis.log" &
pids+=($!)

# States and the tokens of their shows, as spillway encodes and signs them.
python3 - "$folder" <<'END'
import base64, hashlib, hmac, struct, sys, time
folder, now = sys.argv[1], int(time.time() * 1000)
key = b"popup-experiment-key-of-32-characters-or-more"

def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])

def state(campaign, shown, wait):
    times = b"".join(varint(2 * n) for n in (shown, 0, shown + wait))
    return (bytes([1, 1]) + varint(1) + varint(campaign) + bytes([0, 1]) + times + bytes([0])).hex()

hour, day, years = 3_600_000, 86_400_000, 315_360_000_000
with open(folder + "/states.sql", "w") as sql:
    for first, last, campaign, shown, wait in ((1, 900_000, 1, now - hour, years), (900_001, 1_000_000, 2, now - 25 * hour, day)):
        for low in range(first, last + 1, 100_000):
            sql.write(f"UPDATE popup_state SET state = x'{state(campaign, shown, wait)}', campaign_id = {campaign}, at = FROM_UNIXTIME({shown / 1000}), "
                      f"next_at = FROM_UNIXTIME({(shown + wait) / 1000}) WHERE CAST(user_id AS UNSIGNED) BETWEEN {low} AND {low + 99_999};\n")
    sql.write(f"UPDATE popup_campaigns SET campaign = JSON_SET(campaign, '$.repeat_after', '{day // 3_600_000}h') WHERE id = 2;\n")
with open(folder + "/tokens.csv", "w") as tokens:
    for user in range(1, 900_001):
        name = str(user).encode()
        body = struct.pack(">BIQQBBB", 1, 1, 1, now - hour, 0, 4, len(name)) + b"home" + name
        mac = hmac.new(key, body, hashlib.sha256).digest()[:16]
        tokens.write(base64.urlsafe_b64encode(body + mac).rstrip(b"=").decode() + "\n")
END
ask "SOURCE $folder/states.sql"
{
	awk '/^9 GET/ { sub(/^9 /, "174 "); sub(/1,1000000/, "1,900000"); print } /^1 GET/ { sub(/^1 /, "20 "); print }' "$source/requests.txt" | head -100
	echo '100 GET /popup?user={random(900001,1000000)}&city=c0&channel=app&age=35&vip=false'
	echo "200 POST /popup/click {{\"show\":\"{file:$folder/tokens.csv:1}\"}"
} >"$folder/requests.txt"

sed "s#{{.setting.database}}#$url#; s#{{.setting.redis}}#redis://127.0.0.1:$redis_port#; s#{{.setting.store}}#$store#" "$source/spillway.yaml" >"$folder/spillway.yaml"
start_spillway "$folder/spillway.yaml"
until [ "$(curl -s -o /dev/null -w '%{http_code}' "http://$listen/popup?user=ready&city=c0&channel=app&age=25&vip=false")" = 200 ]; do sleep 0.2; done

"$spillway" load "http://$listen/" --requests-file "$folder/requests.txt" --rate "$((rate + rate / 100))" --connections 500 --duration "$duration" \
	--watch db=:"$port" --watch app=:"${listen##*:}" --watch redis=:"$redis_port" -o "$folder/run.ndjson"

# figure prints a metric.
figure() { curl -sf "http://$admin/metrics" | awk -v name="$1" '$1 == name { printf "%d\n", $2 }'; }
for ((i = 0; i < 600; i++)); do
	[ "$(figure spillway_popup_events_waiting)" = 0 ] && break
	sleep 0.5
done
for kind in show click; do
	recorded=$(figure "spillway_popup_events_total{kind=\"$kind\"}")
	stored=$(ask "SELECT count(*) FROM popup_events WHERE kind = $([ "$kind" = show ] && echo 1 || echo 2)")
	echo "$kind: answered $recorded, stored $stored"
	[ "$recorded" = "$stored" ] && [ "$stored" -gt 0 ]
done
echo "due again: $(ask "SELECT count(*) FROM popup_events WHERE kind = 1 AND sequence > 1")"
"$spillway" report "$folder/run.ndjson" --format json >"$folder/report.json"
python3 - "$folder/report.json" "$rate" "$store" <<'END'
import json, os, sys
step, rate, cores = json.load(open(sys.argv[1]))["steps"][0], float(sys.argv[2]), os.cpu_count()
used = {s["name"]: s["figures"]["cpu_cores"] for s in step["watch"]["subjects"] if s["sampler"] == "process"}
server = used["app"] + (used["redis"] if sys.argv[3] == "redis" else 0)
clauses = [
    ("requests per second", step["rate_hz"], rate, step["rate_hz"] >= rate),
    ("database, cores", used["db"], 0.5, used["db"] <= 0.5),
    ("server with Redis, share of all cores", server / cores, 0.7, server / cores <= 0.7),
    ("p99, ms", step["response"]["p99_seconds"] * 1000, 70, step["response"]["p99_seconds"] <= 0.07),
    ("errors, share", step["error_share"], 0.05, step["error_share"] <= 0.05),
]
for name, value, limit, holds in clauses:
    print(f"{'holds' if holds else 'MISSED'}: {name} {value:,.4g}, contract {limit:,.4g}")
print(f"validity of the run: {step['validity']} {'; '.join(step.get('reasons') or [])}")
sys.exit(not all(holds for *_, holds in clauses))
END
