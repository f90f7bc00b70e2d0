#!/usr/bin/env bash
# outage.sh: PostgreSQL stops for 30 s under load, with stale_max 10s. Pages grow old, then 503 answers, then pages come
# back by themselves. Twice per second it prints the time, the status and the Age of page 1. PostgreSQL runs from a
# temporary folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
. experiments/servers.sh

start_postgres /dev/null
postgres=${pids[-1]}
"$spillway" seed freight --database "$url" --users 10000 --days 10 --per-day 1000 2>/dev/null
SPILLWAY_DATABASE=$url start_spillway experiments/freight-feed/spillway.yaml
"$spillway" load "http://$listen/goodslist" -c 32 -d 50s --json >"$folder/load.json" 2>/dev/null &
load=$!
begin=$SECONDS
down=no
while ((SECONDS - begin < 50)); do
	at=$((SECONDS - begin))
	if ((at >= 5)) && [ "$down" = no ]; then
		down=yes
		kill -QUIT "$postgres"
	elif ((at >= 35)) && [ "$down" = yes ]; then
		down=over
		run_postgres &
		pids+=($!)
	fi
	curl -s -o /dev/null -w "$at s: %{http_code}, Age %header{age}\n" "http://$listen/goodslist" || echo "$at s: no answer"
	sleep 0.5
done
wait "$load" || true
python3 -c 'import json, sys; step = json.load(sys.stdin)["steps"][0]; print("load:", step["requests"], "requests, errors", step["errors"])' <"$folder/load.json"
