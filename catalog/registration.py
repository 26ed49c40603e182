"""Entries in `pg_extension` for what is installed, where PostgreSQL has the files for them.

So `pg_extension`, `pg_available_extensions` and psql show what there is, and pg_dump writes ``CREATE EXTENSION``. The
entries have no members: what is installed is dumped and dropped as any other table or function is. An entry goes with
the schema of its system, on which it depends.

A PostgreSQL has the files if it is the embedded one (`server.postgres.extension_files`). The real extension of the
name may be there in their place, and is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from catalog.session import SqlError, SqlSession
from catalog.systems import MADE_BY, VERSION, System

log = structlog.get_logger(__name__)

HAS_MEMBERS = """EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.refobjid = e.oid
    AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e')"""
"""Of an extension `e`: whether it is a real one."""

_ENTRY = """
SELECT e.extname::text, e.extversion, n.nspname::text
FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = ANY ($1::text[])
"""

_AVAILABLE = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_available_extension_versions() v
    WHERE v.name = $1::text AND v.version = $2::text AND pg_catalog.starts_with(v.comment, $3::text))
"""


async def register(session: SqlSession, places: Mapping[System, str], *, superuser: bool) -> None:
    """See to it that systems have their entries; `places` are the schemas where they are installed.

    Only a superuser's session can do that. It is outside a transaction. Costs one small query where there is nothing to
    do, and another one that reads PostgreSQL's control files where there are none of ours. What goes wrong is logged:
    nothing but what is shown depends on it. Raises SqlError for a connection that is lost.
    """
    if not superuser:
        return
    rows = await session.fetch(_ENTRY, [system.extension for system in places])
    entries = {str(name): (str(version), str(schema)) for name, version, schema in rows}
    for system, place in places.items():
        try:
            await _enter(session, system, place, entries.get(system.extension))
        except SqlError as error:
            if error.is_of_connection:
                raise
            log.warning("extension not registered", extension=system.extension, error=error.message)


async def _enter(session: SqlSession, system: System, place: str, entry: tuple[str, str] | None) -> None:
    """Make, or bring up to date, a system's entry; `entry` is the version and the schema that it has, if any."""
    if entry == (VERSION, place):
        return
    ((available,),) = await session.fetch(_AVAILABLE, system.extension, VERSION, MADE_BY)
    if not available:
        return
    if entry is not None and entry[1] == place:
        await session.execute(f"ALTER EXTENSION {system.extension} UPDATE TO '{VERSION}'")
    else:
        # A schema whose name has a quote in it is none of ours.
        await session.execute(
            f"CREATE EXTENSION IF NOT EXISTS {system.extension} SCHEMA \"{place}\" VERSION '{VERSION}'"
        )
