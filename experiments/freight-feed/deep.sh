#!/usr/bin/env bash
# deep.sh URL [DEPTH]: what a cursor page costs PostgreSQL behind the first 200 rows and behind DEPTH (default 10000000), from
# EXPLAIN (ANALYZE, BUFFERS) of the statement that the server prepares: 51 pages in turn, each read once before it counts.
set -euo pipefail

url=${1:?deep.sh URL [DEPTH]}
depth=${2:-10000000}
feed='SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno FROM orders JOIN users ON users.id = orders.users_id'
{
	echo "PREPARE page AS SELECT * FROM (SELECT * FROM ($feed) AS feed WHERE id < \$1 ORDER BY id DESC LIMIT 16) AS page ORDER BY id DESC LIMIT \$2 OFFSET \$3;"
	for ((page = 0; page < 51; page++)); do
		for above in 200 "$depth"; do
			echo "SELECT id - 10 * $page AS key FROM orders ORDER BY id DESC OFFSET $((above - 1)) LIMIT 1 \\gset"
			echo '\o /dev/null'
			echo "EXECUTE page(:key, 10, 0);"
			echo '\o'
			echo "\\echo rows above $above"
			echo "EXPLAIN (ANALYZE, BUFFERS) EXECUTE page(:key, 10, 0);"
		done
	done
} | psql -X -q -A -t "$url" | python3 -c '
import re, statistics, sys
found = {}
for part in re.split("rows above ", sys.stdin.read())[1:]:
    above = part.split()[0]
    buffers = sum(int(n) for n in re.search(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?", part).groups(default="0"))
    found.setdefault(above, []).append((buffers, float(re.search(r"Execution Time: ([\d.]+)", part).group(1))))
for above, rows in found.items():
    print(f"{above} rows above: {statistics.median(b for b, _ in rows)} buffers, {statistics.median(t for _, t in rows)} ms (medians)")'
