"""The rows of a source out of its mirror: the base as of one snapshot, and the changes between that one and another.

With B(r) the times that row r is in the base, which is as of snapshot b, and every change of the log a row with
weight w and transaction x, the rows as of snapshot s are the Z-set

    S(r) = B(r) + Σ w · ([x visible in s] - [x visible in b])

which works forwards and backwards. Changes are summed by whole rows: their order need not be known (a trigger that
updates what a statement inserts is captured before the statement is). Where the primary key is among the columns, B
and S hold every key at most once: rows of the sum with weight -1 are in the base and go, those with 1 come. Otherwise
the rows of the base that the sum has, too, are counted.

Floats are told apart by their text, since -0 = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WEIGHT = "__pgt_w"
XID = "__pgt_xid"
CHANGE_ID = "__pgt_change_id"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What Spark and DataFusion write differently. `repeat` is a set-returning item that gives so many rows."""

    quote: Callable[[str], str]
    first: str
    repeat: str


SPARK = Dialect(lambda name: "`" + name.replace("`", "``") + "`", "first", "explode(sequence(CAST(1 AS BIGINT), {}))")
DATAFUSION = Dialect(
    lambda name: '"' + name.replace('"', '""') + '"', "first_value", "unnest(generate_series(CAST(1 AS BIGINT), {}))"
)


def net_changes(dialect: Dialect, changes: str, columns: Mapping[str, bool], seen_after: str, seen_before: str) -> str:
    """The net Z-set of the rows of relation `changes` seen by the one condition and not by the other.

    `columns` says of each whether it is a float. The result has these columns and `__pgt_w`, which is never 0.
    """
    q = dialect.quote
    weight = (
        f"SUM(CAST({q(WEIGHT)} AS BIGINT) * "
        f"((CASE WHEN {seen_after} THEN 1 ELSE 0 END) - (CASE WHEN {seen_before} THEN 1 ELSE 0 END)))"
    )
    items = [f"{dialect.first}({q(name)}) AS {q(name)}" if real else q(name) for name, real in columns.items()]
    groups = [f"CAST({q(name)} AS STRING)" if real else q(name) for name, real in columns.items()]
    return (
        f"SELECT * FROM (SELECT {', '.join(items)}, {weight} AS {q(WEIGHT)} FROM {changes} "
        f"WHERE ({seen_after}) <> ({seen_before}) GROUP BY {', '.join(groups)}) s WHERE {q(WEIGHT)} <> 0"
    )


def rows_as_of(
    dialect: Dialect, base: str, net: str, columns: Mapping[str, bool], key: Sequence[str], names: Sequence[str]
) -> str:
    """`names` of the rows of relation `base` after the net changes in relation `net`, which has all of `columns`.

    `key` is the primary key if all of it is among the columns, or ().
    """
    q = dialect.quote
    wanted = ", ".join(f"b.{q(name)}" for name in names)
    if key:
        same = " AND ".join(f"b.{q(name)} = n.{q(name)}" for name in key)
        came = ", ".join(q(name) for name in names)
        return (
            f"SELECT {wanted} FROM {base} b LEFT ANTI JOIN (SELECT * FROM {net} WHERE {q(WEIGHT)} < 0) n ON {same} "
            f"UNION ALL SELECT {came} FROM {net} WHERE {q(WEIGHT)} > 0"
        )
    same = " AND ".join(f"(b.{q(name)} IS NOT DISTINCT FROM n.{q(name)})" for name in columns)
    items = ", ".join(f"b.{q(name)}" for name in columns)
    plain = ", ".join(q(name) for name in columns)
    first = ", ".join(f"{dialect.first}({q(n)}) AS {q(n)}" if real else q(n) for n, real in columns.items())
    groups = ", ".join(f"CAST({q(name)} AS STRING)" if real else q(name) for name, real in columns.items())
    counted = (
        f"SELECT {first}, SUM({q(WEIGHT)}) AS __pgt_times FROM ("
        f"SELECT {items}, CAST(1 AS BIGINT) AS {q(WEIGHT)} FROM {base} b LEFT SEMI JOIN {net} n ON {same} "
        f"UNION ALL SELECT {plain}, {q(WEIGHT)} FROM {net}) t GROUP BY {groups}"
    )
    chosen = ", ".join(f"c.{q(name)}" for name in names)
    shown = ", ".join(q(name) for name in names)
    return (
        f"SELECT {wanted} FROM {base} b LEFT ANTI JOIN {net} n ON {same} "
        f"UNION ALL SELECT {shown} FROM (SELECT {chosen}, {dialect.repeat.format('c.__pgt_times')} AS __pgt_n "
        f"FROM ({counted}) c WHERE c.__pgt_times > 0) r"
    )
