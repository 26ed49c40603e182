"""What values depend on beside rows, as rendering for Spark must know it: collations, and the time zone."""

from __future__ import annotations

import json
from collections.abc import Iterable

from catalog.session import SqlSession
from engine.compile.compiled_query import Kept
from sql.spark.protocol import Environment
from sql.spark.text.collations import BUILTIN, BYTES, OTHER, Casing, Collations

# The first is true in the C collations, those of the C library and those of PostgreSQL itself. The second is true where
# each character changes its case by itself: ICU, and PG_UNICODE_FAST, look at those beside it.
_DATABASE = """
SELECT d.oid::pg_catalog.int8, pg_catalog.pg_postmaster_start_time()::pg_catalog.text,
       CASE d.datlocprovider
           WHEN 'c' THEN d.datcollate IN ('C', 'POSIX')
           WHEN 'b' THEN coalesce(pg_catalog.to_jsonb(d) ->> 'datlocale', '') IN ('C', 'C.UTF-8')
           ELSE false
       END,
       pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.=) 'UTF8'
       AND CASE d.datlocprovider
               WHEN 'c' THEN true
               WHEN 'b' THEN coalesce(pg_catalog.to_jsonb(d) ->> 'datlocale', '') IN ('C', 'C.UTF-8')
               ELSE false
           END,
       pg_catalog.lower(pg_catalog.current_setting('TimeZone')) IN ('utc', 'etc/utc', 'gmt', 'etc/gmt')
FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""

# Columns with a collation other than the database's own.
_COLUMNS = f"""
SELECT a.attrelid::pg_catalog.int8, a.attname::pg_catalog.text,
       CASE WHEN c.collnamespace OPERATOR(pg_catalog.<>) 'pg_catalog'::pg_catalog.regnamespace THEN '{OTHER}'
            WHEN c.collname IN ('C', 'POSIX', 'ucs_basic') THEN '{BYTES}'
            WHEN c.collname OPERATOR(pg_catalog.=) '{BUILTIN}' THEN '{BUILTIN}'
            ELSE '{OTHER}'
       END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_collation c ON c.oid OPERATOR(pg_catalog.=) a.attcollation
WHERE a.attrelid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text::pg_catalog.oid[])
  AND c.oid OPERATOR(pg_catalog.<>) 'pg_catalog.default'::pg_catalog.regcollation
"""

# The labels of enums, in order, that columns have, or are based on.
_LABELS = """
SELECT pg_catalog.format_type(e.enumtypid, NULL), pg_catalog.to_json(
           pg_catalog.array_agg(e.enumlabel ORDER BY e.enumsortorder)
       )::pg_catalog.text
FROM pg_catalog.pg_enum e
WHERE e.enumtypid IN (
    SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
    WHERE a.attrelid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text::pg_catalog.oid[])
)
GROUP BY e.enumtypid
"""

# All characters that Unicode may give cases to are in the first two planes. NULL if one becomes several.
_CASES = """
SELECT pg_catalog.string_agg(c, '' ORDER BY i) FILTER (WHERE changed),
       pg_catalog.string_agg(other, '' ORDER BY i) FILTER (WHERE changed),
       pg_catalog.bool_and(pg_catalog.char_length(other) OPERATOR(pg_catalog.=) 1)
FROM (
    SELECT i, c, {function}(c) AS other, {function}(c) OPERATOR(pg_catalog.<>) c COLLATE "C" AS changed
    FROM (
        SELECT i, pg_catalog.chr(i) FROM pg_catalog.generate_series(1, 131071) AS i
        WHERE i NOT BETWEEN 55296 AND 57343
    ) AS all_characters(i, c)
) AS cases
"""

_casings: Kept[tuple[int, str], Casing | None] = Kept(64)
"""By database, and by when PostgreSQL was started: its libraries may be others the next time."""


async def environment_of(session: SqlSession, relations: Iterable[int]) -> Environment:
    """That of a session, in which columns of relations, by oid, are read."""
    ((oid, started, binary_order, one_by_one, utc),) = await session.fetch(_DATABASE)
    casing = await _casings.get((oid, started), lambda: _casing(session)) if one_by_one else None
    oids = "{" + ",".join(map(str, relations)) + "}"
    columns = frozenset((int(oid), str(name), str(of)) for oid, name, of in await session.fetch(_COLUMNS, oids))
    labels = await session.fetch(_LABELS, oids)
    enums = tuple(sorted((str(name), tuple(json.loads(text))) for name, text in labels))
    return Environment(Collations(bool(binary_order), casing, columns), bool(utc), enums)


async def _casing(session: SqlSession) -> Casing | None:
    found = []
    for function in ("pg_catalog.upper", "pg_catalog.lower"):
        ((characters, others, single),) = await session.fetch(_CASES.format(function=function))
        if not single:
            return None
        found.append((str(characters or ""), str(others or "")))
    return Casing(*found)
