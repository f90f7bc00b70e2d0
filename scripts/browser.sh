#!/usr/bin/env bash
# Tries the pages in a headless Chromium, with axe-core from npm. The argument names a directory for pictures of each page.
set -euo pipefail
cd "$(dirname "$0")/.."

axe_version=4.14.1
axe=$PWD/bin/axe-$axe_version.js
if [ ! -f "$axe" ]; then
	folder=$(mktemp -d)
	trap 'rm -rf "$folder"' EXIT
	(cd "$folder" && npm pack --silent "axe-core@$axe_version" >/dev/null && tar xzf ./*.tgz) ||
		{ echo "axe-core $axe_version could not be fetched with npm, so that the pages were not tried: is there a network?" >&2; exit 1; }
	mkdir -p bin
	mv "$folder/package/axe.min.js" "$axe"
fi
[ -z "${1:-}" ] || mkdir -p "$1"
exec "${GO:-go}" test -C experiments -tags browser -count=1 -timeout 5m ./browser -axe "$axe" ${1:+-screenshots "$(realpath "$1")"}
