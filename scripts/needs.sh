#!/usr/bin/env bash
# Checks for the programs that the tests start, with the argument "mysql" also for those of
# make test-mysql, and installs missing ones with apt-get. On a terminal it asks first.
# Without a terminal it installs if it is root or can use sudo without a password.
# Otherwise it prints the packages and fails.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

# have_postgres looks for a server on PATH and in Debian's versioned directories.
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
compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || missing+=(faketime)
command -v pgbouncer >/dev/null || missing+=(pgbouncer)
command -v mariadbd >/dev/null || missing+=(mariadb-server)
command -v strace >/dev/null || missing+=(strace)
command -v ip >/dev/null || missing+=(iproute2)
command -v gcc >/dev/null || missing+=(gcc libc6-dev) # the race detector requires it
if [ "${1:-}" = mysql ]; then
	libraries=$(ldconfig -p)
	command -v mvn >/dev/null || missing+=(maven)
	command -v unzip >/dev/null || missing+=(unzip)
	if [[ $libraries == *"libaio.so.1t64 "* ]] && ! compgen -G '/usr/lib/*/libaio.so.1' >/dev/null; then
		echo "MySQL looks for libaio.so.1, which is named libaio.so.1t64 here: run ln -s libaio.so.1t64 /usr/lib/x86_64-linux-gnu/libaio.so.1" >&2
		exit 1
	fi
	aio=libaio1
	! apt-cache show libaio1t64 >/dev/null 2>&1 || aio=libaio1t64
	[[ $libraries == *"libaio.so.1 "* || $libraries == *"libaio.so.1t64 "* ]] || missing+=("$aio")
	[[ $libraries == *"libnuma.so.1 "* ]] || missing+=(libnuma1)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

echo "The tests need these Debian packages, which are not installed: ${missing[*]}"

# fail prints why nothing was installed and what to do.
fail() {
	echo "$1" >&2
	echo "Install them by hand and run make test again: ${missing[*]}" >&2
	exit 1
}

command -v apt-get >/dev/null || fail "apt-get is not available."

as_root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || fail "Installing requires root, and sudo is not available."
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
	fail "Installing requires root, and sudo requires a password but there is no terminal."
fi

apt() {
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@"
}

# A fresh container has no package lists, and old lists can name packages that
# no longer exist. In both cases update the lists, then try once more.
compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || apt update
apt install -y --no-install-recommends "${missing[@]}" ||
	{ apt update && apt install -y --no-install-recommends "${missing[@]}"; } ||
	fail "apt-get could not install them."
