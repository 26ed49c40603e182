"""Whether a database orders text by its bytes, as Spark does, and for which columns it does not."""

from __future__ import annotations

from collections.abc import Iterable

from catalog.session import SqlSession

BINARY_ORDER = """(
    SELECT CASE d.datlocprovider
               WHEN 'c' THEN d.datcollate IN ('C', 'POSIX')
               WHEN 'b' THEN coalesce(pg_catalog.to_jsonb(d) ->> 'datlocale', '') IN ('C', 'C.UTF-8')
               ELSE false
           END
    FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
)"""
"""Of the database: true in the C collations, those of the C library and those of PostgreSQL itself."""

# Columns with a collation other than the database's own and the ones that compare bytes.
_COLLATED = """
SELECT a.attrelid::pg_catalog.int8, a.attname::pg_catalog.text
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_collation c ON c.oid OPERATOR(pg_catalog.=) a.attcollation
WHERE a.attrelid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text::pg_catalog.oid[])
  AND NOT c.collname OPERATOR(pg_catalog.=)
      ANY ('{default,C,POSIX,ucs_basic,pg_c_utf8}'::pg_catalog.name[])
"""


async def collated_columns(session: SqlSession, relations: Iterable[int]) -> frozenset[tuple[int, str]]:
    """The columns of relations, by oid and name, that are not ordered as the database orders text."""
    oids = "{" + ",".join(map(str, relations)) + "}"
    return frozenset((int(oid), str(name)) for oid, name in await session.fetch(_COLLATED, oids))
