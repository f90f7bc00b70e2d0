#!/usr/bin/env python3
"""What `spillway watch` costs, and whether `spillway doctor --for` is right about ports.

    measure.py cost  --postgres URL --mysql URL   20,000 sockets in TIME_WAIT, 50 backends: CPU of the watch
    measure.py ports                              two network namespaces, 1,000 ports: predicted against seen

Needs nginx, and root for `ports`. Everything it starts it stops.
"""
import argparse, json, os, re, resource, signal, subprocess, sys, tempfile, time

SPILLWAY = os.environ.get("SPILLWAY") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "bin", "spillway"))

NGINX = """daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000;
server {{ listen {address} backlog=4096; location / {{ return 200 "hello"; }} }} }}
"""


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, capture_output=True, **options).stdout


class Nginx:
    """One nginx on an address, in a namespace or not."""

    def __init__(self, address, namespace=None):
        self.dir = tempfile.mkdtemp(prefix="spillway-watch-")
        config = os.path.join(self.dir, "nginx.conf")
        with open(config, "w") as f:
            f.write(NGINX.format(dir=self.dir, address=address))
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        self.process = subprocess.Popen(inside + ["nginx", "-p", self.dir, "-c", config])

    def __enter__(self):
        deadline = time.time() + 10
        while not os.path.exists(os.path.join(self.dir, "pid")) and time.time() < deadline:
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        subprocess.run(["rm", "-r", self.dir], check=True)


class KeptServer:
    """The server that lets its clients close first."""

    def __init__(self, address, namespace):
        self.dir = tempfile.mkdtemp(prefix="spillway-watch-")
        binary = os.path.join(self.dir, "services")
        run("go", "build", "-o", binary, ".", cwd=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "services"))
        self.process = subprocess.Popen(["ip", "netns", "exec", namespace, binary, "empty", "-server", "kept", "-listen", address])

    def __enter__(self):
        time.sleep(0.5)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        subprocess.run(["rm", "-r", self.dir], check=True)


def cost(arguments):
    """CPU of the whole `spillway watch` process, and what it says of itself."""
    with Nginx("127.0.0.1:18099"):
        backends = [subprocess.Popen([SPILLWAY, "load", arguments.postgres, "--sql", "SELECT 1", "-c", "50", "--rate", "50", "-d",
                                      str(arguments.seconds + 25) + "s"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
        try:
            run(SPILLWAY, "load", "http://127.0.0.1:18099/", "--per-connection", "1", "-c", "32", "-n", "24000")
            waiting = int(re.search(r"tw (\d+)", open("/proc/net/sockstat").read())[1])
            with tempfile.TemporaryDirectory() as directory:
                out = os.path.join(directory, "watch.ndjson")
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                begin = time.time()
                run(SPILLWAY, "watch", "-d", f"{arguments.seconds}s", "-o", out, "--watch", f"pg=:{port(arguments.postgres)}", "--watch",
                    f"maria=:{port(arguments.mysql)}", "--watch-db", "pg=" + arguments.postgres, "--watch-db", "maria=" + arguments.mysql)
                took = time.time() - begin
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                own, lines = {}, [json.loads(line) for line in open(out)]
            still = int(re.search(r"tw (\d+)", open("/proc/net/sockstat").read())[1])
        finally:
            for process in backends:
                process.terminate()
                process.wait()
    for record in lines:
        sample = record.get("sample")
        if sample and sample["sampler"] == "watch":
            own.setdefault(sample["subject"], []).append(sample["values"])
        if sample and sample["sampler"] == "postgres" and sample.get("values"):
            connections = sample["values"]["connections"]
    print(f"sockets in TIME_WAIT: {waiting} before, {still} after; PostgreSQL connections: {connections:.0f}")
    total = 0.0
    for subject, values in sorted(own.items()):
        used, reads = values[-1]["cpu_seconds_total"], values[-1]["reads_total"]
        total += used
        print(f"  {subject:24} {reads / took:5.1f} readings/s  {1e6 * used / reads:7.0f} us each  {100 * used / took:6.3f} % of a core")
    process = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"samplers {100 * total / took:.2f} % of a core, the whole process {100 * process / took:.2f} % over {took:.0f} s")


def port(url):
    return re.search(r":(\d+)/", url)[1]


def ports(arguments):
    """Two namespaces: the generator has 1,000 ports; the other one watches itself."""
    left, right = "spillway-watch-a", "spillway-watch-b"
    listener = None
    try:
        for name, address, link in ((left, "10.213.7.1/24", "swa"), (right, "10.213.7.2/24", "swb")):
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "swa", "netns", left, "type", "veth", "peer", "name", "swb", "netns", right)
        for name, address, link in ((left, "10.213.7.1/24", "swa"), (right, "10.213.7.2/24", "swb")):
            run("ip", "-n", name, "addr", "add", address, "dev", link)
            run("ip", "-n", name, "link", "set", link, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "netns", "exec", left, "sysctl", "-qw", "net.ipv4.ip_local_port_range=20000 20999")
        with KeptServer("10.213.7.2:8080", right):
            environment = dict(os.environ, SPILLWAY_WATCH_TOKEN="a-token-of-enough-length")
            listener = subprocess.Popen(["ip", "netns", "exec", right, SPILLWAY, "watch", "--listen", "10.213.7.2:9191", "--watch", "server=:8080"],
                                        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1)  # until it listens
            for rate in arguments.rates:
                one_rate(rate, arguments.rates, left, environment, arguments.keep)
    finally:
        if listener:
            listener.terminate()
            listener.wait()
        for name in (left, right):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def one_rate(rate, rates, left, environment, keep):
    inside = ["ip", "netns", "exec", left]
    seconds = int(1000 / rate * 2) + 4
    said = subprocess.run(inside + [SPILLWAY, "doctor", "--json", "--for", f"rate={rate} short-connections closes=client remote duration={seconds}s"],
                              text=True, capture_output=True)
    prediction = json.loads(said.stdout)["prediction"]
    with tempfile.TemporaryDirectory() as directory:
        out = os.path.join(keep or directory, f"ports-{rate}.ndjson")
        subprocess.run(inside + [SPILLWAY, "load", "http://10.213.7.2:8080/", "--rate", str(rate), "--per-connection", "1", "-d", f"{seconds}s",
                                 "--watch-from", "http://10.213.7.2:9191", "-o", out], env=environment, check=True, text=True, capture_output=True)
        records = [json.loads(line) for line in open(out)]
    first, hosts, top, other = None, set(), 0, 0
    for record in records:
        if "slice" in record and first is None:
            count = record["slice"]["errors"].get("no_local_port", 0)
            if count:  # within this second: the failures are its end
                first = record["slice"]["second"] + 1 - min(count / rate, 1)
        sample = record.get("sample")
        if sample and sample["sampler"] == "tcp":
            hosts.add(sample.get("host", ""))
            if not sample.get("host"):
                top = max(top, sample["values"].get("ports_in_use", 0))
        if sample and sample["sampler"] == "process" and sample.get("host"):
            other += 1
    watch = [record["watch"] for record in records if "watch" in record and record["watch"].get("host")]
    foretold = prediction["local_ports_run_out_after_seconds"]
    print(f"rate {rate}/s: ports run out after {foretold:.1f} s by the prediction; first 'no local port' at {first} s; ports in use at most {top:.0f} of 1000; "
          f"TCP seen in {len(hosts)} namespaces, the server's process {other} times from the other, its clock {watch[0].get('clock_offset_seconds', 0) * 1e6:.0f} us "
          f"ahead +- {watch[0].get('clock_uncertainty_seconds', 0) * 1e6:.0f} us")
    if rate != rates[-1]:
        time.sleep(62)  # until TIME_WAIT ends


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("cost")
    verb.add_argument("--postgres", required=True)
    verb.add_argument("--mysql", required=True)
    verb.add_argument("--seconds", type=int, default=30)
    verb.set_defaults(call=cost)
    verb = verbs.add_parser("ports")
    verb.add_argument("--rates", type=lambda text: [int(r) for r in text.split(",")], default=[100, 250])
    verb.add_argument("--keep", help="a folder for the result files")
    verb.set_defaults(call=ports)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    sys.exit(main())
