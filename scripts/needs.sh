#!/usr/bin/env bash
# Checks for the programs that the tests start, and installs what is missing
# through apt-get. On a terminal it asks first; as root without a terminal it
# goes ahead; otherwise it names the packages and fails.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

# have_postgres accepts a server on PATH or in Debian's versioned directories.
have_postgres() {
	command -v postgres >/dev/null && return
	local file
	for file in /usr/lib/postgresql/*/bin/postgres; do
		[ -x "$file" ] && return
	done
	return 1
}

missing=()
have_postgres || missing+=(postgresql)
command -v nginx >/dev/null || missing+=(nginx)
command -v redis-server >/dev/null || missing+=(redis-server)
command -v pgbouncer >/dev/null || missing+=(pgbouncer)
command -v mariadbd >/dev/null || missing+=(mariadb-server)
command -v strace >/dev/null || missing+=(strace)
command -v ip >/dev/null || missing+=(iproute2)
command -v gcc >/dev/null || missing+=(gcc libc6-dev) # the race detector links with it
[ ${#missing[@]} -eq 0 ] && exit 0

echo "The tests need these Debian packages, which are not installed: ${missing[*]}"

# fail says why nothing was installed, and what would help.
fail() {
	echo "$1" >&2
	echo "Install them by hand and run make test again: ${missing[*]}" >&2
	exit 1
}

command -v apt-get >/dev/null || fail "There is no apt-get here."

as_root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || fail "Installing needs root, and there is no sudo."
	as_root=(sudo)
fi
installer="${as_root[*]}${as_root[*]:+ }apt-get"

if [ -t 0 ] && [ -t 1 ] && [ -z "${CI:-}" ]; then
	read -r -p "Install them now with $installer? [y/N] " answer || answer=
	case $answer in
	[yY] | [yY][eE][sS]) ;;
	*) fail "Not installed." ;;
	esac
elif [ ${#as_root[@]} -ne 0 ] && ! sudo -n true 2>/dev/null; then
	fail "Installing needs root, sudo wants a password, and there is no terminal to ask on."
fi

apt() {
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@"
}

# A fresh container has no package list at all, and an old list may name
# packages that are gone: refresh it in both cases, then try once more.
compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || apt update
apt install -y --no-install-recommends "${missing[@]}" ||
	{ apt update && apt install -y --no-install-recommends "${missing[@]}"; } ||
	fail "apt-get could not install them."
