"""CPU of all PostgreSQL processes, and statements, by the request rate."""

import time

import rates
import results
import wrk
from postgres import Postgres, difference
from services import Bench, metric

LIMIT_SECONDS = 0.020  # database CPU a second
REFRESHES = "spillway_feed_refreshes_total"
SETTLE_SECONDS = 3  # load before the first reading


def arguments(parser):
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--feed-rates", default="0,300,30000", help="requests a second, joined by commas")
    parser.add_argument("--seed-rate", type=float, default=300, help="requests a second for seedapp")
    parser.add_argument("--span", type=int, default=30, help="seconds between the two readings")
    parser.add_argument("--idle-wait", type=int, default=30, help="seconds without requests before the idle reading")


def run(args):
    database = Postgres(args.database)
    if not database.counts_statements:
        print("pg_stat_statements is not there: committed transactions are counted, these scripts' own among them")
    rounds = []
    with Bench(args) as bench:
        loop = wrk.OpenLoop(bench)
        for n in range(1, args.rounds + 1):
            feed = bench.spillway()
            for rate in map(float, args.feed_rates.split(",")):
                rounds.append({"round": n, "target": "feed"} | span(args, database, loop, feed, rate))
            feed.process.stop()
            seedapp = bench.seedapp()
            rounds.append({"round": n, "target": "seedapp"} | span(args, database, loop, seedapp, args.seed_rate))
            seedapp.process.stop()
            # The same without any server: what the database does for itself.
            rounds.append({"round": n, "target": "nothing"} | span(args, database, loop, None, 0))
        m = results.manifest(args, database, open_loop=loop.name, counted="statements" if database.counts_statements else "transactions")
    document = {"experiment": "dbcpu", "manifest": m, "rounds": rounds}
    results.save("dbcpu", document)
    print("\n" + table(document))


def span(args, database, loop, service, rate):
    """Load at that rate, and what the database spent between two readings in the middle of it."""
    load = None
    if rate:
        load = loop.start(service.url, rate, args.span + 2 * SETTLE_SECONDS + 2, args.connections, args.random_seed)
        time.sleep(SETTLE_SECONDS)
    elif service:
        time.sleep(args.idle_wait)
    statements, refreshes = database.statements(), refreshed(service)
    begin, cpu = time.monotonic(), database.cpu()
    time.sleep(args.span)
    cpu, seconds = database.cpu() - cpu, time.monotonic() - begin
    statements = difference(statements, database.statements())
    refreshes = refreshed(service) - refreshes
    step = rates.brief(loop.finish(load)) if load else {}
    r = {
        "rate_wanted_hz": rate,
        "seconds": round(seconds, 3),
        "cpu_user_seconds": round(cpu.user, 3),
        "cpu_sys_seconds": round(cpu.sys, 3),
        "refreshes": refreshes,
        "statements": statements,
        "load": step,
    }
    name = service.process.name.rsplit("-", 1)[0] if service else "no server"
    print(
        f"{name:9} {rate:8,.0f}/s wanted, {step.get('rate_hz', 0):8,.0f}/s sent: database CPU {cpu.total / seconds * 1e3:7.1f} ms/s"
        f" ({cpu.user / seconds * 1e3:.1f} user, {cpu.sys / seconds * 1e3:.1f} sys), {refreshes:.0f} refreshes, {sum(statements.values())} statements",
        flush=True,
    )
    return r


def refreshed(service):
    """Refreshes so far; 0 for a server that has none."""
    return (metric(service, REFRESHES) or 0) if service and service.admin else 0


def table(document):
    rounds = document["rounds"]
    rows = []
    for target, rate in sorted({(r["target"], r["rate_wanted_hz"]) for r in rounds}):
        own = [r for r in rounds if (r["target"], r["rate_wanted_hz"]) == (target, rate)]
        per_second = [(r["cpu_user_seconds"] + r["cpu_sys_seconds"]) / r["seconds"] for r in own]
        statements = [sum(r["statements"].values()) for r in own]
        refreshes = sum(r["refreshes"] for r in own)
        sent = [r["load"]["rate_hz"] for r in own if r["load"]]
        per_request = [p / s * 1e3 for p, s in zip(per_second, sent)] if sent else []
        held = "-"
        if target == "feed":
            # A reading may catch one refresh under way at either end.
            few = all(sum(r["statements"].values()) <= r["refreshes"] + (2 if rate else 0) for r in own)
            held = results.verdict(max(per_second) <= LIMIT_SECONDS and few)
        rows.append([
            target,
            f"{rate:,.0f}",
            results.spread(sent, 0),
            results.spread([p * 1e3 for p in per_second], 1),
            results.spread([r["cpu_user_seconds"] / r["seconds"] * 1e3 for r in own], 1),
            results.spread([r["cpu_sys_seconds"] / r["seconds"] * 1e3 for r in own], 1),
            results.spread(per_request, 4),
            results.spread([s / r["seconds"] for s, r in zip(statements, own)], 2),
            f"{sum(statements) / refreshes:.3f}" if refreshes else "-",
            held,
        ])
    m = document["manifest"]
    title = f"**Database CPU by rate** (all processes of the cluster, {m['settings']['span']} s a reading, {m['settings']['rounds']} rounds; load: {m['open_loop']}; at most {LIMIT_SECONDS * 1e3:.0f} ms/s and one statement a refresh)"
    header = ["server", "wanted /s", "sent /s", "CPU ms/s", "user", "sys", "CPU ms/request", f"{m['counted']} /s", f"{m['counted']} a refresh", "held"]
    return title + "\n\n" + results.markdown(header, rows)
