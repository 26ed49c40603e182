"""What Headwater costs beside plain PostgreSQL, in five minutes: one table of ratios, with those of the last release.

    python bench/quick.py [--seconds 15] [--save]

Each line is a pair of things that a user may do: with Headwater, and by PostgreSQL alone for the same result. They take
turns for so many seconds, so that they meet the same machine, and the ratio is the median of what each turn took with
Headwater by what it took without: 1 is a tie, less is faster. `bench/ratios.json` has the ratios of the last release;
`--save` writes those of this run there. On a machine that does other things, too, ratios differ by a fifth from run to
run: what has become slower by more than a third is marked, and worth a run of the benchmark that measures it alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import served

Connection = psycopg.Connection[Any]
Work = Callable[[], object]

RELEASED = Path(__file__).parent / "ratios.json"
SLOWER = 4 / 3
"""A ratio that is so many times the last release's is marked."""
LEAST = 5
"""Turns of each pair, however long they take; the first one warms up."""

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, region int NOT NULL, name text NOT NULL);
INSERT INTO customers SELECT n, n % 50, 'customer ' || n FROM generate_series(1, 500) AS n;
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount int NOT NULL, note text);
INSERT INTO orders SELECT n, 1 + n % 500, n % 1000, 'order ' || n FROM generate_series(1, 50000) AS n;
CREATE TABLE captured (id int PRIMARY KEY, v int NOT NULL, note text);
CREATE TABLE bare (id int PRIMARY KEY, v int NOT NULL, note text);
CREATE TABLE watched (id int PRIMARY KEY, grp int NOT NULL, v int NOT NULL);
CREATE TABLE unwatched (id int PRIMARY KEY, grp int NOT NULL, v int NOT NULL);
CREATE TABLE posted (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, recorder text NOT NULL,
                     period timestamp NOT NULL, item int NOT NULL, quantity numeric NOT NULL);
CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text, data text);
VACUUM (ANALYZE)
"""

QUERIES = {
    "filter": "SELECT id, customer, amount FROM orders WHERE amount >= 500",
    "join": "SELECT o.id, o.amount, c.name, c.region FROM orders o JOIN customers c ON c.id = o.customer",
    "aggregate": "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ways to one result. What is done `before` each turn is not counted."""

    name: str
    ours: Work
    plain: Work
    before: Work = lambda: None

    def ratio(self, seconds: float) -> float:
        """Of the times that they take."""
        ratios: list[float] = []
        end = time.perf_counter() + seconds
        for turn in count():
            if turn > LEAST and time.perf_counter() > end:
                return statistics.median(ratios[1:])
            self.before()
            ours, plain = (self.ours, self.plain) if turn % 2 else (self.plain, self.ours)
            one, other = elapsed(ours), elapsed(plain)
            ratios.append(one / other if turn % 2 else other / one)
        raise AssertionError


def elapsed(work: Work) -> float:
    """Seconds that it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def pairs(through: Connection, direct: Connection) -> Iterator[Pair]:
    """All that is measured; each makes what it needs when its turn comes."""
    yield from _relay(through, direct)
    yield from _capture(through, direct)
    yield from _refreshes(through)
    yield from _definitions(through)
    yield from _immediate(through, direct)
    yield from _queues(through, direct)
    yield from _registers(through, direct)


def _relay(through: Connection, direct: Connection) -> Iterator[Pair]:
    def select(connection: Connection, *, prepare: bool) -> Work:
        def work() -> None:
            for key in range(1, 201):
                connection.execute("SELECT amount FROM orders WHERE id = %s", [key], prepare=prepare)

        return work

    def read(connection: Connection) -> Work:
        return lambda: connection.execute("SELECT * FROM orders").fetchall()

    yield Pair("select by key, prepared", select(through, prepare=True), select(direct, prepare=True))
    yield Pair("select by key, unprepared", select(through, prepare=False), select(direct, prepare=False))
    yield Pair("read 50 000 rows", read(through), read(direct))


def _capture(through: Connection, direct: Connection) -> Iterator[Pair]:
    _create(through, "of_captured", "SELECT id, v FROM captured", "DIFFERENTIAL")
    keys = iter(count(1_000_000))

    def single(table: str) -> Work:
        def work() -> None:
            for _ in range(100):
                direct.execute(f"INSERT INTO {table} VALUES (%s, 1, 'text')", [next(keys)], prepare=True)

        return work

    def bulk(table: str) -> Work:
        return lambda: direct.execute(f"UPDATE {table} SET v = v + 1")

    def fill() -> None:
        for table in ("captured", "bare"):
            direct.execute(f"TRUNCATE {table}")
            direct.execute(f"INSERT INTO {table} SELECT n, n, 'text ' || n FROM generate_series(1, 20000) AS n")
        through.execute("SELECT pgtrickle.refresh_stream_table('of_captured')")

    yield Pair("insert a row, captured by triggers", single("captured"), single("bare"))
    yield Pair("update 20 000 rows, captured by triggers", bulk("captured"), bulk("bare"), fill)


def _refreshes(through: Connection) -> Iterator[Pair]:
    offsets = iter(count())

    def tidy() -> None:  # what happens between refreshes anyway
        through.execute("SELECT pgtrickle._cleanup_buffers()")
        through.execute("VACUUM orders")

    def change() -> None:
        tidy()
        offset = next(offsets) * 1117
        through.execute(
            f"UPDATE orders SET amount = (amount * 7 + 13) % 1000 WHERE (id * 7919::bigint + {offset}) % 100 = 0"
        )

    def refresh(name: str) -> Work:
        return lambda: through.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name], prepare=True)

    def drop() -> None:  # one that is not refreshed any more would keep all changes
        through.execute("SELECT pgtrickle.drop_stream_table('refreshed')")

    def view(name: str) -> Work:
        return lambda: through.execute(f"REFRESH MATERIALIZED VIEW {name}_view")

    for name, query in QUERIES.items():
        through.execute(f"CREATE MATERIALIZED VIEW {name}_view AS {query}")
        for mode in ("differential", "full"):
            _create(through, "refreshed", query, mode.upper())
            yield Pair(f"refresh {name}, 1 % changed, {mode}", refresh("refreshed"), view(name), change)
            drop()
    _create(through, "refreshed", QUERIES["filter"], "DIFFERENTIAL")
    nothing = refresh("refreshed")
    yield Pair("refresh that finds nothing, by SELECT 1", nothing, lambda: through.execute("SELECT 1", prepare=True))
    drop()


def _definitions(through: Connection) -> Iterator[Pair]:
    query = QUERIES["join"] + " WHERE o.id < 0"

    def drop() -> None:
        if through.execute("SELECT to_regclass('defined') IS NOT NULL").fetchone() == (True,):
            through.execute("SELECT pgtrickle.drop_stream_table('defined')")
            through.execute("DROP MATERIALIZED VIEW defined_view")

    ours = "SELECT pgtrickle.create_stream_table('defined', %s, '1d')"
    yield Pair(
        "create_stream_table, by CREATE MATERIALIZED VIEW",
        lambda: through.execute(ours, [query]),
        lambda: through.execute(f"CREATE MATERIALIZED VIEW defined_view AS {query}"),
        drop,
    )


def _immediate(through: Connection, direct: Connection) -> Iterator[Pair]:
    _create(through, "at_once", "SELECT grp, count(*) AS n, sum(v) AS total FROM watched GROUP BY grp", "IMMEDIATE")
    keys = iter(count(1))

    def insert(table: str) -> Work:
        def work() -> None:
            for _ in range(100):
                key = next(keys)
                direct.execute(f"INSERT INTO {table} VALUES (%s, %s, 1)", [key, key % 100], prepare=True)

        return work

    yield Pair("insert a row, IMMEDIATE aggregate", insert("watched"), insert("unwatched"))


def _queues(through: Connection, direct: Connection) -> Iterator[Pair]:
    through.execute("SELECT pgque.create_queue('jobs')")
    through.execute("SELECT pgque.register_consumer('jobs', 'worker')")
    texts = [f"job {n}" for n in range(1000)]

    def ours() -> None:
        through.execute("SELECT pgque.send_batch('jobs', 'job', %s::text[])", [texts])
        through.execute("SELECT pgque.force_next_tick('jobs')")
        through.execute("SELECT pgque.ticker('jobs')")
        received = through.execute("SELECT batch_id FROM pgque.receive('jobs', 'worker', 1000)").fetchall()
        assert len(received) == len(texts)
        through.execute("SELECT pgque.ack(%s)", [received[0][0]])

    def plain() -> None:
        direct.execute("INSERT INTO jobs (type, data) SELECT 'job', unnest(%s::text[])", [texts])
        taken = "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED)"
        assert len(direct.execute(taken + " RETURNING id, data").fetchall()) == len(texts)

    yield Pair("1 000 events through a queue, by a table with SKIP LOCKED", ours, plain)


def _registers(through: Connection, direct: Connection) -> Iterator[Pair]:
    through.execute(
        "SELECT accum.register_create('stock', '{\"item\": \"int\"}', '{\"quantity\": \"numeric\"}', 'balance')"
    )
    numbers = iter(count(1))

    def ours() -> None:
        for _ in range(100):
            n = next(numbers)
            movement = json.dumps({"recorder": f"r{n}", "period": "2026-01-01", "item": n % 50, "quantity": 1})
            direct.execute("SELECT accum.register_post('stock', %s::jsonb)", [movement], prepare=True)

    def plain() -> None:
        for _ in range(100):
            n = next(numbers)
            values = [f"r{n}", n % 50]
            insert = "INSERT INTO posted (recorder, period, item, quantity) VALUES (%s, '2026-01-01', %s, 1)"
            direct.execute(insert, values, prepare=True)

    yield Pair("post a movement, by INSERT", ours, plain)


def _create(through: Connection, name: str, query: str, mode: str) -> None:
    parameters = "%s, %s, refresh_mode => %s" + (
        "" if mode == "IMMEDIATE" else ", schedule => '1d', engine => 'postgres'"
    )
    through.execute(f"SELECT pgtrickle.create_stream_table({parameters})", [name, query, mode])


def show(console: Console, ratios: dict[str, float], released: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(title="time with Headwater by time without: 1 is a tie, less is faster")
    for heading in ("", "now", released.get("version", "not released"), "change"):
        table.add_column(heading, justify="right" if heading else "left")
    before = released.get("ratios", {})
    for name, ratio in ratios.items():
        change = ratio / before[name] if name in before else None
        marked = "" if change is None else f"{change:.2f}" + (" slower" if change > SLOWER else "")
        table.add_row(name, f"{ratio:.2f}", f"{before[name]:.2f}" if name in before else "", marked)
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=15, help="for each pair")
    parser.add_argument("--save", action="store_true", help="keep the ratios as the last release's")
    options = parser.parse_args()
    console = Console()
    ratios: dict[str, float] = {}
    with (
        served() as server,
        psycopg.connect(server.dsn, autocommit=True) as through,
        Progress(console=console, transient=True) as progress,
    ):
        through.execute("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        for statement in TABLES.split(";"):
            through.execute(statement)
        task = progress.add_task("measuring", total=None)
        with psycopg.connect(server.direct, autocommit=True) as direct:
            for connection in (through, direct):
                connection.execute("SET synchronous_commit = off")
            for pair in pairs(through, direct):
                progress.update(task, description=pair.name)
                ratios[pair.name] = pair.ratio(options.seconds)
    show(console, ratios, json.loads(RELEASED.read_text()) if RELEASED.exists() else {})
    if options.save:
        kept = {"version": version("headwater"), "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()}}
        RELEASED.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
