"""The captured changes of sources in SQL: which ones a frontier has not seen, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

from sql.base.columns import WEIGHT, Source
from sql.base.frontier import unseen
from sql.base.identity import content_groups
from sql.base.text import quote, select

DATES = "__pgt_dates"
"""The common table expression that says which timestamp each transaction has, where changes are dated."""

AT = "__pgt_at"
"""The column that holds the timestamp of a dated change."""

FRONTIER = "($1->>'snapshot')::pg_catalog.pg_snapshot"
"""The snapshot of the frontier, in statements."""

PENDING = (unseen(FRONTIER, "($1->>'xid')::pg_catalog.xid8", "coalesce(($1->>'change_id')::bigint, 0)"),)
"""A change (alias c) is pending for the frontier $1."""


def buffer(oid: int) -> str:
    """The table that captures the changes of a source."""
    return quote("pgtrickle_changes", f"changes_{oid}")


def delta_name(oid: int) -> str:
    """The CTE that holds the net pending changes of a source."""
    return quote(f"__pgt_delta_{oid}")


def recorded(reference: str, type_: str) -> str:
    """A column of a buffer as the source has it: buffers hold the base type of a domain.

    >>> recorded('c."n"', "integer"), recorded('c."n"', "public.positive")
    ('c."n"', 'c."n"::public.positive')
    """
    return f"{reference}::{type_}" if "." in type_ else reference


def pending_changes(source: Source, columns: Sequence[str]) -> str:
    """The pending changes of a source as they were captured; ``columns`` are expressions over the buffer, alias c."""
    return select(columns, f"{buffer(source.oid)} AS c", where=[*PENDING, 'c."__pgt_w" <> 0'])


def source_delta(source: Source, used: Sequence[str], condition: str | None = None, *, dated: bool = False) -> str:
    """The net pending changes of a source: changes that cancel each other out are gone before anything is joined.

    Only those that satisfy a ``condition`` on the buffer's columns (alias c) are looked at, if there is one. If they
    are ``dated``, those of each timestamp are consolidated apart, and have it in the column `AT`.
    """
    columns = [column for column in source.columns if column.name in used]
    by, values = content_groups(columns, "c")
    dates = f' JOIN {quote(DATES)} AS a ON a.xid = c."__pgt_xid"' if dated else ""
    return select(
        [
            f"{recorded(value, column.type)} AS {quote(column.name)}"
            for value, column in zip(values, columns, strict=True)
        ]
        + [f'pg_catalog.sum(c."__pgt_w")::bigint AS {quote(WEIGHT)}']
        + [f"a.mz_timestamp AS {quote(AT)}"] * dated,
        f"{buffer(source.oid)} AS c{dates}",
        where=[*PENDING, 'c."__pgt_w" <> 0', *([f"({condition})"] if condition else [])],
        group_by=[*by, *["a.mz_timestamp"] * dated],
        having=['pg_catalog.sum(c."__pgt_w") <> 0'],
    )


def pending_dates(sources: Sequence[Source]) -> str:
    """The timestamps of transactions with pending changes: the query of the common table expression `DATES`.

    The parameters have those between which they are (``after``, ``until``), and ``rest``, whether a transaction that
    none of these sees has the latter. Without ``rest`` it does not count.
    """
    xids = " UNION ".join(pending_changes(source, ['c."__pgt_xid"']) for source in sources)
    period = "($1->>'after')::bigint, ($1->>'until')::bigint, ($1->>'rest')::boolean"
    dates = f"pgtrickle._dates({period}, ARRAY({xids}))"
    return select(["d.xid", "d.mz_timestamp"], f"{dates} AS d")
