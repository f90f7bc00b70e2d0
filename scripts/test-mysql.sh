#!/usr/bin/env bash
# Runs the conformance and crash tests of mysql:// databases on MySQL 5.7, MySQL 8.0 and a
# MariaDB Galera cluster. SPILLWAY_CRASH_ROUNDS sets the rounds of the crash tests.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
listed=$(scripts/mysql.sh)
mapfile -t servers <<<"$listed"
for server in "${servers[@]}" galera; do
	echo "== ${server##*/}"
	export SPILLWAY_MYSQL=$server
	tests='^Test(Stream|Popup|Positions)' crashes='^Test(Popup)?Crash$/^mysql'
	[ "$server" != galera ] || tests='^Test(StreamConformance|Galera)' crashes='^TestCrash$/^mysql'
	leave_out='^$'
	if [[ $server == *mysql-5.7.22 ]]; then
		leave_out='^TestStreamConformance$/^Blocked'
		echo "Left out: TestStreamConformance/Blocked. MySQL 5.7.22 does not end a statement that waits for the lock of a parent row: it loops, also after KILL."
	fi
	"$go" test -count=1 -timeout 20m -parallel 2 -skip "$leave_out" -tags galera -run "$tests" ./internal/serve/mysql
	"$go" test -count=1 -timeout 60m -parallel 2 -run "$crashes" ./internal/serve/crashtest
done
