"""CREATE, ALTER and DROP EXTENSION of what the server installs.

The server installs every system when a database is first used, so that creating finds it there, unless it has been
dropped. Installing needs the engine's rights and is the engine's own transaction; dropping needs the rights of whoever
asks, and is a part of the asking transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from catalog.install import quoted, schema_of
from catalog.session import RequestSession, SqlError
from catalog.systems import STREAM_TABLES, SYSTEMS, System

Installer = Callable[[System, str | None], Awaitable[None]]
"""Installs or upgrades a system in the session's database, in a certain schema if one is named. Raises SqlError."""


async def carry_out_extension(
    session: RequestSession, arguments: dict[str, object], installer: Installer | None
) -> None:
    """Carry out one statement. Raises SqlError with the SQLSTATE that PostgreSQL has for it."""
    systems = {system.extension: system for system in SYSTEMS}
    system = systems.get(str(arguments.get("name")))
    action = arguments.get("action")
    if system is None or installer is None or action not in ("create", "alter", "drop"):
        raise SqlError("22023", "malformed extension request")
    schema = (await schema_of(session, system, of_client=True) if system.movable else None) or system.schema
    rows = await session.fetch(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text), "
        "pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')",
        schema,
        system.versions,
    )
    present, may_create = rows[0]
    if not present and not may_create and action == "create":
        raise SqlError(
            "42501",
            f'permission denied to create extension "{system.extension}"',
            hint="Must have CREATE privilege on current database to create this extension.",
        )
    if action == "create":
        await _create(session, system, schema if present else None, arguments.get("schema"), installer)
    elif action == "drop":
        await _drop(session, system, schema if present else None, arguments)
    elif present:
        await installer(system, None)
    else:
        raise _missing(system)
    session.tag = f"{action.upper()} EXTENSION"


async def _create(
    session: RequestSession, system: System, present: str | None, asked: object, installer: Installer
) -> None:
    """Install a system that is `present` in a schema or nowhere.

    The server installs a movable one at first use, so that another schema asked for means moving it there.
    """
    schema = None if asked is None else str(asked)
    if schema is not None and schema != system.schema and not system.movable:
        raise SqlError("0A000", f'extension "{system.extension}" must be installed in schema "{system.schema}"')
    if present is None:
        await installer(system, schema)
    elif schema in (None, present):
        await _notice(session, f'extension "{system.extension}" already exists, skipping')
    else:
        rows = await session.fetch(
            "SELECT pg_catalog.pg_has_role(n.nspowner, 'USAGE') FROM pg_catalog.pg_namespace n"
            " WHERE n.nspname = $1::pg_catalog.text",
            present,
        )
        if not rows[0][0]:
            raise SqlError("42501", f"must be owner of extension {system.extension}")
        await installer(system, schema)


async def _drop(session: RequestSession, system: System, present: str | None, arguments: dict[str, object]) -> None:
    if present is None:
        if not arguments.get("guarded"):
            raise _missing(system)
        await _notice(session, f'extension "{system.extension}" does not exist, skipping')
        return
    if system is STREAM_TABLES:
        raise SqlError(
            "0A000",
            f'extension "{system.extension}" cannot be dropped while the server is running',
            hint=f'Drop the stream tables; stop the server, then DROP SCHEMA "{system.schema}" CASCADE.',
        )
    if not arguments.get("cascade"):
        schemas = (present, *system.beside)
        parameters = ", ".join(f"${number + 1}::pg_catalog.text" for number in range(len(schemas)))
        rows = await session.fetch(f"SELECT pgtrickle._dependents({parameters})", *schemas)
        dependents = [str(name) for name in rows[0][0]]
        if dependents:
            raise SqlError(
                "2BP01",
                f"cannot drop extension {system.extension} because other objects depend on it",
                detail="\n".join(f"{name} depends on extension {system.extension}" for name in dependents),
                hint="Use DROP ... CASCADE to drop the dependent objects too.",
            )
    if system.others:
        rows = await session.fetch(system.others.replace("@extschema@", quoted(present)))
        others = [str(name) for name in rows[0][0]]
        if others:
            raise SqlError(
                "2BP01",
                f'cannot drop extension {system.extension} because schema "{present}" has other objects',
                detail="\n".join(others),
                hint="Drop them, or move them to another schema.",
            )
    level = "SELECT pg_catalog.current_setting('client_min_messages')"
    change = "SELECT pg_catalog.set_config('client_min_messages', $1::pg_catalog.text, true)"
    before = str((await session.fetch(level))[0][0])
    await session.fetch(change, "warning")
    await session.execute(f"DROP SCHEMA {', '.join((quoted(present), *system.beside))} CASCADE")
    await session.fetch(change, before)


def _missing(system: System) -> SqlError:
    return SqlError("42704", f'extension "{system.extension}" does not exist')


async def _notice(session: RequestSession, text: str) -> None:
    await session.fetch("SELECT pgtrickle._notice('NOTICE', $1::pg_catalog.text, NULL)::pg_catalog.text", text)
