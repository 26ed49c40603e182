"""Refreshes beside maintenance that is written by hand in SQL, from the same captured changes: CPU time of PostgreSQL.

    python bench/by_hand.py [--rows 100000] [--changed 1 10] [--rounds 5] [--only NAME ...]

The queries of `bench/refresh.py` that have one changed table, each as a DIFFERENTIAL stream table and as a table of the
same rows with a key of the user's, which a statement keeps that somebody who knows the query would write: it reads the
changes of the source that its last snapshot did not see, takes the last image of each row or adds up, and goes on. It
has no catalog, history, locks or rights to look after, counts no copies, and holds for these queries alone. A round
changes so many percent, as there; then both follow, in turns first. CPU time is that of the session's process, so that
it is about the same on a machine that does other things, too. In the end both are held against the query.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.growth import Connection
from bench.refresh import CHANGES, QUERIES, SOURCES
from bench.refresh_cost import cpu_ms
from bench.serving import served

PENDING = """
SELECT c.* FROM pgtrickle_changes.changes_{oid} AS c, by_hand_seen AS s
WHERE NOT pg_visible_in_snapshot(c."__pgt_xid", s.snapshot)
"""
LAST = 'SELECT DISTINCT ON (id) * FROM ({pending}) AS p ORDER BY id, "__pgt_change_id" DESC, "__pgt_w" DESC'
ROWS = """
WITH last AS MATERIALIZED ({last}),
gone AS (DELETE FROM by_hand AS h USING last AS l WHERE h.id = l.id AND NOT (l."__pgt_w" > 0 AND {condition}))
INSERT INTO by_hand SELECT {columns} FROM last AS o {joined} WHERE o."__pgt_w" > 0 AND {condition_of_o}
ON CONFLICT (id) DO UPDATE SET ({names}) = ROW ({excluded})
"""
GROUPS = """
MERGE INTO by_hand AS h USING (
    SELECT {key} AS key, sum("__pgt_w") AS n, sum("__pgt_w" * amount) AS total FROM ({pending}) AS o {joined} GROUP BY 1
) AS d ON h.{name} = d.key
WHEN MATCHED AND h.n + d.n = 0 THEN DELETE
WHEN MATCHED THEN UPDATE SET n = h.n + d.n, total = h.total + d.total{mean}
WHEN NOT MATCHED AND d.n > 0 THEN INSERT VALUES (d.key, d.n, d.total{mean_of_new})
"""
JOINED = "JOIN customers AS c ON c.id = o.customer"


def rows(columns: str, joined: str = "", condition: str = "TRUE") -> tuple[str, str]:
    """The key, and a statement that keeps rows of a key by their last images."""
    names = [column.rpartition(".")[2] for column in columns.split(", ")]
    return "id", ROWS.format(
        last=LAST,
        condition=condition.format("l"),
        condition_of_o=condition.format("o"),
        columns=columns,
        joined=joined,
        names=", ".join(names[1:]),
        excluded=", ".join(f"excluded.{name}" for name in names[1:]),
    )


def groups(name: str, key: str, joined: str = "", *, mean: bool = False) -> tuple[str, str]:
    """The key, and a statement that adds up."""
    means = (", mean = (h.total + d.total) / (h.n + d.n)", ", d.total / d.n") if mean else ("", "")
    return name, GROUPS.format(
        key=key, name=name, joined=joined, mean=means[0], mean_of_new=means[1], pending="{pending}"
    )


BY_HAND = {
    "scan": rows("o.id, o.customer, o.amount, o.note"),
    "filter": rows("o.id, o.customer, o.amount", condition="{}.amount >= 500"),
    "aggregate": groups("customer", "customer", mean=True),
    "join": rows("o.id, o.amount, c.name, c.region", JOINED),
    "join and aggregate": groups("region", "c.region", JOINED),
}
SEEN = "UPDATE by_hand_seen SET snapshot = pg_current_snapshot()"


def prepare(connection: Connection, count: int, query: str, key: str) -> int:
    """The source, the stream table and the table by hand; the source's oid."""
    connection.execute("SELECT pgtrickle.drop_stream_table(pgt_name) FROM pgtrickle.pgt_stream_tables")
    connection.execute("DROP TABLE IF EXISTS by_hand, by_hand_seen, orders, customers")
    connection.execute("DROP SEQUENCE IF EXISTS new_orders")
    for statement in SOURCES.format(rows=count, customers=count // 100).split(";"):
        if statement.strip():
            connection.execute(statement)
    call = "SELECT pgtrickle.create_stream_table('kept', %s, '1d', 'DIFFERENTIAL', engine => 'postgres')"
    connection.execute(call, [query])
    connection.execute(f"CREATE TABLE by_hand WITH (fillfactor = 90) AS {query}")
    connection.execute(f"ALTER TABLE by_hand ADD PRIMARY KEY ({key})")
    connection.execute("CREATE TABLE by_hand_seen AS SELECT pg_current_snapshot() AS snapshot")
    ((oid,),) = connection.execute("SELECT 'orders'::regclass::oid::int").fetchall()
    return int(oid)


def measure(connection: Connection, name: str, count: int, percent: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of the stream table and by hand, medians. Raises SystemExit where one is wrong."""
    key, statement = BY_HAND[name]
    oid = prepare(connection, count, QUERIES[name], key)
    pending = PENDING.format(oid=oid)
    by_hand = statement.replace("{last}", LAST).replace("{pending}", pending)
    times: dict[str, list[float]] = {"kept": [], "by_hand": []}
    numbers = {"updates": 70 * percent, "deletes": 15 * percent, "customers": count // 100}
    for n in range(rounds + 1):
        connection.execute(CHANGES.format(offset=n * 1117, inserts=count * percent * 15 // 10000, **numbers))
        for table in sorted(times, reverse=bool(n % 2)):
            before = cpu_ms(connection.info.backend_pid)
            if table == "kept":
                connection.execute("SELECT pgtrickle.refresh_stream_table('kept')")
            else:
                with connection.transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    connection.execute(by_hand)
                    connection.execute(SEEN)
            times[table].append(cpu_ms(connection.info.backend_pid) - before)
        for table in times:
            columns = "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attnum > 0"
            ((names,),) = connection.execute(f"{columns} AND attrelid = 'by_hand'::regclass").fetchall()
            wrong = f"(SELECT * FROM ({QUERIES[name]}) AS q EXCEPT ALL SELECT {names} FROM {table})"
            if connection.execute(wrong).fetchall():
                raise SystemExit(f'"{table}" differs from its query')
        connection.execute("SELECT pgtrickle._cleanup_buffers()")
        connection.execute("VACUUM (ANALYZE) orders, kept, by_hand")
    kept, hand = (statistics.median(each[1:]) for each in times.values())
    return kept, hand


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--changed", type=int, nargs="+", default=[1, 10], help="percent")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=BY_HAND, default=list(BY_HAND))
    options = parser.parse_args()
    table = Table("query", *(f"{percent} % changed" for percent in options.changed), title="CPU ms: kept / by hand")
    with served() as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        for name in options.only:
            cells = [measure(connection, name, options.rows, percent, options.rounds) for percent in options.changed]
            table.add_row(name, *(f"{kept:.1f} / {hand:.1f} ({kept / hand:.1f})" for kept, hand in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
