"""CPU per request of a page in the window, against servers that do less and servers that do the usual."""

import json
import random
import statistics

import process
import results
import wrk
from postgres import Postgres
from services import Bench, get

TARGETS = ["feed", "hello", "return", "cache", "cache-open-files"]
# The feed's CPU over that of another server, and the most it may be; None: for the record.
LIMITS = {"return": 1.6, "hello": 1.1, "cache": 0.8, "cache-open-files": None}


def arguments(parser):
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="a connection for each request (Connection: close)")
    parser.add_argument("--only", default=",".join(TARGETS), help="targets, joined by commas: " + ", ".join(TARGETS) + ", seedapp")


def start(bench, names):
    """The servers named, and the process whose CPU counts for each."""
    targets = {}
    seedapp = spillway = None
    if {"cache", "cache-open-files", "seedapp"} & set(names):
        seedapp = bench.seedapp()
    if {"feed", "hello"} & set(names):
        spillway = bench.spillway()
    page = get((spillway or seedapp or bench.seedapp()).url)[1].decode()
    if spillway and seedapp:
        compare(page, get(seedapp.url)[1].decode())
    for name in names:
        if name == "feed":
            targets[name] = (spillway.url, spillway)
        elif name == "hello":
            targets[name] = (f"http://127.0.0.1:{spillway.port}/hello", spillway)
        elif name == "return":
            s = bench.nginx_return(page)
            targets[name] = (s.url, s)
        elif name in ("cache", "cache-open-files"):
            s = bench.nginx_cache(seedapp, open_files=name != "cache")
            targets[name] = (s.url, s)
        elif name == "seedapp":
            targets[name] = (seedapp.url, seedapp)
        else:
            raise SystemExit(f"--only: there is no target {name!r}")
    return targets, page


def compare(ours, seeds):
    """The two programs must give the same rows: only then do they compare."""
    if json.loads(ours)["data"] != json.loads(seeds)["data"]:
        raise SystemExit(f"the feed and seedapp differ:\n{ours}\n{seeds}")


def measure(database, service, command):
    """One wrk run with the CPU and memory of the server and the database around it."""
    before, database_before = process.cpu(service.pid), database.cpu()
    counts = wrk.run(command)
    server, db = process.cpu(service.pid) - before, database.cpu() - database_before
    return counts | {
        "cpu_user_seconds": round(server.user, 3),
        "cpu_sys_seconds": round(server.sys, 3),
        "database_cpu_seconds": round(db.total, 3),
    } | process.memory(service.pid)


def micros(r, part=None):
    """CPU microseconds per request of one round."""
    user, system = r["cpu_user_seconds"], r["cpu_sys_seconds"]
    return {"user": user, "sys": system, None: user + system}[part] / r["requests"] * 1e6


def run(args):
    database = Postgres(args.database)
    names = args.only.split(",")
    rounds = []
    with Bench(args) as bench:
        targets, page = start(bench, names)
        order = random.Random(args.random_seed)
        for n in range(args.rounds + 1):  # round 0 warms up and is not kept
            order.shuffle(names)
            for name in names:
                url, service = targets[name]
                r = {"round": n, "target": name} | measure(database, service, wrk.wrk_command(url, args, args.short))
                if n > 0:
                    rounds.append(r)
                print(
                    f"round {n or 'warm-up'} {name:16} {micros(r):6.2f} us/request ({micros(r, 'user'):.2f} user, {micros(r, 'sys'):.2f} sys)"
                    f" {r['requests'] / r['seconds']:10,.0f}/s, errors {wrk.failed(r)}",
                    flush=True,
                )
        command = " ".join(wrk.wrk_command("URL", args, args.short))
        m = results.manifest(args, database, load=command, page_bytes=len(page))
    document = {"experiment": "cost", "manifest": m, "rounds": rounds}
    results.save("cost-short" if args.short else "cost", document)
    print("\n" + table(document))


def table(document):
    settings = document["manifest"]["settings"]
    rounds = document["rounds"]
    connections = "a connection for each request" if settings["short"] else "keep-alive connections"
    rows = []
    for name in sorted({r["target"] for r in rounds}, key=(TARGETS + ["seedapp"]).index):
        own = [r for r in rounds if r["target"] == name]
        rows.append([
            name,
            results.spread([micros(r) for r in own]),
            results.spread([micros(r, "user") for r in own]),
            results.spread([micros(r, "sys") for r in own]),
            results.spread([r["requests"] / r["seconds"] for r in own], 0),
            results.spread([r["database_cpu_seconds"] / r["seconds"] * 1000 for r in own], 0),
            results.spread([r["rss_bytes"] / 1e6 for r in own], 0),
            sum(wrk.failed(r) for r in own),
        ])
    ratios = []
    for name, limit in LIMITS.items():
        values = results.paired(rounds, "feed", name, micros)
        if values:
            bounded = limit and not settings["short"]
            held = results.verdict(statistics.median(values) <= limit) if bounded else "-"
            ratios.append([f"feed / {name}", results.spread(values), limit if bounded else "-", held])
    title = f"**CPU per request, {connections}** (`{document['manifest']['load']}`, {settings['rounds']} interleaved rounds, page of {document['manifest']['page_bytes']:,} bytes, nginx workers: {settings['nginx_workers']})"
    header = ["server", "CPU us/request", "user", "sys", "requests/s", "database CPU ms/s", "RSS MB", "errors"]
    text = title + "\n\n" + results.markdown(header, rows)
    if ratios:
        text += "\n\n" + results.markdown(["CPU per request, paired by round", "ratio", "at most", "held"], ratios)
    return text
