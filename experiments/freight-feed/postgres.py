"""The PostgreSQL under test: its statements, counters and processes. It must run on this host."""

import glob
import os
import subprocess
import time
import urllib.parse

import process


class Postgres:
    """A running PostgreSQL, asked through psql."""

    def __init__(self, url):
        self.url = url
        self.name = self.value("SELECT current_database()")
        # pg_read_file is a superuser's; the postmaster's number is its first line.
        self.pid = int(self.value("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)"))
        self.counts_statements = self.value("SELECT count(*) FROM pg_extension WHERE extname = 'pg_stat_statements'") == "1"

    def psql(self, script):
        """The output of a psql script, unaligned and without headers."""
        command = ["psql", self.url, "-XAtq", "-v", "ON_ERROR_STOP=1"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"psql: {done.stderr.strip()}")
        return done.stdout

    def value(self, statement):
        return self.psql(statement + ";").strip()

    def cpu(self):
        """CPU of all processes of this cluster since it started."""
        return process.cpu(self.pid)

    def statements(self):
        """Executions so far by statement, without those of these scripts; without the extension, committed transactions."""
        if not self.counts_statements:
            # A session reports its counts once a second at most.
            time.sleep(1.2)
            return {"transactions": int(self.value(f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{self.name}'"))}
        rows = self.psql(
            "SELECT calls, regexp_replace(regexp_replace(query, '\\s+', ' ', 'g'), '^PREPARE \\w+ AS ', '') FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid "
            "WHERE datname = current_database() AND query !~ 'pg_stat_|pg_read_file|pg_extension|current_database';"
        )
        counts = {}
        for line in rows.splitlines():
            calls, query = line.split("|", 1)
            counts[query] = counts.get(query, 0) + int(calls)
        return counts

    def facts(self):
        """What the manifest says about it."""
        names = "server_version shared_buffers synchronous_commit fsync max_connections shared_preload_libraries jit".split()
        settings = self.psql("".join(f"SHOW {n};" for n in names)).splitlines()
        rows = self.psql(
            "SELECT relname, reltuples::bigint FROM pg_class WHERE relname IN ('orders', 'users') AND relkind = 'r' ORDER BY 1;"
        )
        return dict(zip(names, settings)) | {"rows": {k: int(v) for k, v in (r.split("|") for r in rows.splitlines())}}


def difference(before, after):
    """Executions between two readings, those of no execution left out."""
    counts = {q: n - before.get(q, 0) for q, n in after.items()}
    return {q: n for q, n in counts.items() if n}


class Cluster:
    """A data directory that may be stopped and started: as its owner, when run as root."""

    def __init__(self, directory, bindir=None):
        self.directory = directory
        self.owner = os.stat(directory).st_uid
        versions = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        self.bindir = bindir or (versions[-1] if versions else "")

    def control(self, *arguments):
        command = [os.path.join(self.bindir, "pg_ctl"), "-D", self.directory, "-w", *arguments]
        user = {"user": self.owner, "group": os.stat(self.directory).st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/", check=False, **user)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}:\n{done.stdout}")

    def stop(self):
        self.control("stop", "-m", "immediate")

    def start(self, log):
        self.control("start", "-l", log)


def without_password(url):
    """The URL fit for a result file: no password, no query."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
