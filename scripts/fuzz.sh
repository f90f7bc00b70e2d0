#!/usr/bin/env bash
# Runs each fuzz target of the module for FUZZTIME (default 10s), one by one,
# because go test accepts only one target.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
count=0
packages=$("$go" list ./...)
for package in $packages; do
	listed=$("$go" test -list '^Fuzz' "$package") # fails if the package does not build
	for target in $(grep '^Fuzz' <<<"$listed" || true); do
		echo "$package $target"
		"$go" test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-10s}" "$package"
		count=$((count + 1))
	done
done
echo "$count fuzz targets ran for ${FUZZTIME:-10s} each"
