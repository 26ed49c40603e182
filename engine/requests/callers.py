"""What in a database may make an engine request without being named by a statement that uses it.

A statement's text tells whether it calls a request function by itself. It does not tell what functions, views and
defaults do that it uses: here the catalog is asked for those.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from catalog.session import SqlSession
from catalog.systems import SYSTEMS
from engine.session.pool import DatabasePool

LOOK_SECONDS = 1.0
"""Time after which a database in which nothing was found is looked through again, when a client logs in."""

_OURS = sorted(name for system in SYSTEMS for name in (system.schema, system.internal, *system.beside) if name)
_REQUEST = (
    "(create|replace|if_not_exists|drop|alter|refresh|resume)_stream_table|retain_history|\\m(un)?publish(\\s*\\(|$)"
)

_FIND = r"""
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_proc AS p
    JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
    WHERE p.oid >= 16384 AND l.lanname NOT IN ('internal', 'c')
        AND p.pronamespace <> ALL (ARRAY(  -- of these no text is looked at
            SELECT n.oid FROM pg_catalog.pg_namespace AS n WHERE n.nspname = ANY ($1::pg_catalog.text[])))
        AND (l.lanname NOT IN ('sql', 'plpgsql') OR p.prosrc ~* $2::pg_catalog.text
            OR (l.lanname = 'plpgsql' AND p.prosrc ~* '\mexecute\M'))
        AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_depend AS d
            WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'))
OR EXISTS (
    SELECT FROM pg_catalog.pg_depend AS d
    JOIN pg_catalog.pg_proc AS p ON p.oid = d.refobjid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'n'
        AND n.nspname = 'pgtrickle' AND p.proname ~ $2::pg_catalog.text)
"""
"""Functions that name a request function, or may put its name together; views, defaults and the like that depend on
one. 16384 is the first number of what is not PostgreSQL's own. Functions of extensions are left out: many use EXECUTE,
and none knows of requests."""


async def has_callers(session: SqlSession) -> bool:
    """Whether the session's database has any. Raises SqlError."""
    ((found,),) = await session.fetch(_FIND, _OURS, _REQUEST)
    return bool(found)


class Callers:
    """What is known about those of one database."""

    def __init__(self, pool: DatabasePool, present: bool):
        self._pool = pool
        self.present = present
        """Whether there are any. It stays so when they have gone: that costs time only."""
        self._looked = time.monotonic()

    @property
    def to_be_looked_for(self) -> bool:
        """Whether there may be some by now."""
        return not self.present and time.monotonic() - self._looked > LOOK_SECONDS

    async def look(self, found: Callable[[], None]) -> None:
        """Look for them; `found` is called where there are any. Raises SqlError."""
        self._looked = time.monotonic()
        async with self._pool.session() as session:
            self.present = await has_callers(session)
        if self.present:
            found()
