"""What IMMEDIATE mode costs the statements that change sources, against triggers written by hand for the same result.

    python bench/immediate.py [--rows 100000] [--changed 10000] [--rounds 5] [--singles 300] [--only NAME ...]
                              [--clients 8] [--seconds 4]

Each case has three copies of its tables: without anything, under a stream table in IMMEDIATE mode, and with triggers in
PL/pgSQL for each statement, that keep a table with the same rows by the few statements that somebody would write who
knows the query. (They take no locks, so they are right as long as one client writes.) The three take turns within each
round. Statements go to PostgreSQL past the server, as prepared ones, one transaction each, with synchronous_commit off:
with it the disk would hide what is to be seen. Medians of a single-row insert, update and delete, and of the same with
`--changed` rows. What is shown beside the bare time is the factor of each of the others, and that of one by the other:
by the time that has passed, and by the CPU time of PostgreSQL's process (Linux), which other work on the machine
changes little. At the end all tables are held against the query. Where PostgreSQL has the extension pg_ivm, a fourth
copy is under a view that it maintains, for the queries that it takes.

Then clients insert single rows into groups of their own, one client against several, with synchronous_commit on, with
and without a stream table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import Served, served

Connection = psycopg.Connection[Any]

SCHEMAS = ("bare", "stream", "hand")
IMMV = "immv"
"""The schema of what the extension maintains, whose views are called so."""
SOURCES = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.area (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE {schema}.shop (id int PRIMARY KEY, area int NOT NULL, name text NOT NULL);
CREATE TABLE {schema}.sale (id int PRIMARY KEY, shop int NOT NULL, amount int NOT NULL, note text);
CREATE INDEX ON {schema}.sale (shop);
CREATE INDEX ON {schema}.shop (area);
INSERT INTO {schema}.area SELECT n, 'area ' || n FROM generate_series(1, 50) n;
INSERT INTO {schema}.shop SELECT n, 1 + n % 50, 'shop ' || n FROM generate_series(1, 1000) n;
INSERT INTO {schema}.sale SELECT n, 1 + n % 1100, n % 1000, 'sale ' || n FROM generate_series(1, {rows}) n;
VACUUM (ANALYZE) {schema}.area; VACUUM (ANALYZE) {schema}.shop; VACUUM (ANALYZE) {schema}.sale
"""
"""A sale in eleven has no shop, for outer joins."""


@dataclass(frozen=True, slots=True)
class Case:
    """A query, its key, and what keeps a table `kept` equal to it by hand.

    The statements are for rows in the transition table ``r``: those that have come, and those that have gone.
    """

    query: str
    key: str
    come: str
    gone: str


CASES = {
    "aggregate": Case(
        "SELECT shop, sum(amount) AS total, count(*) AS n FROM {s}.sale GROUP BY shop",
        "shop",
        "INSERT INTO {s}.kept AS k SELECT shop, sum(amount), count(*) FROM r GROUP BY shop"
        " ON CONFLICT (shop) DO UPDATE SET total = k.total + excluded.total, n = k.n + excluded.n;",
        "UPDATE {s}.kept k SET total = k.total - g.total, n = k.n - g.n"
        " FROM (SELECT shop, sum(amount) AS total, count(*) AS n FROM r GROUP BY shop) g WHERE g.shop = k.shop;"
        " DELETE FROM {s}.kept k USING r WHERE k.shop = r.shop AND k.n = 0;",
    ),
    "aggregate over a join": Case(
        "SELECT h.area, sum(f.amount) AS total, count(*) AS n FROM {s}.sale f JOIN {s}.shop h ON h.id = f.shop"
        " GROUP BY h.area",
        "area",
        "INSERT INTO {s}.kept AS k SELECT h.area, sum(r.amount), count(*) FROM r JOIN {s}.shop h ON h.id = r.shop"
        " GROUP BY h.area ON CONFLICT (area) DO UPDATE SET total = k.total + excluded.total, n = k.n + excluded.n;",
        "UPDATE {s}.kept k SET total = k.total - g.total, n = k.n - g.n FROM (SELECT h.area, sum(r.amount) AS total,"
        " count(*) AS n FROM r JOIN {s}.shop h ON h.id = r.shop GROUP BY h.area) g WHERE g.area = k.area;"
        " DELETE FROM {s}.kept k WHERE k.n = 0;",
    ),
    "join": Case(
        "SELECT f.id, f.amount, h.name FROM {s}.sale f JOIN {s}.shop h ON h.id = f.shop",
        "id",
        "INSERT INTO {s}.kept SELECT r.id, r.amount, h.name FROM r JOIN {s}.shop h ON h.id = r.shop;",
        "DELETE FROM {s}.kept k USING r WHERE k.id = r.id;",
    ),
    "3-way join": Case(
        "SELECT f.id, f.amount, h.name, a.name AS area FROM {s}.sale f JOIN {s}.shop h ON h.id = f.shop"
        " JOIN {s}.area a ON a.id = h.area",
        "id",
        "INSERT INTO {s}.kept SELECT r.id, r.amount, h.name, a.name FROM r JOIN {s}.shop h ON h.id = r.shop"
        " JOIN {s}.area a ON a.id = h.area;",
        "DELETE FROM {s}.kept k USING r WHERE k.id = r.id;",
    ),
    "outer join": Case(
        "SELECT f.id, f.amount, h.name FROM {s}.sale f LEFT JOIN {s}.shop h ON h.id = f.shop",
        "id",
        "INSERT INTO {s}.kept SELECT r.id, r.amount, h.name FROM r LEFT JOIN {s}.shop h ON h.id = r.shop;",
        "DELETE FROM {s}.kept k USING r WHERE k.id = r.id;",
    ),
    "window": Case(
        "SELECT id, shop, rank() OVER (PARTITION BY shop ORDER BY amount) AS place FROM {s}.sale",
        "id",
        "DELETE FROM {s}.kept k WHERE k.shop IN (SELECT shop FROM r);"
        " INSERT INTO {s}.kept SELECT id, shop, rank() OVER (PARTITION BY shop ORDER BY amount) FROM {s}.sale"
        " WHERE shop IN (SELECT shop FROM r);",
        "DELETE FROM {s}.kept k WHERE k.shop IN (SELECT shop FROM r);"
        " INSERT INTO {s}.kept SELECT id, shop, rank() OVER (PARTITION BY shop ORDER BY amount) FROM {s}.sale"
        " WHERE shop IN (SELECT shop FROM r);",
    ),
}

SINGLE = {
    "insert 1": "INSERT INTO {s}.sale VALUES (%(key)s, 1 + %(key)s %% 1000, %(key)s %% 1000, 'new')",
    "update 1": "UPDATE {s}.sale SET amount = amount + 1 WHERE id = %(key)s",
    "delete 1": "DELETE FROM {s}.sale WHERE id = %(key)s",
}
MANY = {
    "insert many": "INSERT INTO {s}.sale SELECT n, 1 + n %% 1000, n %% 1000, 'new' FROM generate_series(%(key)s + 1,"
    " %(key)s + %(many)s) n",
    "update many": "UPDATE {s}.sale SET amount = amount + 1 WHERE id BETWEEN %(key)s + 1 AND %(key)s + %(many)s",
    "delete many": "DELETE FROM {s}.sale WHERE id BETWEEN %(key)s + 1 AND %(key)s + %(many)s",
}


def hand_written(connection: Connection, case: Case) -> None:
    """A table that triggers keep equal to the query."""
    query, come, gone = (part.format(s="hand") for part in (case.query, case.come, case.gone))
    connection.execute(f"CREATE TABLE hand.kept AS {query}".encode())
    connection.execute(f"ALTER TABLE hand.kept ADD PRIMARY KEY ({case.key})".encode())
    if "shop" in query.partition(" FROM ")[0] and case.key != "shop":
        connection.execute("CREATE INDEX ON hand.kept (shop)")
    for event, body, tables in (
        ("insert", come, "NEW TABLE AS r"),
        ("delete", gone, "OLD TABLE AS r"),
        ("update", f"{_with_old(gone)} {come}", "OLD TABLE AS o NEW TABLE AS r"),
    ):
        connection.execute(
            f"CREATE FUNCTION hand.{event}() RETURNS trigger LANGUAGE plpgsql AS $f$"
            f" BEGIN {body} RETURN NULL; END $f$;"
            f" CREATE TRIGGER kept_{event} AFTER {event} ON hand.sale REFERENCING {tables} FOR EACH STATEMENT"
            f" EXECUTE FUNCTION hand.{event}()".encode()
        )
    connection.execute("VACUUM (ANALYZE) hand.kept")


def _with_old(statements: str) -> str:
    """Statements about the rows that have gone, where those that have come are there as well."""
    words = {"FROM r ": "FROM o ", "FROM r)": "FROM o)", "USING r ": "USING o ", " r.": " o.", "(r.": "(o."}
    for found, replaced in words.items():
        statements = statements.replace(found, replaced)
    return statements


def with_pg_ivm(connection: Connection, case: Case) -> str | None:
    """Have pg_ivm keep a table `kept` equal to the query; why it cannot, where it does not take the query."""
    connection.execute("CREATE EXTENSION IF NOT EXISTS pg_ivm")
    try:
        connection.execute("SELECT pgivm.create_immv(%s, %s)", [f"{IMMV}.kept", case.query.format(s=IMMV)])
    except psycopg.errors.FeatureNotSupported as error:
        return error.diag.message_primary
    connection.execute(f"VACUUM (ANALYZE) {IMMV}.kept")
    return None


@dataclass(slots=True)
class Times:
    """Milliseconds of each execution, and of CPU of PostgreSQL's process for one execution, of each round."""

    passed: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def medians(self) -> tuple[float, float]:
        """The median of each; the second is 0 where it is not known."""
        return statistics.median(self.passed), statistics.median(self.cpu) if self.cpu else 0.0

    def measure(self, connection: Connection, statement: str, keys: range, many: int) -> None:
        """Execute a statement for each key."""
        before = cpu(connection)
        for key in keys:
            began = time.perf_counter()
            connection.execute(statement.encode(), {"key": key, "many": many}, prepare=True)
            self.passed.append((time.perf_counter() - began) * 1000)
        if before is not None and (after := cpu(connection)) is not None:
            self.cpu.append((after - before) / len(keys))


def cpu(connection: Connection) -> float | None:
    """Milliseconds of CPU that the connection's process has used, None where the system does not say."""
    try:
        return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


def rounds(
    connection: Connection, schemas: tuple[str, ...], options: argparse.Namespace
) -> dict[str, dict[str, Times]]:
    """By kind of statement and schema, the times of all executions."""
    found: dict[str, dict[str, Times]] = {}
    for number in range(options.rounds + 1):
        first = options.rows + 1
        turn = number % len(schemas)
        for schema in schemas[turn:] + schemas[:turn]:
            for kinds, keys, many in (
                (SINGLE, range(first, first + options.singles), 0),
                (MANY, range(first, first + 1), options.changed),
            ):
                for kind, statement in kinds.items():
                    times = Times()
                    if number:  # the first one plans
                        times = found.setdefault(kind, {}).setdefault(schema, times)
                    times.measure(connection, statement.format(s=schema), keys, many)
            connection.execute(f"VACUUM {schema}.sale".encode())
            if schema != "bare":
                connection.execute(f"VACUUM {schema}.kept".encode())
    return found


def check(connection: Connection, schemas: tuple[str, ...], case: Case) -> None:
    """The tables of all schemas but the first hold what the query gives."""
    for schema in schemas[1:]:
        query = case.query.format(s=schema)
        columns = ", ".join(d.name for d in connection.execute(f"{query} LIMIT 0".encode()).description or ())
        stored = f"SELECT {columns} FROM {schema}.kept"
        rows = connection.execute(
            f"({query} EXCEPT ALL {stored}) UNION ALL ({stored} EXCEPT ALL {query}) LIMIT 3".encode()
        )
        assert (found := rows.fetchall()) == [], (schema, found)


def run_case(server: Served, name: str, case: Case, options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """The rows of the table that is shown."""
    with psycopg.connect(server.dsn, autocommit=True) as through, psycopg.connect(server.direct) as connection:
        connection.autocommit = True
        schemas = (*SCHEMAS, IMMV) if options.pg_ivm else SCHEMAS
        for schema in schemas:
            through.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
            for statement in SOURCES.format(schema=schema, rows=options.rows).split(";"):
                through.execute(statement.encode())
        through.execute(
            "SELECT pgtrickle.create_stream_table('stream.kept', %s, refresh_mode => 'IMMEDIATE')",
            [case.query.format(s="stream")],
        )
        hand_written(connection, case)
        if options.pg_ivm and (why := with_pg_ivm(connection, case)):
            schemas = SCHEMAS
            yield name, f"pg_ivm: {why}", "", "", "", "", "", ""
        connection.execute("SET synchronous_commit = off")
        for kind, times in rounds(connection, schemas, options).items():
            bare, stream, hand, *others = (times[schema].medians for schema in schemas)
            factors = [stream[0] / bare[0], hand[0] / bare[0], stream[0] / hand[0]]
            factors += [stream[1] / hand[1] if hand[1] else 0.0, *(stream[0] / other[0] for other in others)]
            yield name, kind, f"{bare[0]:.3f}", *(f"{factor:.2f}" for factor in factors)
        check(connection, schemas, case)


def rate(server: Served, schema: str, clients: int, seconds: float, base: int) -> float:
    """Inserts a second of several clients, each into a group of its own."""
    statement = f"INSERT INTO {schema}.sale VALUES (%s, %s, 1, 'x')".encode()
    counts = [0] * clients
    until = time.perf_counter() + seconds

    def write(number: int) -> None:
        with psycopg.connect(server.direct, autocommit=True) as connection:
            while time.perf_counter() < until:
                key = base + number * 1_000_000 + counts[number]
                connection.execute(statement, [key, number + 1], prepare=True)
                counts[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--changed", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--singles", type=int, default=300)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    options = parser.parse_args()
    console = Console(width=120)
    with served() as server:
        with psycopg.connect(server.direct) as connection:
            available = connection.execute("SELECT FROM pg_available_extensions WHERE name = 'pg_ivm'").rowcount
        options.pg_ivm = available == 1
        table = Table("query", "statement", "bare, ms", "IMMEDIATE", "by hand", "IMMEDIATE / by hand", "by CPU")
        if options.pg_ivm:
            table.add_column("IMMEDIATE / pg_ivm")
        for name in options.only:
            for row in run_case(server, name, CASES[name], options):
                table.add_row(*row)
                console.print(*row, sep="  ")
        if "aggregate" in options.only:
            list(run_case(server, "aggregate", CASES["aggregate"], argparse.Namespace(**vars(options) | {"rounds": 0})))
            for turn in range(2):
                for schema in ("bare", "stream"):
                    one = rate(server, schema, 1, options.seconds, 10_000_000 + turn * 200_000_000)
                    several = rate(server, schema, options.clients, options.seconds, 50_000_000 + turn * 200_000_000)
                    console.print(
                        f"{schema}: inserts a second into groups of their own: 1 client {one:.0f}, {options.clients}"
                        f" clients {several:.0f}, {several / one:.1f} times"
                    )
    console.print(table)


if __name__ == "__main__":
    main()
