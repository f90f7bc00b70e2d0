"""Requests a second of the feed and of the seed's Go design; latency at random offsets."""

import random
import statistics

import cost
import results
import wrk
from postgres import Postgres
from services import Bench

CASES = {
    "newest": "offset 0",
    "random": "random offset below 10,000",
}
# The feed's requests a second over seedapp's, and the least it may be.
LIMITS = {"newest": 6, "random": 100}
P99_LIMIT_MILLISECONDS = 10


def arguments(parser):
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--offsets", type=int, default=10_000, help="random offsets are below this")
    parser.add_argument("--deep-offsets", type=int, default=1_000_000, help="the open loop's random offsets are up to this")
    parser.add_argument("--deep-rate", type=float, default=1000, help="requests a second of the open loop")
    parser.add_argument("--deep-duration", type=int, default=30, help="seconds of one open-loop run")
    parser.add_argument("--warm-up", type=int, default=15, help="seconds of the same open-loop load before the first run")


def run(args):
    database = Postgres(args.database)
    rounds, deep = [], []
    with Bench(args) as bench:
        servers = {"feed": bench.spillway(), "seedapp": bench.seedapp()}
        order = random.Random(args.random_seed)
        plan = [(case, name) for case in CASES for name in servers]
        for n in range(1, args.rounds + 1):
            order.shuffle(plan)
            for case, name in plan:
                rounds.append(closed(args, database, servers[name], n, case, name))
        loop = wrk.OpenLoop(bench)
        url = servers["feed"].url + "?offset={random(0,%d)}" % args.deep_offsets
        loop.run(url, args.deep_rate, args.warm_up, args.connections, args.random_seed)
        for n in range(1, args.rounds + 1):
            step = loop.run(url, args.deep_rate, args.deep_duration, args.connections, args.random_seed + n)
            deep.append({"round": n, "target": "feed", "step": brief(step)})
            print(f"round {n} open loop {step['rate_hz']:,.0f}/s: {in_words(step)}", flush=True)
        m = results.manifest(args, database, load=" ".join(wrk.wrk_command("URL", args)), open_loop=loop.name)
    document = {"experiment": "rates", "manifest": m, "rounds": rounds, "open_loop": deep}
    results.save("rates", document)
    print("\n" + table(document))


def closed(args, database, service, n, case, name):
    """One wrk run of a server at full speed."""
    command = wrk.wrk_command(service.url, args)
    if case == "random":
        path = "/" + service.url.split("/", 3)[3]
        command = wrk.wrk_command(service.url, args, script="offsets.lua", arguments=[path, args.offsets, args.random_seed + n])
    r = {"round": n, "case": case, "target": name} | cost.measure(database, service, command)
    print(f"round {n} {CASES[case]:26} {name:8} {r['requests'] / r['seconds']:10,.1f}/s, errors {wrk.failed(r)}", flush=True)
    return r


def brief(step):
    """The fields of an open-loop step that are kept."""
    keep = ("p50_seconds", "p99_seconds", "max_seconds")
    kept = {k: step[k] for k in ("requests", "rate_hz", "errors", "validity") if k in step}
    for name in ("response", "lag"):
        kept[name] = {k: step[name][k] for k in keep if k in step.get(name, {})}
    return kept


def in_words(step):
    r = step["response"]
    p50, p99 = (results.spread(milliseconds([r[k]])) for k in ("p50_seconds", "p99_seconds"))
    return f"p50 {p50} ms, p99 {p99} ms, errors {sum(step['errors'].values())}, {step.get('validity', '')}"


def milliseconds(seconds):
    """Without the percentiles that a sample was too small for."""
    return [s * 1e3 for s in seconds if s is not None]


def per_second(r):
    return r["requests"] / r["seconds"]


def table(document):
    settings = document["manifest"]["settings"]
    rows = []
    for case, text in CASES.items():
        rounds = [r for r in document["rounds"] if r["case"] == case]
        ratios = results.paired(rounds, "feed", "seedapp", per_second)
        own = {t: [r for r in rounds if r["target"] == t] for t in ("feed", "seedapp")}
        held = statistics.median(ratios) >= LIMITS[case]
        errors = {t: sum(wrk.failed(r) for r in own[t]) for t in own}
        rows.append([
            text,
            results.spread([per_second(r) for r in own["feed"]], 0),
            results.spread([per_second(r) for r in own["seedapp"]], 1),
            results.spread(ratios, 1),
            LIMITS[case],
            results.verdict(held),
            f"{errors['feed']} / {errors['seedapp']}",
        ])
    out = f"**Requests a second** (`{document['manifest']['load']}`, {settings['rounds']} interleaved rounds)\n\n"
    out += results.markdown(["request", "feed /s", "seedapp /s", "ratio by round", "at least", "held", "errors feed / seedapp"], rows)
    steps = [r["step"] for r in document["open_loop"]]
    p99 = milliseconds(s["response"]["p99_seconds"] for s in steps)
    held = len(p99) == len(steps) and max(p99) <= P99_LIMIT_MILLISECONDS
    header = ["random offset up to", "rate /s", "p50 ms", "p99 ms", "max ms", "errors", "validity", f"worst p99 at most {P99_LIMIT_MILLISECONDS} ms"]
    row = [
        f"{settings['deep_offsets']:,}",
        results.spread([s["rate_hz"] for s in steps], 0),
        results.spread(milliseconds(s["response"]["p50_seconds"] for s in steps)),
        results.spread(p99),
        results.spread(milliseconds(s["response"]["max_seconds"] for s in steps)),
        sum(sum(s["errors"].values()) for s in steps),
        ", ".join(sorted({s.get("validity", "-") for s in steps})),
        results.verdict(held),
    ]
    out += f"\n\n**Deep offsets in open loop** ({document['manifest']['open_loop']}, {settings['deep_duration']} s a round, latency from the intended start)\n\n"
    return out + results.markdown(header, [row])
