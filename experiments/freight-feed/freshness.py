"""How soon after its commit an order is on page 1, while page 1 is asked for as fast as the server can."""

import json
import statistics
import subprocess
import time

import process
import results
import wrk
from postgres import Postgres
from services import Bench

SLACK_SECONDS = 0.050


def arguments(parser):
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--pause", default="60ms", help="mean pause between two orders")
    parser.add_argument("--refresh", type=float, default=0.1, help="the feed's refresh interval in seconds")


def run(args):
    database = Postgres(args.database)
    with Bench(args) as bench:
        program = bench.build("freshness")
        feed = bench.spillway()
        # The load outlasts the writer and is ended by its number.
        command = wrk.wrk_command(feed.url, args)
        command[command.index(f"-d{args.duration}s")] = "-d3600s"
        load = wrk.start(command)
        try:
            time.sleep(2)
            begin = time.monotonic()
            done = subprocess.run(
                [program, "--database", args.database, "--url", feed.url, "--orders", str(args.orders), "--pause", args.pause, "--random-seed", str(args.random_seed)],
                capture_output=True, text=True, check=False,
            )
            took = time.monotonic() - begin
        finally:
            load.send_signal(2)  # wrk prints what it counted
        counts = wrk.finish(load)
        memory = process.memory(feed.pid)
        if done.returncode != 0:
            raise SystemExit(f"freshness: {done.stderr}")
    document = {
        "experiment": "freshness",
        "manifest": results.manifest(args, database, load=" ".join(wrk.wrk_command("URL", args)[:3])),
        "seconds": round(took, 1), "load": counts, "memory": memory,
    } | json.loads(done.stdout)
    document["delays_seconds"] = [round(d, 6) for d in sorted(document["delays_seconds"])]
    results.save("freshness", document)
    print("\n" + table(document))


def table(document):
    delays = document["delays_seconds"]
    settings = document["manifest"]["settings"]
    bound = settings["refresh"] + SLACK_SECONDS
    p99 = results.percentile(delays, 0.99)
    load = document["load"]
    row = [
        len(delays),
        document["missing"],
        f"{statistics.median(delays) * 1e3:.1f}",
        f"{p99 * 1e3:.1f}",
        f"{delays[-1] * 1e3:.1f}",
        f"{bound * 1e3:.0f}",
        results.verdict(p99 <= bound and not document["missing"]),
        f"{load['requests'] / load['seconds']:,.0f}",
        wrk.failed(load),
        f"{document['memory']['rss_bytes'] / 1e6:.0f}",
    ]
    title = f"**Freshness** (orders inserted one by one over {document['seconds']:.0f} s, `{document['manifest']['load']}` on page 1 beside it; from the commit's return to the end of the first answer with the order)"
    header = ["orders seen", "never seen", "p50 ms", "p99 ms", "max ms", "p99 at most ms", "held", "load requests/s", "load errors", "RSS MB"]
    return title + "\n\n" + results.markdown(header, [row])
