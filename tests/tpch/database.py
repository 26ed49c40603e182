"""The TPC-H database: its eight tables, its 22 queries, and what changes them between two refreshes.

The data come from the package `tpchgen-cli`. It has no refresh sets, so RF1 makes its new orders of existing ones.
Substitution parameters are those of the specification's validation runs, but for Q8, Q17 and Q19, which would find
nothing in a small database.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

HERE = Path(__file__).parent
TABLES = ("region", "nation", "part", "supplier", "partsupp", "customer", "orders", "lineitem")
QUERIES = {path.stem: path.read_text().strip() for path in sorted((HERE / "queries").glob("q*.sql"))}

CHANGED = {
    "region": ("r_regionkey", ["r_name", "r_comment"]),
    "nation": ("n_nationkey", ["n_regionkey", "n_name"]),
    "part": ("p_partkey", ["p_type", "p_brand", "p_size", "p_container", "p_name", "p_mfgr"]),
    "supplier": ("s_suppkey", ["s_nationkey", "s_acctbal", "s_comment", "s_name"]),
    "partsupp": ("ps_partkey, ps_suppkey", ["ps_supplycost", "ps_availqty"]),
    "customer": ("c_custkey", ["c_nationkey", "c_acctbal", "c_mktsegment", "c_phone"]),
    "orders": (
        "o_orderkey",
        ["o_custkey", "o_orderdate", "o_orderpriority", "o_orderstatus", "o_totalprice", "o_comment"],
    ),
    "lineitem": (
        "l_orderkey, l_linenumber",
        [
            *("l_partkey", "l_suppkey", "l_quantity", "l_extendedprice", "l_discount", "l_returnflag"),
            *("l_shipdate", "l_commitdate", "l_receiptdate", "l_shipmode", "l_shipinstruct"),
        ],
    ),
}
"""For each table its key, and the columns whose values are exchanged between rows."""


def create(connection: Connection) -> None:
    """The empty tables, with the indexes that the specification allows: on primary and foreign keys."""
    connection.execute((HERE / "schema.sql").read_text())
    connection.execute((HERE / "indexes.sql").read_text())


def load(connection: Connection, scale: float) -> None:
    """Fill the tables with the data of a scale factor."""
    generator = Path(sys.executable).with_name("tpchgen-cli")
    with tempfile.TemporaryDirectory(prefix="tpch-") as directory:
        subprocess.run([generator, "csv", "-s", str(scale), "--output-dir", directory], check=True, capture_output=True)
        for table in TABLES:
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv, HEADER)") as copy,
                (Path(directory) / f"{table}.csv").open("rb") as file,
            ):
                while chunk := file.read(1 << 20):
                    copy.write(chunk)
    for table in TABLES:
        connection.execute(f"VACUUM (ANALYZE) {table}")


def new_sales(orders: int, seed: int) -> Iterator[str]:
    """RF1: so many new orders and their lines."""
    chosen = f"""
        SELECT o.*, (SELECT max(o_orderkey) FROM orders) + row_number() OVER (ORDER BY o_orderkey) AS new_key
        FROM (SELECT * FROM orders ORDER BY hashint8extended(o_orderkey, {seed}) LIMIT {orders}) AS o
    """
    yield f"""
        CREATE TEMP TABLE new_orders ON COMMIT DROP AS
        SELECT *, lead(o_custkey, 1, o_custkey) OVER (ORDER BY new_key) AS new_customer FROM ({chosen}) AS o
    """
    yield """
        INSERT INTO orders
        SELECT new_key, new_customer, o_orderstatus, o_totalprice + 1, o_orderdate + 7, o_orderpriority,
               o_clerk, o_shippriority, o_comment
        FROM new_orders
    """
    yield """
        INSERT INTO lineitem
        SELECT new_key, l_partkey, l_suppkey, l_linenumber, l_quantity + 1, l_extendedprice + 1, l_discount, l_tax,
               l_returnflag, l_linestatus, l_shipdate + 7, l_commitdate + 7, l_receiptdate + 7, l_shipinstruct,
               l_shipmode, l_comment
        FROM new_orders JOIN lineitem ON l_orderkey = o_orderkey
    """


def old_sales(orders: int, seed: int) -> Iterator[str]:
    """RF2: so many orders go, and their lines."""
    yield f"""
        WITH gone AS (
            DELETE FROM orders
            WHERE o_orderkey IN (
                SELECT o_orderkey FROM orders ORDER BY hashint8extended(o_orderkey, {seed}) LIMIT {orders}
            )
            RETURNING o_orderkey
        )
        DELETE FROM lineitem WHERE l_orderkey IN (SELECT o_orderkey FROM gone)
    """


def updates(share: float, seed: int, least: int = 2, tables: Collection[str] = TABLES) -> Iterator[str]:
    """Random updates in all eight tables: in a share of the rows of each, but `least` of them, columns exchange values.

    A few rows get another primary key, so that what refers to them finds nothing any more. With `tables` only these
    of the tables have their columns exchanged.
    """
    for table in tables:
        key, columns = CHANGED[table]
        for step in (0, 1):
            column = columns[(2 * seed + step) % len(columns)]
            order = f"hashtextextended(ROW({key})::text, {2 * seed + step})"
            match = " AND ".join(f"t.{name} = chosen.{name}" for name in key.split(", "))
            yield f"""
                WITH chosen AS (
                    SELECT {key}, {column}, {order} AS place FROM {table}
                    ORDER BY place LIMIT (SELECT greatest({least}, round(count(*) * {share})) FROM {table})
                ), moved AS (
                    SELECT {key}, coalesce(lead({column}) OVER w, first_value({column}) OVER w) AS value
                    FROM chosen WINDOW w AS (ORDER BY place)
                )
                UPDATE {table} AS t SET {column} = chosen.value FROM moved AS chosen WHERE {match}
            """
    for table, key in (("orders", "o_orderkey"), ("part", "p_partkey"), ("supplier", "s_suppkey")):
        yield f"""
            UPDATE {table} SET {key} = -{key}
            WHERE {key} IN (SELECT {key} FROM {table} ORDER BY hashint8extended({key}, {seed}) LIMIT 2)
        """
