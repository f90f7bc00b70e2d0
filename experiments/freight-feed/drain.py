"""SIGTERM under load: no request that was accepted may fail."""

import json
import subprocess
import time

import process
import results
from postgres import Postgres
from services import FEED_PATH, Bench


def arguments(parser):
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--keep-alive", type=int, default=64, help="keep-alive connections")
    parser.add_argument("--short", type=int, default=8, help="clients that open a connection for each request")
    parser.add_argument("--path", default=FEED_PATH, help="what is asked for")


def run(args):
    database = Postgres(args.database)
    rounds = []
    with Bench(args) as bench:
        program = bench.build("drain")
        for n in range(1, args.rounds + 1):
            rounds.append({"round": n} | once(args, bench, program))
            print(rounds[-1], flush=True)
        m = results.manifest(args, database)
    document = {"experiment": "drain", "manifest": m, "rounds": rounds}
    results.save("drain", document)
    print("\n" + table(document))
    if any(r["lost"] or r["exit_code"] for r in rounds):
        raise SystemExit(1)


def once(args, bench, program):
    """One server, loaded and stopped."""
    feed = bench.spillway()
    client = subprocess.Popen(
        [program, "--address", f"127.0.0.1:{feed.port}", "--path", args.path, "--pid", str(feed.pid),
         "--keep-alive", str(args.keep_alive), "--short", str(args.short)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    time.sleep(1)
    memory = process.memory(feed.pid)
    out, problems = client.communicate()
    if client.returncode not in (0, 1):
        raise SystemExit(f"drain: {problems}")
    feed.process.popen.wait(60)
    return json.loads(out) | {"exit_code": feed.process.popen.returncode} | memory


def table(document):
    rounds, s = document["rounds"], document["manifest"]["settings"]
    rows = []
    for kind, name in (("keep_alive", f"{s['keep_alive']} keep-alive connections"), ("short", f"{s['short']} clients, a connection for each request")):
        total = {k: sum(r[kind][k] for r in rounds) for k in rounds[0][kind]}
        rows.append([
            name, f"{total['answered']:,}", f"{total['answered_after_signal']:,}", total["lost_on_a_new_connection"], total["lost_on_a_used_connection"], total["lost_cut_short"],
            total["status_not_200"], total["closed_before_the_request_was_written"], total["connections_refused"],
        ])
    title = f"**Drain** (SIGTERM under load, {len(rounds)} times; lost in all: {sum(r['lost'] for r in rounds)}; exit codes: {sorted({r['exit_code'] for r in rounds})}; RSS {results.spread([r['rss_bytes'] / 1e6 for r in rounds], 0)} MB)"
    header = ["clients", "answered", "after the signal", "lost on a new connection", "lost on a used one", "lost cut short", "not 200", "closed before the request was written", "connections refused"]
    return title + "\n\n" + results.markdown(header, rows)
