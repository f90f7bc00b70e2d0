"""A cursor page millions of rows deep against the first cursor page: buffers and time in the database, latency over HTTP."""

import json
import statistics
import time
import urllib.parse

import process
import results
from postgres import Postgres, difference
from services import FEED_SQL, Bench, get

LIMIT = 1.5
PAGE_ROWS = 10


def arguments(parser):
    parser.add_argument("--depth", type=int, default=10_000_000, help="rows above the deep page")
    parser.add_argument("--window", type=int, default=200, help="rows above the first cursor page: those of the window")
    parser.add_argument("--pages", type=int, default=51, help="pages walked at each place")
    parser.add_argument("--patience", type=int, default=600, help="seconds that the server may need to reach the deep offset at first")
    parser.add_argument("--rows", type=int, default=16, help="the row bound in the server's statement for a page of ten")


def run(args):
    database = Postgres(args.database)
    rows = int(database.value("SELECT count(*) FROM orders"))
    if rows < args.depth + args.pages * PAGE_ROWS:
        raise SystemExit(f"the table has {rows:,} rows, too few for --depth {args.depth}: seed more or ask for less")
    places = {"first": args.window, "deep": args.depth}
    plans = explain(args, database, places)
    before = database.statements()
    with Bench(args) as bench:
        spillway = bench.spillway()
        latency = walk(args, spillway.url, places)
    statement = statement_text(args)
    if database.counts_statements:
        check_statement(difference(before, database.statements()), statement, args)
    else:
        print("pg_stat_statements is not there: whether the server's statement is the one explained was not checked")
    document = {"experiment": "deep", "manifest": results.manifest(args, database, statement=statement), "plans": plans, "http_seconds": latency}
    results.save("deep", document)
    print("\n" + table(document))


def statement_text(args):
    """The statement that the server prepares for a page behind a cursor: $1 the key, $2 the limit, $3 the rows skipped."""
    inner = f'SELECT * FROM ({FEED_SQL}) AS feed WHERE ("id") < ($1) ORDER BY "id" DESC LIMIT {args.rows}'
    return f'SELECT * FROM ({inner}) AS page ORDER BY "id" DESC LIMIT $2 OFFSET $3'


def check_statement(ran, statement, args):
    """The server must have run the very statement that was explained, for each page walked."""
    # The extension numbers constants on behind the parameters.
    wanted = statement.replace(f"LIMIT {args.rows})", "LIMIT $4)")
    if ran.get(wanted, 0) < 4 * args.pages:
        raise SystemExit(f"the server did not run the statement that was explained, {wanted}, but:\n" + "\n".join(ran))


def explain(args, database, places):
    """Each page at each place is read twice, the places in turn; the second reading, warm, is kept."""
    first_keys = {p: int(database.value(f"SELECT id FROM orders ORDER BY id DESC OFFSET {above - 1} LIMIT 1")) for p, above in places.items()}
    script = [f"PREPARE page AS {statement_text(args)};"]
    order = []
    for i in range(args.pages):
        for warm in (False, True):
            for place, key in first_keys.items():
                script += [f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE page({key - i * PAGE_ROWS}, {PAGE_ROWS}, 0);", "\\echo ----"]
                order.append((place, warm))
    answers = database.psql("\n".join(script)).split("----\n")
    plans = {place: [] for place in places}
    for (place, warm), answer in zip(order, answers):
        if warm:
            plan = json.loads(answer)[0]
            node = plan["Plan"]
            plans[place].append({
                "buffers_hit": node["Shared Hit Blocks"],
                "buffers_read": node["Shared Read Blocks"],
                "execution_ms": plan["Execution Time"],
                "planning_ms": plan["Planning Time"],
                "node": nodes(node),
            })
    return plans


def nodes(node):
    """The plan's node types from the top, to see that both places have the same plan."""
    index = " on " + node["Index Name"] if "Index Name" in node else ""
    inner = [nodes(n) for n in node.get("Plans", [])]
    return node["Node Type"] + index + (f"({', '.join(inner)})" if inner else "")


def walk(args, url, places):
    """Seconds of each page that a client gets who walks from each place by the cursors."""
    seconds = {place: [] for place in places}
    cursors = {place: cursor_at(url, above, args.patience) for place, above in places.items()}
    for warm in (False, True):
        at = dict(cursors)
        for _ in range(args.pages):
            for place in places:
                begin = time.monotonic()
                page = read(f"{url}?before={urllib.parse.quote(at[place])}")
                took = time.monotonic() - begin
                if warm:
                    seconds[place].append(round(took, 6))
                at[place] = page["next"]
    return seconds


def cursor_at(url, above, patience):
    """The cursor behind the page that ends with that many rows. The server may have to count its way there first."""
    url = f"{url}?offset={above - PAGE_ROWS}"
    begin = time.monotonic()
    process.wait_until(lambda: get(url)[0] == 200, patience, f"200 for offset {above - PAGE_ROWS:,}")
    print(f"offset {above - PAGE_ROWS:,}: first 200 after {time.monotonic() - begin:.1f} s")
    return read(url)["next"]


def read(url):
    status, body, _ = get(url)
    if status != 200:
        raise SystemExit(f"{url}: status {status}: {body.decode(errors='replace')}")
    return json.loads(body)


def table(document):
    plans, http = document["plans"], document["http_seconds"]
    value = {
        "buffers a page": {p: [x["buffers_hit"] + x["buffers_read"] for x in plans[p]] for p in plans},
        "of them read from outside the buffers": {p: [x["buffers_read"] for x in plans[p]] for p in plans},
        "execution ms": {p: [x["execution_ms"] for x in plans[p]] for p in plans},
        "planning ms": {p: [x["planning_ms"] for x in plans[p]] for p in plans},
        "HTTP, a new connection each, ms": {p: [s * 1e3 for s in http[p]] for p in http},
    }
    bounded = {"buffers a page", "execution ms"}
    rows = []
    for name, v in value.items():
        low = statistics.median(v["first"])
        ratio = statistics.median(v["deep"]) / low if low else None
        held = results.verdict(ratio <= LIMIT) if name in bounded else "-"
        rows.append([name, results.spread(v["first"], 3), results.spread(v["deep"], 3), "-" if ratio is None else f"{ratio:.2f}", held])
    settings = document["manifest"]["settings"]
    same = {x["node"] for p in plans.values() for x in p}
    title = f"**Deep cursor pages** ({settings['pages']} pages at each place, each read once before; `{document['manifest']['statement']}`)"
    notes = "plan: " + "; ".join(f"`{n}`" for n in sorted(same))
    header = ["", f"first cursor page ({settings['window']} rows above)", f"deep page ({settings['depth']:,} rows above)", "ratio of the medians", f"at most {LIMIT}"]
    return title + "\n\n" + results.markdown(header, rows) + "\n\n" + notes
