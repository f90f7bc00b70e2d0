"""wrk, run once; and open-loop load by `spillway load` or the small stand-in."""

import json
import os
import resource
import subprocess

from services import FOLDER


def wrk_command(url, args, short=False, script="report.lua", arguments=()):
    command = ["wrk", "-t1", f"-c{args.connections}", f"-d{args.duration}s", "--timeout", "30s", "-s", script]
    if short:
        command += ["-H", "Connection: close"]
    return command + [url, *(["--", *map(str, arguments)] if arguments else [])]


def start(command):
    return subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(popen):
    """The counts of a wrk that start started."""
    out, _ = popen.communicate()
    lines = [line for line in out.splitlines() if line.startswith('{"requests"')]
    if popen.returncode != 0 or not lines:
        raise SystemExit(f"wrk did not finish:\n{out}")
    return json.loads(lines[0])


def run(command):
    """Run wrk; its counts and its own CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts = finish(start(command))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts["wrk_cpu_seconds"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)
    return counts


def failed(counts):
    """Errors of all classes together."""
    return sum(counts["errors"].values())


class OpenLoop:
    """Requests at a fixed rate, latency from the intended start."""

    def __init__(self, bench):
        self.spillway = os.path.abspath(bench.args.spillway)
        self.name = "spillway load"
        try:
            probe = subprocess.run([self.spillway, "load", "--help"], capture_output=True, check=False).returncode
        except OSError:
            probe = 1
        if probe != 0:
            self.name = "openloop"
            self.stand_in = bench.build("openloop")

    def start(self, url, rate, seconds, connections, seed):
        if self.name == "openloop":
            command = [self.stand_in, "--url", url, "--random-seed", str(seed)]
        else:
            command = [self.spillway, "load", url, "--seed", str(seed), "--json"]
        command += ["--rate", f"{rate:g}", "--duration", f"{seconds}s", "--connections", str(connections)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, popen):
        """The first step of the result."""
        out, problems = popen.communicate()
        try:
            return json.loads(out)["steps"][0]
        except (ValueError, KeyError, IndexError):
            raise SystemExit(f"{self.name} gave no result:\n{problems}{out}") from None

    def run(self, *args):
        return self.finish(self.start(*args))
