"""Processes: started and stopped, their CPU and memory read from /proc."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class CPU:
    """CPU seconds, or a difference of two readings."""

    user: float
    sys: float

    def __sub__(self, other):
        return CPU(self.user - other.user, self.sys - other.sys)

    @property
    def total(self):
        return self.user + self.sys


def stat(pid):
    """The fields of /proc/PID/stat from the state on: the parent is field 1, utime 11, stime 12, then those of waited-for children."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        line = f.read()
    return line[line.rindex(")") + 2 :].split()


def tree(pid):
    """pid and all its living descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(int(stat(name)[1]), []).append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # gone meanwhile
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        queue.extend(children.get(found[-1], ()))
    return found


def cpu(pid):
    """CPU of the process tree since it began: all threads, ended ones too, and children that were waited for.

    The kernel counts the sum in nanoseconds and hands out ticks (10 ms as a
    rule), so that a difference is good to about one tick for each process.
    """
    user = system = 0
    for p in tree(pid):
        try:
            fields = stat(p)
        except (FileNotFoundError, ProcessLookupError):
            continue
        user += int(fields[11]) + int(fields[13])
        system += int(fields[12]) + int(fields[14])
    return CPU(user / TICKS, system / TICKS)


def memory(pid):
    """Resident bytes of the process tree now, and the highest of pid itself so far."""
    now = peak = 0
    for p in tree(pid):
        try:
            with open(f"/proc/{p}/status", encoding="ascii", errors="replace") as f:
                lines = dict(line.split(":", 1) for line in f if ":" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        now += int(lines.get("VmRSS", "0 kB").split()[0]) * 1024
        if p == pid:
            peak = int(lines.get("VmHWM", "0 kB").split()[0]) * 1024
    return {"rss_bytes": now, "rss_max_bytes": peak}


class Process:
    """A server that this script started. Its output goes to a log file."""

    def __init__(self, name, command, directory, environment):
        self.name = name
        self.log = os.path.join(directory, name + ".log")
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.pid = self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def tail(self):
        """The last lines it logged."""
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-15:])

    def stop(self, seconds=15):
        """Ask it to end, and end it if it does not."""
        if not self.alive():
            return
        self.popen.send_signal(signal.SIGTERM)
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def wait_until(condition, seconds, what):
    """Poll condition until it holds; its value, or an error that says what was waited for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise SystemExit(f"{what}: not within {seconds} s")
