"""Versions: a source's rows at each of the timestamps since a frontier, and its changes from one to the next.

What has changed since the frontier is put into a temporary table: each content with its copies, the timestamp since
which there are so many, and the one from which on there are not. Every other row is as it is now. So the state at a
timestamp is the table without what has changed, and the versions of that time; and a timestamp's changes are the
versions that begin, less those that end. Statements get the timestamp as ``at`` in ``$1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sql.base.columns import Column, Source
from sql.base.consolidate import W, consolidated
from sql.base.identity import content_groups, content_hash
from sql.base.text import all_of, derived, quote, repeated, select, union_all
from sql.operators.captured_changes import AT, DATES, buffer, pending_dates, recorded, source_delta

COPIES, SINCE, UNTIL, BUCKET = (f"__pgt_{name}" for name in ("copies", "since", "until", "bucket"))
NOW = "($1->>'at')::bigint"
FOREVER = str(2**63 - 1)


def versions(source: Source) -> str:
    """The temporary table of a source's versions."""
    return quote("pg_temp", f"__pgt_versions_{source.oid}")


def create_versions(source: Source, used: Sequence[str]) -> tuple[str, ...]:
    """Statements that create the table, empty. For the role that is to fill and read it."""
    columns = [f"{recorded(f'c.{quote(c.name)}', c.type)} AS {quote(c.name)}" for c in _content(source, used)]
    own = [f"NULL::bigint AS {quote(name)}" for name in (COPIES, SINCE, UNTIL, *[BUCKET] * (not _key(source, used)))]
    empty = select([*columns, *own], f"{buffer(source.oid)} AS c")
    return (f"CREATE TEMPORARY TABLE {versions(source)} ON COMMIT DROP AS {empty} WITH NO DATA",)


def fill_versions(source: Source, used: Sequence[str]) -> str:
    """Fill the table with what has happened since the frontier ``$1``; returns the number of versions, as jsonb.

    The parameters are those of `pending_dates` as well, and date every change.
    """
    content = _content(source, used)
    columns = [quote(column.name) for column in content]
    key = _key(source, used)
    dated = quote("__pgt_dated")
    bucket = [f"d.{quote(name)}" for name in key] or [f"{content_hash(content, 'd', '0')} AS {quote(BUCKET)}"]
    touched = select(bucket, f"{dated} AS d", distinct=True)
    present = f"{derived(touched, 'v')} JOIN {quote(source.schema, source.name)} AS t ON {touching(source, used, 't')}"
    begin = f"($1->>'after')::bigint AS {quote(AT)}"
    events = union_all(
        [
            select([*columns, quote(AT), W], dated),
            # What there was at the beginning: what there is, less all that has happened.
            select([*columns, begin, f"-{W} AS {W}"], dated),
            select([*(f"t.{column}" for column in columns), begin, f"1::bigint AS {W}"], present),
        ]
    )
    by, values = content_groups(content, "e")
    contents = select(
        [f"{value} AS {column}" for value, column in zip(values, columns, strict=True)]
        + [f"pg_catalog.array_agg(e.{name}) AS {name}" for name in (quote(AT), W)],
        derived(events, "e"),
        group_by=by,
    )
    course = select(
        [
            "pg_catalog.sum(pg_catalog.sum(x.w)) OVER (ORDER BY x.at)::bigint AS copies",
            "x.at AS since",
            f"coalesce(pg_catalog.lead(x.at) OVER (ORDER BY x.at), {FOREVER}) AS until",
        ],
        f"ROWS FROM (pg_catalog.unnest(g.{quote(AT)}), pg_catalog.unnest(g.{W})) AS x(at, w)",
        group_by=["x.at"],
    )
    targets, found = [*columns, *map(quote, (COPIES, SINCE, UNTIL))], ["p.copies", "p.since", "p.until"]
    if not key:
        targets.append(quote(BUCKET))
        found.append(content_hash(content, "g", "0"))
    rows = select(
        [*(f"g.{c}" for c in columns), *found],
        f"{derived(contents, 'g')} CROSS JOIN LATERAL {derived(course, 'p')}",
        where=["p.copies > 0"],
    )
    return (
        f"WITH {quote(DATES)} AS MATERIALIZED ({pending_dates([source])}),"
        f" {dated} AS MATERIALIZED ({source_delta(source, used, dated=True)}),"
        f" filled AS (INSERT INTO {versions(source)} ({', '.join(targets)}) {rows} RETURNING 1)"
        " SELECT pg_catalog.to_jsonb(pg_catalog.count(*)) FROM filled"
    )


def index_versions(source: Source, used: Sequence[str], searched: Iterable[str]) -> tuple[str, ...]:
    """Statements that make the filled table quick to read, also by columns that the source is ``searched`` by."""
    key = _key(source, used) or (BUCKET,)
    indexed = dict.fromkeys([key, (SINCE,), (UNTIL,), *((name,) for name in searched if name in used)])
    indexes = (f"CREATE INDEX ON {versions(source)} ({', '.join(map(quote, columns))})" for columns in indexed)
    return (*indexes, f"ANALYZE {versions(source)}")


def changes_at(source: Source, used: Sequence[str]) -> str:
    """The net changes of a source at the timestamp."""
    content = _content(source, used)
    columns = [f"v.{quote(column.name)}" for column in content]
    come, gone = (
        select(
            [*columns, f"{sign}v.{quote(COPIES)} AS {W}"], f"{versions(source)} AS v", where=[f"v.{quote(end)} = {NOW}"]
        )
        for sign, end in (("", SINCE), ("-", UNTIL))
    )
    return consolidated(union_all([come, gone]), content)


def unchanged(source: Source, used: Sequence[str]) -> str:
    """The condition that a row (alias t) is what it was at the frontier."""
    there = select([], f"{versions(source)} AS v", where=[touching(source, used, "t")])
    return f"NOT EXISTS ({there})"


def versions_at(source: Source, used: Sequence[str], columns: Sequence[str]) -> str:
    """The other rows as they were at the timestamp; ``columns`` are expressions over the versions, alias v."""
    then = [f"v.{quote(SINCE)} <= {NOW}", f"v.{quote(UNTIL)} > {NOW}"]
    return select(columns, f"{versions(source)} AS v CROSS JOIN {repeated(f'v.{quote(COPIES)}')} AS r", where=then)


def touching(source: Source, used: Sequence[str], row: str) -> str:
    """The condition that a row (its alias) may be one of those that a version (alias v) tells of."""
    key = _key(source, used)
    if key:
        return all_of([f"v.{quote(name)} = {row}.{quote(name)}" for name in key])
    return f"v.{quote(BUCKET)} = {content_hash(_content(source, used), row, '0')}"


def timestamps(sources: Sequence[Source]) -> str:
    """The timestamps after ``after`` and up to ``until`` (in ``$1``) at which sources changed, each with their oids."""
    ends = union_all(
        [
            select([f"{source.oid}::bigint AS source", f"v.{quote(end)} AS at"], f"{versions(source)} AS v")
            for source in sources
            for end in (SINCE, UNTIL)
        ]
    )
    period = ["e.at > ($1->>'after')::bigint", "e.at <= ($1->>'until')::bigint"]
    found = select(
        ["e.at", "pg_catalog.array_agg(DISTINCT e.source) AS sources"],
        derived(ends, "e"),
        where=period,
        group_by=["e.at"],
    )
    told = "pg_catalog.jsonb_build_array(f.at, f.sources)"
    return select([f"pg_catalog.jsonb_agg({told} ORDER BY f.at)"], derived(found, "f"))


def _content(source: Source, used: Sequence[str]) -> list[Column]:
    return [column for column in source.columns if column.name in used]


def _key(source: Source, used: Sequence[str]) -> tuple[str, ...]:
    """The primary key, if it is among the columns and can be compared whatever the search_path; otherwise ()."""
    types = {column.name: column.type for column in _content(source, used)}
    return source.key if all("." not in types.get(name, ".") for name in source.key) else ()
