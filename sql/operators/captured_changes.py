"""The captured changes of sources in SQL: which ones a frontier has not seen, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

from sql.base.columns import WEIGHT, Source
from sql.base.frontier import unseen
from sql.base.identity import content_groups
from sql.base.text import quote, select, union_all

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


def late_name(oid: int) -> str:
    """The CTE that holds the changes of a source that are not in its buffer yet, as the statement sees that."""
    return quote(f"__pgt_late_{oid}")


AWAITED = "__pgt_awaited"
"""The CTE that waits until the write-ahead log is decoded as far as the statement's snapshot sees."""

AWAIT = "SELECT pgtrickle._await_wal() AS done"


def late_changes(oid: int) -> str:
    """The changes of a source that is captured from the write-ahead log which its buffer lacks at the snapshot.

    What has committed just before the snapshot was taken is decoded and put into the buffer after that. So a function
    waits for it, and reads the buffer by a later snapshot of its own.
    """
    buffered = buffer(oid)
    return (
        f"SELECT l.* FROM pgtrickle._late(NULL::{buffered}, pgtrickle._delivered({oid}::pg_catalog.oid),"
        f" pg_catalog.pg_current_snapshot(), (SELECT w.done FROM {quote(AWAITED)} AS w)) AS l"
    )


def captured(oid: int, columns: Sequence[str], *, late: bool) -> str:
    """The captured changes of a source, alias c, for a FROM clause. Where some come ``late`` only these columns."""
    if not late:
        return f"{buffer(oid)} AS c"
    names = [quote(name) for name in ("__pgt_change_id", "__pgt_xid", "__pgt_w", *columns)]
    arms = [
        select([f"b.{name}" for name in names], f"{buffer(oid)} AS b"),
        select([f"l.{name}" for name in names], f"{late_name(oid)} AS l"),
    ]
    return f"({union_all(arms)}) AS c"


def delta_name(oid: int) -> str:
    """The CTE that holds the net pending changes of a source."""
    return quote(f"__pgt_delta_{oid}")


def recorded(reference: str, type_: str) -> str:
    """A column of a buffer as the source has it: buffers hold the base type of a domain.

    >>> recorded('c."n"', "integer"), recorded('c."n"', "public.positive")
    ('c."n"', 'c."n"::public.positive')
    """
    return f"{reference}::{type_}" if "." in type_ else reference


def pending_changes(source: Source, columns: Sequence[str], names: Sequence[str] = (), *, late: bool = False) -> str:
    """The pending changes of a source as they were captured; ``columns`` are expressions over the buffer, alias c.

    Where some come ``late`` (`captured`), ``names`` are the columns of the source that are in the expressions.
    """
    return select(columns, captured(source.oid, names, late=late), where=[*PENDING, 'c."__pgt_w" <> 0'])


def source_delta(
    source: Source, used: Sequence[str], condition: str | None = None, *, dated: bool = False, late: bool = False
) -> str:
    """The net pending changes of a source: changes that cancel each other out are gone before anything is joined.

    Only those that satisfy a ``condition`` on the buffer's columns (alias c) are looked at, if there is one. If they
    are ``dated``, those of each timestamp are consolidated apart, and have it in the column `AT`.
    """
    columns = [column.name for column in source.columns if column.name in used]
    dates = f' JOIN {quote(DATES)} AS a ON a.xid = c."__pgt_xid"' if dated else ""
    where = [*PENDING, 'c."__pgt_w" <> 0', *([f"({condition})"] if condition else [])]
    return net_changes(source, used, captured(source.oid, columns, late=late) + dates, where, dated=dated)


def net_changes(
    source: Source, used: Sequence[str], changes: str, where: Sequence[str] = (), *, dated: bool = False
) -> str:
    """The net of changes of a source that an item of FROM (alias c) has with their weights."""
    columns = [column for column in source.columns if column.name in used]
    by, values = content_groups(columns, "c")
    return select(
        [
            f"{recorded(value, column.type)} AS {quote(column.name)}"
            for value, column in zip(values, columns, strict=True)
        ]
        + [f'pg_catalog.sum(c."__pgt_w")::bigint AS {quote(WEIGHT)}']
        + [f"a.mz_timestamp AS {quote(AT)}"] * dated,
        changes,
        where=where,
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
