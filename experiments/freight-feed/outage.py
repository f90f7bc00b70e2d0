"""PostgreSQL stopped under load: old pages with a growing Age, then 503, then pages again by themselves."""

import collections
import os
import threading
import time

import process
import results
import wrk
from postgres import Cluster, Postgres
from services import FEED_PATH, FEED_SQL, Bench, get

CONFIG = """\
feeds:
  - path: {path}
    sql: {sql}
    key: id
    window: 200
    refresh: 100ms
    stale_max: {stale_max}s
"""


def arguments(parser):
    parser.add_argument("--pgdata", required=True, help="data directory of the PostgreSQL: it is stopped (immediate) and started")
    parser.add_argument("--pgbin", help="directory of pg_ctl (default: the newest in /usr/lib/postgresql)")
    parser.add_argument("--down", type=int, default=30, help="seconds that PostgreSQL is down")
    parser.add_argument("--stale-max", type=int, default=10, help="seconds that an old window may be served")
    parser.add_argument("--lead", type=int, default=5, help="seconds of load before and after")


class Sampler(threading.Thread):
    """One client that asks for page 1 fifty times a second and notes what it got by second."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.begin, self.ended = url, time.monotonic(), threading.Event()
        self.seconds = collections.defaultdict(lambda: {"statuses": collections.Counter(), "age_max": None, "slowest_seconds": 0.0})
        self.runs = []  # [status, from, to]

    def run(self):
        while not self.ended.wait(0.02):
            began = time.monotonic()
            try:
                status, _, headers = get(self.url, timeout=5)
                age = headers.get("Age")
            except OSError as e:
                status, age = type(e).__name__, None
            self.note(status, age, began - self.begin, time.monotonic() - began)

    def note(self, status, age, at, took):
        second = self.seconds[int(at)]
        second["statuses"][str(status)] += 1
        second["slowest_seconds"] = max(second["slowest_seconds"], round(took, 4))
        if age is not None and status == 200:
            second["age_max"] = max(second["age_max"] or 0, int(age))
        if not self.runs or self.runs[-1][0] != status:
            self.runs.append([status, round(at, 2), round(at, 2)])
        self.runs[-1][2] = round(at, 2)


def run(args):
    database = Postgres(args.database)
    cluster = Cluster(args.pgdata, args.pgbin)
    manifest = results.manifest(args, database)
    with Bench(args) as bench:
        config = CONFIG.format(path=FEED_PATH, sql=FEED_SQL, stale_max=args.stale_max)
        feed = bench.spillway(config)
        command = wrk.wrk_command(feed.url, args)
        command[command.index(f"-d{args.duration}s")] = f"-d{args.down + 4 * args.lead}s"
        load = wrk.start(command)
        sampler = Sampler(feed.url)
        sampler.start()
        time.sleep(args.lead)
        events = {"stopped": since(sampler)}
        cluster.stop()
        events["down"] = since(sampler)
        try:
            time.sleep(args.down)
        finally:
            events["starting"] = since(sampler)
            # Beside the data directory: the server's owner can write there.
            cluster.start(os.path.join(os.path.dirname(os.path.abspath(args.pgdata)), "outage-restart.log"))
        events["up"] = since(sampler)
        time.sleep(2 * args.lead)
        counts = wrk.finish(load)
        sampler.ended.set()
        sampler.join()
        memory = process.memory(feed.pid)
        lived = feed.process.alive()
    document = {
        "experiment": "outage", "manifest": manifest, "events_seconds": events, "runs": sampler.runs, "load": counts, "memory": memory, "alive": lived,
        "seconds": [{"second": s} | {**v, "statuses": " ".join(f"{k}:{n}" for k, n in v["statuses"].items())} for s, v in sorted(sampler.seconds.items())],
    }
    for s in document["seconds"]:
        print(s)
    results.save("outage", document)
    print("\n" + table(document))
    if not all(checks(document).values()):
        raise SystemExit(1)


def since(sampler):
    return round(time.monotonic() - sampler.begin, 2)


def checks(document):
    """What must hold, by its words."""
    e, runs = document["events_seconds"], document["runs"]
    stale_max = document["manifest"]["settings"]["stale_max"]
    ages = [s["age_max"] for s in document["seconds"] if e["down"] < s["second"] <= e["down"] + stale_max - 1 and s["age_max"] is not None]
    return {
        "200, then 503, then 200, and nothing else": [r[0] for r in runs] == [200, 503, 200],
        "Age grows while the database is down": growing(ages) and ages[-1] >= stale_max - 2,
        "no page older than the bound": max((s["age_max"] or 0) for s in document["seconds"]) <= stale_max,
        "503 begins within a second of the bound": len(runs) > 1 and abs(runs[1][1] - e["stopped"] - stale_max) <= 1.5,
        "the server lived on": document["alive"],
    }


def growing(ages):
    """Whether the ages never fall and rise on the whole; two samples a second may share a whole number."""
    return len(ages) > 2 and all(b >= a for a, b in zip(ages, ages[1:])) and ages[-1] > ages[0]


def table(document):
    e, s = document["events_seconds"], document["manifest"]["settings"]
    rows = [[str(status), f"{a:.1f}", f"{b:.1f}"] for status, a, b in document["runs"]]
    title = (
        f"**Outage** (PostgreSQL stopped at {e['stopped']:.1f} s, started at {e['starting']:.1f} s, up at {e['up']:.1f} s; stale_max {s['stale_max']} s; "
        f"wrk with {s['connections']} connections beside it: {document['load']['requests']:,} answers, {document['load']['errors']['status']:,} of them 503, "
        f"{document['load']['errors']['read'] + document['load']['errors']['connect'] + document['load']['errors']['timeout']} broken; RSS {document['memory']['rss_bytes'] / 1e6:.0f} MB)"
    )
    held = [[text, results.verdict(ok)] for text, ok in checks(document).items()]
    ages = ", ".join(f"{x['second']}: {x['age_max']}" for x in document["seconds"] if x["age_max"])
    return "\n\n".join([
        title, results.markdown(["status", "from s", "to s"], rows), f"Highest Age by second: {ages}.", results.markdown(["", "held"], held),
    ])
