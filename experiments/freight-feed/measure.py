#!/usr/bin/env python3
"""Every figure of the freight feed, one command each. README.md says what each one measures.

    measure.py cost --database postgres://postgres@127.0.0.1:5432/freight
"""

import argparse
import os
import shutil

import cost
import dbcpu
import deep
import drain
import freshness
import outage
import rates
import results

EXPERIMENTS = {
    "cost": (cost, "CPU per request: feed, hello, nginx return, nginx cache"),
    "rates": (rates, "requests a second against the seed's design; latency at random offsets"),
    "dbcpu": (dbcpu, "database CPU and statements at 0, 300 and 30,000 requests a second"),
    "deep": (deep, "what a page ten million rows deep costs the database"),
    "freshness": (freshness, "how soon a new order shows on page 1"),
    "outage": (outage, "PostgreSQL stopped for 30 s under load"),
    "drain": (drain, "SIGTERM under load"),
}


def main():
    parser = argparse.ArgumentParser(description="Measure the freight feed.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, (experiment, text) in EXPERIMENTS.items():
        verb = verbs.add_parser(name, help=text, description=experiment.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        common(verb)
        experiment.arguments(verb)
        verb.set_defaults(run=experiment.run)
    verb = verbs.add_parser("table", help="Markdown tables of result files")
    verb.add_argument("files", nargs="*", help="default: all of results/")
    verb.add_argument("--write", action="store_true", help="put them into README.md")
    verb.set_defaults(run=tables)
    args = parser.parse_args()
    args.run(args)


def common(parser):
    spillway = os.path.relpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bin/spillway"))
    parser.add_argument("--database", required=True, help="URL of a seeded PostgreSQL on this host, as a superuser")
    parser.add_argument("--spillway", default=spillway, help="the binary")
    parser.add_argument("--connections", type=int, default=32, help="wrk's connections")
    parser.add_argument("--duration", type=int, default=8, help="seconds of each run")
    parser.add_argument("--random-seed", type=int, default=1)
    parser.add_argument("--nginx-workers", default="1", help="worker_processes: a number, or auto for one a core")
    for program in ("wrk", "nginx", "psql", "go"):
        if shutil.which(program) is None:
            parser.error(f"{program} is not installed (Debian: apt install wrk nginx postgresql-client golang)")


def tables(args):
    order = list(EXPERIMENTS)
    documents = sorted(results.load(args.files), key=lambda d: order.index(d["experiment"]))
    if not documents:
        raise SystemExit("no result files yet: run an experiment first")
    parts = [f"{EXPERIMENTS[d['experiment']][0].table(d)}\n\n{results.machine(d)}" for d in documents]
    text = "\n\n".join(parts)
    print(text)
    if args.write:
        results.write_readme(text)


if __name__ == "__main__":
    main()
