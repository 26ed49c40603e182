"""The rows of a source out of its mirror: the base as of one snapshot, and the changes between that one and another.

With B(r) the times that row r is in the base, which is as of snapshot b, and every change of the log a row with
weight w and transaction x, the rows as of snapshot s are the Z-set

    S(r) = B(r) + Σ w · ([x visible in s] - [x visible in b])

which works forwards and backwards. Changes are summed by whole rows: their order need not be known (a trigger that
updates what a statement inserts is captured before the statement is). Where the columns include a key of the table, B
and S hold every key at most once: rows of the sum with weight -1 are in the base and go, those with 1 come. Few changes
cost a query next to nothing that way. Otherwise the rows of the base that the sum has, too, are counted, which compares
all captured columns of all rows.

Floats are told apart by their text, since -0 = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sql.base.text import quote

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
DATAFUSION = Dialect(quote, "first_value", "unnest(generate_series(CAST(1 AS BIGINT), {}))")


@dataclass(frozen=True, slots=True)
class MirrorColumn:
    """A column in SQL. ``blank``: a value of its type, to be compared in place of NULL; None: its text is compared.

    ``real``: a float, which is told apart by its text.
    """

    blank: str | None = None
    real: bool = False

    @staticmethod
    def of(type_: pa.DataType) -> MirrorColumn:
        """By the type in the mirror.

        >>> MirrorColumn.of(pa.int32())
        MirrorColumn(blank='0', real=False)
        """
        if pa.types.is_floating(type_):
            return MirrorColumn(real=True)
        if pa.types.is_integer(type_) or pa.types.is_decimal(type_):
            return MirrorColumn("0")
        if pa.types.is_string(type_):
            return MirrorColumn("''")
        return MirrorColumn("FALSE" if pa.types.is_boolean(type_) else None)

    def same(self, one: str, other: str) -> str:
        """Whether two values are identical, both of them NULL included, as equations that a hash join can use.

        (`IS NOT DISTINCT FROM` is the condition of a nested loop to Sail and DataFusion.)
        """
        if self.blank is None:
            values = [f"COALESCE(CAST({value} AS STRING), '')" for value in (one, other)]
        else:
            values = [f"COALESCE({value}, {self.blank})" for value in (one, other)]
        return f"{values[0]} = {values[1]} AND ({one} IS NULL) = ({other} IS NULL)"

    def group(self, value: str) -> str:
        """What rows are grouped by."""
        return f"CAST({value} AS STRING)" if self.real else value


def net_changes(
    dialect: Dialect, changes: str, columns: Mapping[str, MirrorColumn], seen_after: str, seen_before: str
) -> str:
    """The net Z-set of the rows of relation `changes` seen by the one condition and not by the other.

    The result has `columns` and `__pgt_w`, which is never 0.
    """
    q = dialect.quote
    weight = (
        f"SUM(CAST({q(WEIGHT)} AS BIGINT) * "
        f"((CASE WHEN {seen_after} THEN 1 ELSE 0 END) - (CASE WHEN {seen_before} THEN 1 ELSE 0 END)))"
    )
    items = [_representative(dialect, name, column) for name, column in columns.items()]
    groups = [column.group(q(name)) for name, column in columns.items()]
    return (
        f"SELECT * FROM (SELECT {', '.join(items)}, {weight} AS {q(WEIGHT)} FROM {changes} "
        f"WHERE ({seen_after}) <> ({seen_before}) GROUP BY {', '.join(groups)}) s WHERE {q(WEIGHT)} <> 0"
    )


def rows_as_of(
    dialect: Dialect, base: str, net: str, columns: Mapping[str, MirrorColumn], key: Sequence[str], names: Sequence[str]
) -> str:
    """`names` of the rows of relation `base` after the net changes in relation `net`, which has all of `columns`.

    `key` is a key of the table if all of it is among the columns, or ().
    """
    q = dialect.quote
    wanted = ", ".join(f"b.{q(name)}" for name in names)
    if key:
        # Old images are what the base has to the letter, of whatever else is equal to a key for PostgreSQL.
        same = " AND ".join(f"{columns[n].group(f'b.{q(n)}')} = {columns[n].group(f'n.{q(n)}')}" for n in key)
        came = ", ".join(q(name) for name in names)
        return (
            f"SELECT {wanted} FROM {base} b LEFT ANTI JOIN (SELECT * FROM {net} WHERE {q(WEIGHT)} < 0) n ON {same} "
            f"UNION ALL SELECT {came} FROM {net} WHERE {q(WEIGHT)} > 0"
        )
    same = " AND ".join(column.same(f"b.{q(name)}", f"n.{q(name)}") for name, column in columns.items())
    items = ", ".join(f"b.{q(name)}" for name in columns)
    plain = ", ".join(q(name) for name in columns)
    first = ", ".join(_representative(dialect, name, column) for name, column in columns.items())
    groups = ", ".join(column.group(q(name)) for name, column in columns.items())
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


def _representative(dialect: Dialect, name: str, column: MirrorColumn) -> str:
    quoted = dialect.quote(name)
    return f"{dialect.first}({quoted}) AS {quoted}" if column.real else quoted
