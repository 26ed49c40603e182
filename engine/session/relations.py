"""Users' relations, as the engine touches them with its own rights: known by their OIDs, never by a name alone.

A name can mean another relation by the time a statement arrives: tables and schemas are renamed by their owners, and no
lock on a table keeps its schema from being renamed. So a relation's name is looked up just before it is used, and which
relations a transaction has in fact opened is read off its locks, which it keeps to its end, before anything that it has
read is believed.

What the engine does with its own rights to such a relation runs no code of users: it locks it, and it has PostgreSQL
COPY the table as it is. It plans no query over it, for the planner evaluates the expressions of indexes and statistics
as far as they are constant, with the rights of whoever asks. All else runs inside `pgtrickle._run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import asyncpg

from catalog.session import SqlError
from sql.base.text import quote


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation as it is called now."""

    oid: int
    schema: str
    name: str
    kind: str
    """As `pg_identify_object` says it: ``table`` (partitioned ones, too), ``view``, ``foreign table``, …"""

    @property
    def qualified(self) -> str:
        """Its name for SQL."""
        return quote(self.schema, self.name)


# Of the catalog as it is now, whatever the transaction's snapshot sees.
_NOW_SQL = """
SELECT i.type, pg_catalog.parse_ident(i.identity)
FROM pg_catalog.pg_identify_object('pg_catalog.pg_class'::regclass, $1::bigint::oid, 0) AS i
"""

# Relations of users that the transaction has locked, as it has all that it has opened. One that its snapshot does not
# know has come later.
_OPENED_SQL = """
SELECT l.relation::bigint
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted AND l.relation::bigint >= 16384
  AND (c.oid IS NULL OR c.relkind NOT IN ('i', 'I', 't')
                        AND n.nspname NOT IN ('pgtrickle', 'pgtrickle_changes', 'pgque', 'accum'))
"""


async def relation(connection: asyncpg.Connection, oid: int) -> Relation | None:
    """What a relation is called now; None if there is none."""
    found = await connection.fetchrow(_NOW_SQL, oid)
    if found is None or found[1] is None or len(found[1]) != 2:
        return None
    schema, name = found[1]
    return Relation(oid, schema, name, found[0])


async def locked(connection: asyncpg.Connection, oid: int, title: str) -> Relation:
    """Keep DDL away from a relation until the transaction ends; what it is called.

    Its children are not locked. Raises SqlError 40001 if it is gone, or another has taken its name.
    """
    found = await relation(connection, oid)
    if found is None:
        raise _gone(title)
    await connection.fetch(f"LOCK TABLE ONLY {found.qualified} IN ACCESS SHARE MODE")
    await check_opened(connection, [oid], title)
    if await relation(connection, oid) != found:
        raise _gone(title)
    return found


async def check_opened(connection: asyncpg.Connection, oids: Iterable[int], title: str) -> None:
    """See to it that the transaction has opened no other relation of users than these.

    Raises SqlError 40001: what it has read is not what it was to read.
    """
    known = set(oids)
    if any(oid not in known for (oid,) in await connection.fetch(_OPENED_SQL)):
        raise _gone(title)


def _gone(title: str) -> SqlError:
    return SqlError("40001", f'table "{title}" was renamed, replaced or dropped meanwhile')
