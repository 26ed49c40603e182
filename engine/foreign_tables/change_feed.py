"""The statements that bring the changes of a lake table into its copy, from texts with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sql.base.text import quote

FILE, ROW = "__pgt_file", "__pgt_row"
"""Columns of the table of texts: the number of the file, and that of the row in it, or its weight."""

Columns = Sequence[tuple[str, str]]
"""Names, and the types that the texts are cast to."""


_LOOKED_FOR = frozenset(
    (
        "smallint",
        "integer",
        "bigint",
        "numeric",
        "text",
        "character varying",
        "uuid",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    )
)


def _net(texts: str, columns: Columns) -> str:
    """The texts of rows, and how many more of each there are now."""
    names = ", ".join(quote(name) for name, _ in columns)
    weight = f"pg_catalog.sum({ROW}::pg_catalog.int8)::pg_catalog.int8"
    return f"SELECT {names}, {weight} AS __pgt_w FROM {texts} GROUP BY {names} HAVING {weight} <> 0"


def _values(texts: str, columns: Columns, times: str) -> str:
    """So many of each row, as values."""
    cast = ", ".join(f"n.{quote(name)}::{type_}" for name, type_ in columns)
    return f"SELECT {cast} FROM ({_net(texts, columns)}) AS n, pg_catalog.generate_series(1, {times})"


def deleted_values(texts: str, values: str, columns: Columns) -> str:
    """The statement that puts the rows that have gone into a table of values.

    It returns how many `rows` there are, and `distinct`: how many different values of each of `_telling`.
    """
    names = ", ".join(quote(name) for name, _ in columns)
    counts = ", ".join(f"pg_catalog.count(DISTINCT p.{quote(name)})" for name in _telling(columns))
    return f"""
WITH put AS (
    INSERT INTO {values} ({names}) {_values(texts, columns, "- n.__pgt_w")} RETURNING {names}
)
SELECT pg_catalog.jsonb_build_object('rows', pg_catalog.count(*), 'distinct', pg_catalog.jsonb_build_array({counts}))
FROM put p"""


def _telling(columns: Columns) -> list[str]:
    """The columns by whose values rows may be looked for: of types whose equality is PostgreSQL's own."""
    return [name for name, type_ in columns if type_ in _LOOKED_FOR]


def changes(texts: str, values: str, copy: str, columns: Columns, deletes: Mapping[str, Any]) -> str:
    """The statement that deletes the rows in a table of values from a copy and inserts those that have come.

    It returns the counts. Rows are compared by their text, as in `difference`, where the column with most values among
    the rows to be deleted has one of these. `deletes` is what `deleted_values` has returned.
    """
    names = ", ".join(quote(name) for name, _ in columns)
    row = f'ROW({", ".join(f"r.{quote(name)}" for name, _ in columns)})::pg_catalog.text COLLATE "C"'
    gone = "SELECT WHERE false"
    found = f"SELECT r.ctid AS __pgt_at, {row} AS __pgt_row FROM {copy} r"
    if telling := max(zip(deletes["distinct"], _telling(columns), strict=True), default=None):
        name = quote(telling[1])
        # Two queries, since PostgreSQL hashes for IN alone whatever memory it has.
        found = f"""{found} WHERE r.{name} IN (SELECT v.{name} FROM {values} v) UNION ALL
                  {found} WHERE r.{name} IS NULL AND EXISTS (SELECT FROM {values} v WHERE v.{name} IS NULL)"""
    if deletes["rows"]:
        gone = f"""DELETE FROM {copy} WHERE ctid = ANY (ARRAY(
        SELECT o.__pgt_at FROM (
            SELECT f.__pgt_at, f.__pgt_row, pg_catalog.row_number() OVER (PARTITION BY f.__pgt_row) AS __pgt_place
            FROM ({found} OFFSET 0) AS f
            WHERE f.__pgt_row IN (SELECT g.__pgt_row FROM __pgt_gone g)
        ) AS o JOIN __pgt_gone g ON g.__pgt_row OPERATOR(pg_catalog.=) o.__pgt_row
        WHERE o.__pgt_place OPERATOR(pg_catalog.<=) g.__pgt_times))
    RETURNING 1"""
    return f"""
WITH __pgt_gone AS MATERIALIZED (
    SELECT {row} AS __pgt_row, pg_catalog.count(*) AS __pgt_times FROM {values} r GROUP BY 1
), __pgt_deleted AS (
    {gone}
), __pgt_come AS (
    INSERT INTO {copy} ({names}) {_values(texts, columns, "n.__pgt_w")} RETURNING 1
)
SELECT pg_catalog.jsonb_build_object('gone', (SELECT pg_catalog.count(*) FROM __pgt_deleted),
                                     'come', (SELECT pg_catalog.count(*) FROM __pgt_come))"""
