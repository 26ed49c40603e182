"""What registers cost beside plain tables: posting, reading balances now and in the past, cancelling and correcting.

    python bench/register.py [--rounds 1] [--seconds 1] [--movements 2000000] [--synchronous-commit off on]
                             [--only posting maintained reading corrections] [--data DIRECTORY]

Yardsticks: an INSERT of the same rows into a table that has a primary key and nothing else (rows of a batch come from
the same JSON), one into a table with triggers that maintain balances and totals as they are written by hand, and a
lookup by primary key. Posts go to registers in the standard and in the high-write mode, by one client and by four, to
cells of their own (`spread`: as many as a batch has movements) and all to one cell (`hot`). The history that balances
are read from has 1 000 cells over five years. All take turns, directly (Unix socket) and through the server (TCP).
`synchronous_commit` is off unless wanted, so that the disk does not hide what the functions cost.
`--movements 5000000` is the full measure of history; the default takes less than half the time to be written. With
`--data` the history stays in a directory, where the next run finds it, or goes on where one was ended:

    python bench/register.py --movements 5000000 --only reading corrections --data /var/tmp/registers
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.rates import Way, Work, both_ways, postmaster_of, side_by_side, transactions, with_commits
from bench.serving import served

ACCOUNTS, ITEMS = 100, 10
CHUNK = 250_000
SIZES = (10, 100, 1000)
TODAY = date.today().isoformat()
DOCUMENT = 10
"""Movements of a document that is cancelled or corrected."""

PLAIN = """
DROP TABLE IF EXISTS plain, lookup;
CREATE TABLE plain (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), recorded_at timestamptz NOT NULL DEFAULT now(),
    recorder text NOT NULL, period timestamptz NOT NULL,
    account int, item int, quantity numeric(18,4) NOT NULL, amount numeric(18,2) NOT NULL);
CREATE TABLE lookup (
    account int, item int, quantity numeric(18,4) NOT NULL, amount numeric(18,2) NOT NULL, PRIMARY KEY (account, item));
INSERT INTO lookup SELECT a, i, 1, 1 FROM generate_series(1, 100) AS a, generate_series(1, 10) AS i;
"""

# Balances and totals as they are maintained by hand: a statement for each table, in a trigger of the movements'.
MAINTAINED = """
CREATE TABLE maintained (LIKE plain INCLUDING ALL);
CREATE INDEX ON maintained (account, item, period);
CREATE INDEX ON maintained (recorder);
CREATE TABLE maintained_balance (LIKE lookup INCLUDING ALL) WITH (fillfactor = 80);
CREATE TABLE maintained_day (
    account int, item int, period date, quantity numeric(18,4) NOT NULL, amount numeric(18,2) NOT NULL,
    PRIMARY KEY (account, item, period)) WITH (fillfactor = 80);
CREATE TABLE maintained_month (LIKE maintained_day INCLUDING ALL) WITH (fillfactor = 80);
CREATE TABLE maintained_year (LIKE maintained_day INCLUDING ALL) WITH (fillfactor = 80);
"""
BALANCE = """
INSERT INTO maintained_balance AS t SELECT account, item, sum(quantity), sum(amount) FROM inserted
 GROUP BY account, item ORDER BY account, item
ON CONFLICT (account, item) DO UPDATE
   SET quantity = t.quantity + excluded.quantity, amount = t.amount + excluded.amount;
"""
TOTAL = """
INSERT INTO maintained_{0} AS t
SELECT account, item, date_trunc('{0}', period)::date, sum(quantity), sum(amount) FROM inserted
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (account, item, period) DO UPDATE
   SET quantity = t.quantity + excluded.quantity, amount = t.amount + excluded.amount;
"""
MAINTAIN = f"""
CREATE FUNCTION maintain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN {BALANCE} {"".join(TOTAL.format(grain) for grain in ("year", "month", "day"))} RETURN NULL; END $$;
CREATE TRIGGER maintain AFTER INSERT ON maintained REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION maintain();
"""

DROP = "SELECT accum.register_drop(name, force := true) FROM accum._registers WHERE name = %s"
CREATE = """
SELECT accum.register_create(%s, '{"account": "int", "item": "int"}',
                             '{"quantity": "numeric(18,4)", "amount": "numeric(18,2)"}', high_write := %s)
"""

# Evenly over the cells and the five years before 2026, in the order of time as movements come.
HISTORY = """
INSERT INTO accum.history_movements (recorder, period, dim_hash, account, item, quantity, amount)
SELECT 'doc:' || n / 10, '2021-01-01'::timestamptz + n * (interval '1826 days' / %(of)s::int),
       accum._hash_history(account := 1 + n %% 100, item := 1 + n / 100 %% 10),
       1 + n %% 100, 1 + n / 100 %% 10, n %% 19 - 8, (n %% 19 - 8) * 1.25
FROM generate_series(%(first)s::int, %(last)s::int) AS n
"""

# One movement of each cell; the balances of these are merged soon.
CELLS = """
INSERT INTO accum.high_write_movements (recorder, period, account, item, quantity, amount)
SELECT 'doc:' || a, '2025-12-31', a, i, 1, 1 FROM generate_series(1, 100) AS a, generate_series(1, 10) AS i
"""

# How much of which history has been written.
WRITTEN = "CREATE TABLE IF NOT EXISTS history_written (movements int PRIMARY KEY, up_to int NOT NULL)"

COLUMNS = "recorder text, period timestamptz, account int, item int, quantity numeric, amount numeric"
INSERT = "INSERT INTO {} (recorder, period, account, item, quantity, amount)"
MOVEMENT = '{"recorder":"o:%s","period":"' + TODAY + '","account":%s,"item":1,"quantity":1,"amount":1.5}'

# Batches as clients send them; # stands for the client's number, so that each has cells of its own.
BATCHES = {
    f"{kind}{size}": "[" + ",".join(MOVEMENT % (n, account.format(n)) for n in range(size)) + "]"
    for kind, account in (("hot", "1"), ("spread", "1#{:04}"))
    for size in SIZES
}


def posting(register: str, kind: str, sizes: tuple[int, ...], table: str = "plain") -> list[Work]:
    """What a client that posts does, one movement at a time and in batches; beside it the INSERT into a table."""
    insert = INSERT.format(table)
    account = "1" if kind == "hot" else ":account::int"
    draw = "\\set account random(1, 1000)\n"
    works = [
        Work(
            f"{register}, {kind}, single",
            1,
            f"{draw}SELECT accum.register_post('{register}', format('{MOVEMENT % (1, '%s')}', {account})::jsonb)",
            f"{draw}{insert} VALUES ('o:1', '{TODAY}', {account}, 1, 1, 1.5)",
        )
    ]
    for size in sizes:
        batch = f"replace(:{kind}{size}, '#', :client_id::text)::jsonb"
        works.append(
            Work(
                f"{register}, {kind}, batch {size}",
                size,
                f"SELECT accum.register_post('{register}', {batch})",
                f"{insert} SELECT * FROM jsonb_to_recordset({batch}) AS m({COLUMNS})",
            )
        )
    return works


def create(connection: psycopg.Connection[tuple[object, ...]], register: str, *, high_write: bool) -> None:
    """A register without movements, in the place of one of an earlier run."""
    connection.execute(DROP, [register])
    connection.execute(CREATE, [register, high_write])


def fill(way: Way, movements: int, console: Console) -> None:
    """The history, in chunks, or what is not there of it; says how fast."""
    with way.connect() as connection:
        connection.execute(CELLS)
        connection.execute(WRITTEN)
        found = connection.execute("SELECT up_to FROM history_written WHERE movements = %s", [movements]).fetchone()
        if found is None:
            connection.execute("DELETE FROM history_written")
            with connection.transaction():
                create(connection, "history", high_write=False)
                connection.execute("SELECT accum.register_create_partitions('history', interval '-6 years')")
                connection.execute("INSERT INTO history_written VALUES (%s, 0)", [movements])
        present = int(str(found[0])) if found else 0
        began = time.perf_counter()
        for first in range(present, movements, CHUNK):
            behind = min(first + CHUNK, movements)
            with connection.transaction():
                connection.execute(HISTORY, {"of": movements, "first": first, "last": behind - 1})
                connection.execute("UPDATE history_written SET up_to = %s", [behind])
        taken, inserted = time.perf_counter() - began, movements - present
        if inserted:
            connection.execute("VACUUM (ANALYZE)")
            rate = inserted / taken
            console.print(f"{inserted:,} movements of 1 000 cells inserted in {taken:.0f} s, {rate:,.0f} a second\n")


DAY = "\\set day random(1, 1800)\n"
CELL = "\\set account random(1, 100)\n\\set item random(1, 10)\n"
WHOLE = 'dimensions := format(\'{"account": %s, "item": %s}\', :account::int, :item::int)::jsonb'
PART = "dimensions := format('{\"account\": %s}', :account::int)::jsonb"
PAST = "at_date := '2021-01-01 13:45'::timestamptz + :day::int * interval '1 day'"
MONTH = "\\set month random(0, 59)\n"
OF_MONTH = (
    "from_date := '2021-01-01'::timestamptz + :month::int * interval '1 month',"
    " to_date := '2021-01-31'::timestamptz + :month::int * interval '1 month'"
)
LOOKUP = CELL + "SELECT quantity, amount FROM lookup WHERE account = :account AND item = :item"

READING = {
    "balance_cache, a cell": CELL
    + "SELECT quantity, amount FROM accum.history_balance_cache WHERE account = :account AND item = :item",
    "balance, a cell": CELL + f"SELECT * FROM accum.history_balance({WHOLE})",
    "balance, partial dimensions (10 cells)": CELL + f"SELECT * FROM accum.history_balance({PART})",
    "balance, whole register (1 000 cells)": "SELECT * FROM accum.history_balance()",
    "high-write: balance, a cell": CELL + f"SELECT * FROM accum.high_write_balance({WHOLE})",
    "high-write: balance, whole register": "SELECT * FROM accum.high_write_balance()",
    "past balance, a cell": CELL + DAY + f"SELECT * FROM accum.history_balance({WHOLE}, {PAST})",
    "past balance, partial dimensions": CELL + DAY + f"SELECT * FROM accum.history_balance({PART}, {PAST})",
    "past balance, whole register": DAY + f"SELECT * FROM accum.history_balance({PAST})",
    "turnover of a month, a cell": CELL + MONTH + f"SELECT * FROM accum.history_turnover({OF_MONTH}, {WHOLE})",
    "turnover of a month by account": MONTH
    + f"SELECT * FROM accum.history_turnover({OF_MONTH}, group_by := '[\"account\"]')",
    "balance at each of 60 months, a cell": CELL
    + f"SELECT * FROM accum.history_balance_at_each('month', '2021-01-01', '2025-12-31', {WHOLE})",
}


def measure_reading(ways: tuple[Way, ...], rounds: int, seconds: float, console: Console) -> None:
    """Milliseconds of each kind of read, one client; the lookup by primary key is measured beside each."""
    postmaster = postmaster_of(ways[0])
    table = Table(title="Reading: milliseconds, one client", title_justify="left")
    for heading in ("read", "way"):
        table.add_column(heading)
    for heading in ("ms", "primary key", "ratio", "CPU", "primary key, CPU", "ratio"):
        table.add_column(heading, justify="right")
    for name, script in READING.items():
        for way in ways:
            both = [
                [transactions(way, each, 1, seconds, postmaster) for each in (script, LOOKUP)] for _ in range(rounds)
            ]
            ours, yardstick = (statistics.median(1000 / measured[of][0] for measured in both) for of in (0, 1))
            cpu, cpu_yardstick = (min(measured[of][1] for measured in both) * 1e6 for of in (0, 1))
            table.add_row(
                *(name, way.name, f"{ours:.3f}", f"{yardstick:.3f}", f"{ours / yardstick:.2f}"),
                *(f"{cpu:.0f} µs", f"{cpu_yardstick:.0f} µs", f"{cpu / cpu_yardstick:.2f}"),
            )
    console.print(table)


def median_ms(work: Callable[[], object], before: Callable[[], object], times: int) -> float:
    """Of a piece of work that needs something done before, each time."""
    taken = []
    for _ in range(times):
        before()
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def measure_corrections(ways: tuple[Way, ...], times: int, console: Console) -> None:
    """Cancel and correct documents; the yardstick deletes, or deletes and inserts, the same rows by an index."""
    table = Table(title=f"Documents of {DOCUMENT} movements: milliseconds", title_justify="left")
    for heading in ("work", "way"):
        table.add_column(heading)
    for heading in ("ms", "documents/s", "plain table", "ratio"):
        table.add_column(heading, justify="right")
    movements = [{"period": TODAY, "account": n, "item": 1, "quantity": 1, "amount": 1.5} for n in range(DOCUMENT)]
    document = json.dumps(movements)
    columns = COLUMNS.removeprefix("recorder text, ")
    insert = f"{INSERT.format('plain')} SELECT 'doc', m.* FROM jsonb_to_recordset(%s) AS m({columns})"
    delete = "DELETE FROM plain WHERE recorder = 'doc'"
    with ways[0].connect() as connection:
        connection.execute("CREATE INDEX IF NOT EXISTS plain_recorder ON plain (recorder)")
    for way in ways:
        with way.connect() as connection:

            def run(
                statement: str, *parameters: str, on: psycopg.Connection[tuple[object, ...]] = connection
            ) -> object:
                return on.execute(statement.encode(), parameters, prepare=True)

            def post(to: Callable[..., object] = run) -> object:
                return to("SELECT accum.register_repost('standard', 'doc', %s::jsonb)", document)

            def unpost(to: Callable[..., object] = run) -> object:
                return to("SELECT accum.register_unpost('standard', 'doc')")

            def plain_insert(to: Callable[..., object] = run) -> object:
                return to(insert, document)

            def plain_delete(to: Callable[..., object] = run) -> object:
                return to(delete)

            def plain_replace(on: psycopg.Connection[tuple[object, ...]] = connection) -> None:
                with on.transaction():
                    plain_delete()
                    plain_insert()

            for name, work, before, plain, plain_before in (
                ("unpost", unpost, post, plain_delete, plain_insert),
                ("repost", post, lambda: None, plain_replace, lambda: None),
            ):
                ours = median_ms(work, before, times)
                yardstick = median_ms(plain, plain_before, times)
                figures = f"{ours:.2f}", f"{1000 / ours:,.0f}", f"{yardstick:.2f}", f"{ours / yardstick:.2f}"
                table.add_row(name, way.name, *figures)
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--movements", type=int, default=2_000_000)
    parser.add_argument("--synchronous-commit", nargs="+", choices=("on", "off"), default=("off", "on"))
    parser.add_argument("--only", nargs="*", choices=("posting", "maintained", "reading", "corrections"), default=())
    parser.add_argument("--data", type=Path, help="a data directory to keep")
    options = parser.parse_args()
    console = Console(width=max(130, Console().width))
    with served(data=options.data) as server:
        posted = [with_commits(way, setting) for setting in options.synchronous_commit for way in both_ways(server)]
        ways = (posted[0], posted[1])
        with ways[1].connect() as connection:  # that makes the server install the catalog
            connection.execute(PLAIN)
            for register, high_write in (("standard", False), ("high_write", True)):
                create(connection, register, high_write=high_write)
                connection.execute("SELECT accum.register_create_partitions(%s, 1)", [register])

        def post() -> None:
            works = posting("standard", "spread", SIZES) + posting("standard", "hot", SIZES[-1:])
            works += (
                posting("high_write", "hot", (SIZES[0], SIZES[-1])) + posting("high_write", "spread", SIZES[:1])[1:]
            )
            title = "Posting: movements a second"
            side_by_side(title, works, tuple(posted), options.rounds, options.seconds, console, **BATCHES)

        def post_beside_maintenance() -> None:
            with ways[1].connect() as connection:
                connection.execute(MAINTAINED)
                connection.execute(MAINTAIN)
            works = posting("standard", "spread", SIZES[:2], "maintained")
            works += posting("high_write", "spread", SIZES[:1], "maintained")
            title, plain = "Posting beside what is maintained by hand: movements a second", "by hand"
            side_by_side(title, works, tuple(posted), options.rounds, options.seconds, console, plain=plain, **BATCHES)

        def read() -> None:
            fill(ways[0], options.movements, console)
            measure_reading(ways, options.rounds, options.seconds, console)

        measures = {
            "posting": post,
            "maintained": post_beside_maintenance,
            "reading": read,
            "corrections": lambda: measure_corrections(ways, round(options.seconds * 200), console),
        }
        for name, measure in measures.items():
            if not options.only or name in options.only:
                measure()


if __name__ == "__main__":
    main()
