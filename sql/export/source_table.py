"""A table of PostgreSQL's as a dataset of Spark's: how its values go over as text, and are parsed there.

PostgreSQL's text determines every value. JDBC's own types do not: an infinite date, a numeric without a scale, a
timestamp beside a change of the clocks. What Spark's type does not have is an error there, never another value or NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

from sql.base.columns import Column, Source
from sql.base.text import quote
from sql.export.dataset import check_names
from sql.spark.types import FLOATS, INFINITE_DAYS, INTEGERS, SparkType, column_type
from sql.spark.values import identifier

PRESENT = "present"
"""The column of a source of which only the number of rows matters."""

_AS_THEY_ARE = frozenset(("boolean", "text", *INTEGERS, *FLOATS))


def rows_query(source: Source, names: Sequence[str]) -> str:
    """What PostgreSQL is asked: these columns of a table.

    >>> table = Source(7, "public", "t", (Column("n", "integer"), Column("d", "date")))
    >>> print(rows_query(table, ("n", "d")))
    SELECT "n", CAST("d" AS pg_catalog.text) AS "d" FROM "public"."t"
    """
    items = [_item(column) for column in _columns(source, names)] or [f"true AS {quote(PRESENT)}"]
    return f"SELECT {', '.join(items)} FROM {quote(source.schema, source.name)}"


def _item(column: Column) -> str:
    name = quote(column.name)
    if _type(column).name in _AS_THEY_ARE and not column.carrier:
        return name
    value = f"{name} AT TIME ZONE 'UTC'" if _type(column).name == "timestamp with time zone" else name
    return f"CAST({value} AS pg_catalog.text) AS {name}"


def spark_columns(source: Source, names: Sequence[str]) -> list[str]:
    """What Spark makes of the columns of `rows_query`, as items of a SELECT. Raises NotExpressible.

    >>> table = Source(7, "public", "t", (Column("n", "numeric(10,2)"), Column("s", "text")))
    >>> spark_columns(table, ("n", "s"))
    ['CAST(`n` AS DECIMAL(10, 2)) AS `n`', '`s` AS `s`']
    """
    check_names(names or (PRESENT,))
    columns = [(identifier(column.name), _type(column)) for column in _columns(source, names)]
    return [f"{_parsed(name, type_)} AS {name}" for name, type_ in columns] or [identifier(PRESENT)]


def _columns(source: Source, names: Sequence[str]) -> list[Column]:
    """The named columns, in the table's order."""
    return [column for column in source.columns if column.name in names]


def _type(column: Column) -> SparkType:
    return column_type(column.type, carrier=column.carrier)


def _parsed(text: str, type_: SparkType) -> str:
    """A value from PostgreSQL's text."""
    if type_.name == "date":
        finite = f"CAST({_within_range(text)} AS DATE)"
        return _endless(text, finite, "date_add(DATE '1970-01-01', {days})")
    if type_.name == "timestamp without time zone":
        finite = f"CAST({_within_range(text)} AS TIMESTAMP_NTZ)"
        return _endless(text, finite, "CAST(date_add(DATE '1970-01-01', {days}) AS TIMESTAMP_NTZ)")
    if type_.name == "timestamp with time zone":
        finite = f"CAST(concat({_within_range(text)}, 'Z') AS TIMESTAMP)"
        return _endless(text, finite, "timestamp_seconds({days} * 86400L)")
    if type_.spark == "STRING":
        return text
    return f"CAST({text} AS {type_.spark})"


def _within_range(text: str) -> str:
    """The text of a date of the years 1 to 9999; others are an error."""
    error = f"raise_error(concat('not a date that can be computed with in Spark: ', {text}))"
    return f"CASE WHEN {text} IS NULL OR {text} RLIKE '^[0-9]{{4}}-[^B]*$' THEN {text} ELSE {error} END"


def _endless(text: str, finite: str, moment: str) -> str:
    """A date or timestamp; infinite ones are the days that stand for them (`INFINITE_DAYS`)."""
    return (
        f"CASE {text} WHEN 'infinity' THEN {moment.format(days=INFINITE_DAYS)}"
        f" WHEN '-infinity' THEN {moment.format(days=-INFINITE_DAYS)} ELSE {finite} END"
    )
