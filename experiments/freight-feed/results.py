"""Result files: what was run on what, every raw round, and the tables made of them."""

import datetime
import glob
import json
import math
import os
import platform
import re
import statistics
import subprocess

import postgres
from services import FOLDER

RESULTS = os.path.join(FOLDER, "results")
BEGIN, END = "<!-- results: written by `measure.py table --write` -->", "<!-- /results -->"


def first_line(*command):
    """The first line that a program prints about its version."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.stdout.strip().splitlines()[0].strip()
    except (OSError, IndexError):
        return "not installed"


def manifest(args, database, **more):
    """Machine, versions, settings, command."""
    cpu = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo", encoding="utf-8").read())
    memory = re.search(r"MemTotal:\s*(\d+)", open("/proc/meminfo", encoding="utf-8").read())
    kept = {k: v for k, v in vars(args).items() if k not in {"run", "table", "database", "spillway", "pgdata", "pgbin", "verb"}}
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "memory_bytes": int(memory.group(1)) * 1024,
        "kernel": platform.release(),
        "go": first_line("go", "version"),
        "spillway": first_line(args.spillway, "version"),
        "nginx": first_line("nginx", "-v"),
        "wrk": first_line("wrk", "-v"),
        "database": {"url": postgres.without_password(args.database)} | database.facts(),
        "settings": kept,
    } | more


def save(name, document):
    os.makedirs(RESULTS, exist_ok=True)
    path = os.path.join(RESULTS, name + ".json")
    text = json.dumps(document, indent=1, ensure_ascii=False)
    # One round a line: lists of numbers and flat objects stay together.
    text = re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m.group(1)) + "]", text)
    text = re.sub(r"\{([^{}\[\]]*?)\}", lambda m: "{" + re.sub(r"\s+", " ", m.group(1)).strip() + "}", text)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text + "\n")
    print(f"\nwritten: {os.path.relpath(path)}")


def load(paths):
    for path in paths or sorted(glob.glob(os.path.join(RESULTS, "*.json"))):
        with open(path, encoding="utf-8") as f:
            yield json.load(f)


def percentile(values, p):
    """The smallest value that at least the share p of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(p * len(ordered)) - 1, 0)]


def spread(values, digits=2):
    """median (min-max), or the only value"""
    if not values:
        return "-"
    form = lambda v: f"{v:,.{digits}f}"
    if len(values) == 1:
        return form(values[0])
    return f"{form(statistics.median(values))} ({form(min(values))}-{form(max(values))})"


def paired(rounds, over, under, value):
    """value(over) / value(under) in each round that has both."""
    by_round = {}
    for r in rounds:
        by_round.setdefault(r["round"], {})[r["target"]] = value(r)
    return [v[over] / v[under] for v in by_round.values() if over in v and v.get(under)]


def verdict(ok):
    return "yes" if ok else "**no**"


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def machine(document):
    """One line that says where and with what it was measured."""
    m = document["manifest"]
    d = m["database"]
    rows = ", ".join(f"{n:,} {table}" for table, n in d["rows"].items())
    return (
        f"{m['time'][:10]}, {m['cores']} cores ({m['cpu']}), Linux {m['kernel']}, {m['spillway']}, "
        f"PostgreSQL {d['server_version'].split()[0]} (shared_buffers {d['shared_buffers']}; {rows}), "
        f"{m['nginx'].removeprefix('nginx version: ')}, {m['wrk'].split(' Copyright')[0]}."
    )


def write_readme(text):
    """Replace the marked block of README.md."""
    path = os.path.join(FOLDER, "README.md")
    with open(path, encoding="utf-8") as f:
        readme = f.read()
    head, rest = readme.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")
