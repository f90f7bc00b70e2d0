#!/usr/bin/env bash
# Checks for the programs that the tests start and installs missing ones with one apt-get. The
# argument "race" adds those of make race, "installed" those of make installed, "long" those of make long, "failures" those of
# make failures, "mysql" those of make test-mysql, "browser" those of make browser. On a terminal it asks first. Without a terminal it installs if it is root or can use sudo without a password.
# Otherwise it says in one sentence why it cannot and what to install.
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

missing=() reasons=()

# need adds packages, separated by blanks, and what they are for.
need() {
	local package
	for package in $1; do missing+=("$package"); done
	reasons+=("  $1: $2")
}

have() { command -v "$1" >/dev/null; }

have_postgres || need postgresql "the database of most tests"
have mariadbd || need mariadb-server "tests of mysql:// databases"
have redis-server || need redis-server "tests of popups, shared caches and redis:// targets"
have nginx || need nginx "a proxy in front of spillway, and a server to measure"
have haproxy || need haproxy "restarts behind a load balancer"
have pgbouncer || need pgbouncer "tests behind a connection pooler"
have strace || need strace "system calls of the spool and of event loops"
have ip || need iproute2 "network namespaces as further hosts"
compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || need faketime "servers whose clock is wrong"
if [ "${1:-}" = race ]; then
	have gcc || need "gcc libc6-dev" "the race detector"
fi
if [ "${1:-}" = installed ] || [ "${1:-}" = long ]; then
	have mmdebstrap || need mmdebstrap "a Debian to install the package on"
	have systemd-analyze || need systemd "checks of the unit"
	have promtool || need prometheus "alerts and the dashboard"
	have zsh || need zsh "the completion of commands"
	have fish || need fish "the completion of commands"
	have man || need man-db "the man page"
fi
if [ "${1:-}" = long ]; then
	have qemu-system-x86_64 || need qemu-system-x86 "a guest to install the package in"
	have ssh || need openssh-client "commands in the guest"
fi
if [ "${1:-}" = failures ]; then
	have apache2 || need "apache2-bin" "the service behind nginx"
	compgen -G '/usr/lib/apache2/modules/libphp*.so' >/dev/null || need "libapache2-mod-php php-pgsql" "the program of two stories"
	have gcc || need "gcc libc6-dev" "the library that makes a disk slow"
	have curl || need curl "requests to a server that starts"
fi
if [ "${1:-}" = browser ]; then
	have chromium || have google-chrome || need chromium "the browser"
	have npm || need npm "axe-core, which looks for barriers"
fi
if [ "${1:-}" = mysql ]; then
	libraries=$(ldconfig -p)
	have mvn || need maven "MySQL 5.7 and 8.0, which it fetches"
	have unzip || need unzip "their archives"
	if [[ $libraries == *"libaio.so.1t64 "* ]] && ! compgen -G '/usr/lib/*/libaio.so.1' >/dev/null; then
		echo "MySQL looks for libaio.so.1, which is named libaio.so.1t64 here: run ln -s libaio.so.1t64 /usr/lib/x86_64-linux-gnu/libaio.so.1" >&2
		exit 1
	fi
	aio=libaio1
	! apt-cache show libaio1t64 >/dev/null 2>&1 || aio=libaio1t64
	[[ $libraries == *"libaio.so.1 "* || $libraries == *"libaio.so.1t64 "* ]] || need "$aio" "MySQL's server"
	[[ $libraries == *"libnuma.so.1 "* ]] || need libnuma1 "MySQL's server"
fi
[ ${#missing[@]} -eq 0 ] && exit 0

echo "The tests need Debian packages that are not installed:"
printf '%s\n' "${reasons[@]}"

# fail prints why nothing was installed and what to do.
fail() {
	echo "$1 Install these packages by hand and run make again: ${missing[*]}" >&2
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
	fail "apt-get could not install them; without a network it cannot."
