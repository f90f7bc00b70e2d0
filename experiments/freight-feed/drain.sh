#!/usr/bin/env bash
# drain.sh [ROUNDS]: SIGTERM to spillway under load. No request on an established connection may be lost: refused
# connections are the only errors allowed. It prints the answers and errors of 64 connections kept open and of 8 clients
# that open one per request. PostgreSQL runs from a temporary folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
. experiments/servers.sh

rounds=${1:-10}
start_postgres /dev/null
"$spillway" seed freight --database "$url" --users 10000 --days 10 --per-day 1000 2>/dev/null
export SPILLWAY_DATABASE=$url
lost=0
for ((round = 1; round <= rounds; round++)); do
	start_spillway experiments/freight-feed/spillway.yaml
	server=${pids[-1]}
	for options in "-c 64" "-c 8 --per-connection 1"; do
		# shellcheck disable=SC2086
		"$spillway" load "http://$listen/goodslist" $options -d 4s --json >"$folder/${options// /}.json" 2>/dev/null &
		loads+=($!)
	done
	sleep 2
	kill -TERM "$server"
	wait "$server" || lost=1
	wait "${loads[@]}" || true
	loads=()
	unset 'pids[-1]'
	for options in "-c 64" "-c 8 --per-connection 1"; do
		python3 - "$round" "$options" "$folder/${options// /}.json" <<-'P' || lost=1
			import json, sys
			step = json.load(open(sys.argv[3]))["steps"][0]
			errors = step["errors"]
			print(f"round {sys.argv[1]}, {sys.argv[2]}: {step['requests'] - sum(errors.values()):,} answered, errors {errors}", flush=True)
			sys.exit(any(errors[name] for name in errors if name != "refused"))
		P
	done
done
exit "$lost"
