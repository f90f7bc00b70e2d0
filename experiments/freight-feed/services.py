"""The four servers that are compared, each on a free port of its own."""

import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.parse

import process

FOLDER = os.path.dirname(os.path.abspath(__file__))
FEED_PATH = "/goodslist"

# The feed as the built-in configuration has it; the scripts that need a
# configuration of their own repeat it.
FEED_SQL = (
    "SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno "
    "FROM orders JOIN users ON users.id = orders.users_id"
)


class Service:
    """A running server and where it answers."""

    def __init__(self, proc, port, path=FEED_PATH, admin=None):
        self.process, self.port, self.admin = proc, port, admin
        self.pid = proc.pid
        self.url = f"http://127.0.0.1:{port}{path}"


class Bench:
    """A temporary directory, the programs built into it, and the servers started from it. Use it in a with statement."""

    def __init__(self, args):
        self.args = args
        self.started = []

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="freight-feed-")
        os.chmod(self.directory, 0o755)  # nginx workers run as another user
        return self

    def __exit__(self, *_):
        for p in reversed(self.started):
            p.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def build(self, name):
        """Compile the Go program of that name in this folder."""
        out = os.path.join(self.directory, "bin-" + name)
        if not os.path.exists(out):
            subprocess.run(["go", "build", "-o", out, "./" + name], cwd=FOLDER, check=True)
        return out

    def seedapp(self, pool=8):
        port = free_port()
        command = [self.build("seedapp"), "--database", self.args.database, "--listen", f"127.0.0.1:{port}", "--pool", str(pool)]
        return self.serve("seedapp", command, port, "/")

    def spillway(self, config=None):
        """spillway serve: the built-in freight app, or the configuration in that text."""
        port, admin = free_port(), free_port()
        if not os.access(self.args.spillway, os.X_OK):
            raise SystemExit(f"{self.args.spillway} is not there: run `make build` first, or name it with --spillway")
        command = [os.path.abspath(self.args.spillway), "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
        command += ["--data", os.path.join(self.directory, f"data-{port}")]
        if config is not None:
            command.append(os.path.join(self.directory, f"spillway-{port}.yaml"))
            with open(command[-1], "w", encoding="utf-8") as f:
                f.write(config)
        return self.serve("spillway", command, port, FEED_PATH, admin)

    def nginx_cache(self, upstream, open_files=False):
        directive = "open_file_cache max=1000 inactive=60s;" if open_files else ""
        return self.nginx("cache", {"UPSTREAM": str(upstream.port), "OPEN_FILES": directive})

    def nginx_return(self, body):
        if set(body) & {"$", "'", "\\"}:
            raise SystemExit("the page holds a character that nginx would interpret ($, ' or \\): no yardstick from it")
        return self.nginx("return", {"BODY": body})

    def nginx(self, name, values):
        port = free_port()
        directory = os.path.join(self.directory, f"nginx-{port}")
        os.mkdir(directory, 0o755)
        values = values | {"DIR": directory, "LISTEN": str(port), "WORKERS": self.args.nginx_workers}
        with open(os.path.join(FOLDER, f"nginx-{name}.conf"), encoding="utf-8") as f:
            text = f.read()
        for word, value in values.items():
            text = text.replace(f"@{word}@", value)
        config = os.path.join(directory, "nginx.conf")
        with open(config, "w", encoding="utf-8") as f:
            f.write(text)
        command = ["nginx", "-p", directory, "-e", "stderr", "-c", config]
        return self.serve("nginx-" + name, command, port, "/")

    def serve(self, name, command, port, path, admin=None):
        """Start a server and wait for its first 200."""
        # The URL may hold a password: not for the process list.
        environment = os.environ | {"SPILLWAY_DATABASE": self.args.database}
        p = process.Process(f"{name}-{port}", command, self.directory, environment)
        self.started.append(p)
        service = Service(p, port, path, admin)

        def ready():
            if not p.alive():
                raise SystemExit(f"{name} ended at once:\n{p.tail()}")
            try:
                return get(service.url)[0] == 200
            except OSError:
                return False

        process.wait_until(ready, 90, f"{name} answers 200 on {path}")
        return service


def free_port():
    """A port below the range that outgoing connections use, so that load cannot take it first."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        low = int(f.read().split()[0])
    for port in range(low - 1 - os.getpid() % 2000, 1024, -1):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in TAKEN:
                TAKEN.add(port)
                return port
    raise SystemExit("no free port")


TAKEN = set()  # ports given out: their servers may not listen yet


def get(url, timeout=30):
    """One GET: status, body, headers."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.request("GET", parts.path + ("?" + parts.query if parts.query else ""))
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    except http.client.HTTPException as e:
        raise OSError(str(e)) from e
    finally:
        connection.close()


def metric(service, name):
    """The sum of a metric's samples on the admin listener; None when there is none."""
    _, body, _ = get(f"http://127.0.0.1:{service.admin}/metrics")
    values = [float(line.rsplit(" ", 1)[1]) for line in body.decode().splitlines() if line.split("{")[0].split(" ")[0] == name]
    return sum(values) if values else None
