"""CREATE, ALTER and DROP EXTENSION of what the server installs.

The server installs every system when a database is first used, so that creating finds it there, unless it has been
dropped. Installing needs the engine's rights and is the engine's own transaction, before which is committed what comes
before the statement in its query string; dropping needs the rights of whoever
asks, and is a part of the asking transaction. What has been dropped is not installed again by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from catalog.install import quoted, schema_of
from catalog.registration import HAS_MEMBERS
from catalog.session import RequestSession, Row, SqlError
from catalog.systems import STREAM_TABLES, SYSTEMS, VERSION, System
from engine.session.transactions import local_setting

Installer = Callable[[System, str | None], Awaitable[bool]]
"""Installs or upgrades a system in the session's database, in a certain schema if one is named.

Gives whether there was anything to do. Raises SqlError.
"""

TAGS = {
    "create": "CREATE EXTENSION",
    "update": "ALTER EXTENSION",
    "move": "ALTER EXTENSION",
    "members": "ALTER EXTENSION",
    "drop": "DROP EXTENSION",
    "others": "DROP EXTENSION",
}
"""What completes each action."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A statement, and what there is of the system that it names."""

    system: System
    present: str | None
    """The schema of the system, None where it is not installed."""
    is_owner: bool
    may_create: bool
    guarded: bool
    cascade: bool
    schema: str | None
    version: str | None


async def carry_out_extension(
    session: RequestSession, arguments: dict[str, object], installer: Installer | None
) -> None:
    """Carry out one statement. Raises SqlError with the SQLSTATE that PostgreSQL has for it."""
    system = {system.extension: system for system in SYSTEMS}.get(str(arguments.get("name")))
    action = str(arguments.get("action"))
    if system is None or installer is None or action not in TAGS:
        raise SqlError("22023", "malformed extension request")
    asked = await _asked(session, system, arguments)
    if action == "create":
        await _create(session, asked, installer)
    elif action == "drop":
        await _drop(session, asked)
    elif action == "others":
        raise SqlError(
            "0A000",
            f'cannot drop extension "{system.extension}" together with extensions that Headwater does not install',
            hint="Drop it in a statement of its own.",
        )
    else:
        await _alter(session, action, asked, installer)
    session.tag = TAGS[action]


async def _asked(session: RequestSession, system: System, arguments: dict[str, object]) -> _Asked:
    schema = (await schema_of(session, system, of_client=True) if system.movable else None) or system.schema
    ((present, owner, may_create),) = await session.fetch(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text)"
        " AND NOT EXISTS (SELECT FROM pgtrickle.pgt_uninstalled u"
        " WHERE u.extension OPERATOR(pg_catalog.=) $3::pg_catalog.text), "
        "coalesce((SELECT pg_catalog.pg_has_role(n.nspowner, 'USAGE') FROM pg_catalog.pg_namespace n"
        " WHERE n.nspname = $1::pg_catalog.text), false), "
        "pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')",
        schema,
        system.versions,
        system.extension,
    )
    names = [None if arguments.get(key) is None else str(arguments[key]) for key in ("schema", "version")]
    return _Asked(
        system,
        schema if present else None,
        bool(owner),
        bool(may_create),
        bool(arguments.get("guarded")),
        bool(arguments.get("cascade")),
        *names,
    )


async def _create(session: RequestSession, asked: _Asked, installer: Installer) -> None:
    """Install a system, or find it there.

    The server installs it at first use, so that finding it is no error, and what a CREATE EXTENSION before that would
    have refused is refused with IF NOT EXISTS as well. Another schema asked for means moving a movable one there.
    """
    system, schema = asked.system, asked.schema
    if asked.present is None and not asked.may_create:
        raise SqlError(
            "42501",
            f'permission denied to create extension "{system.extension}"',
            hint="Must have CREATE privilege on current database to create this extension.",
        )
    _check_version_name(asked.version)
    if asked.version not in (None, VERSION):
        raise SqlError(
            "22023",
            f'extension "{system.extension}" has no installation script nor update path for version "{asked.version}"',
            hint=f'Headwater {VERSION} installs version "{VERSION}".',
        )
    if schema is not None and schema != system.schema and not system.movable:
        raise SqlError("0A000", f'extension "{system.extension}" must be installed in schema "{system.schema}"')
    if asked.present is not None and schema in (None, asked.present):
        await _notice(session, f'extension "{system.extension}" already exists, skipping')
        return
    if asked.present is not None:
        _check_owner(asked)
    # Another connection makes it, which sees nothing of this transaction, and waits for its locks.
    await session.commit_before()
    await installer(system, schema)


async def _alter(session: RequestSession, action: str, asked: _Asked, installer: Installer) -> None:
    """Look after a system that is installed: there is one version of it, one schema, and no members."""
    name = asked.system.extension
    if asked.present is None:
        raise _missing(asked.system)
    _check_owner(asked)
    if action == "members":
        detail = "What Headwater installs has no members."
        raise SqlError("0A000", f'cannot change the members of extension "{name}"', detail=detail)
    if action == "move":
        await _check_schema(session, asked)
        return
    _check_version_name(asked.version)
    if asked.version not in (None, VERSION):
        raise SqlError(
            "22023",
            f'extension "{name}" has no update path from version "{VERSION}" to version "{asked.version}"',
            hint="Start another version of Headwater, which brings up to date what is installed.",
        )
    await session.commit_before()
    if not await installer(asked.system, None):
        await _notice(session, f'version "{VERSION}" of extension "{name}" is already installed')


async def _check_schema(session: RequestSession, asked: _Asked) -> None:
    """Raise SqlError unless a system is already in the schema where SET SCHEMA would have it."""
    rows = await session.fetch(
        "SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = $1::pg_catalog.text", asked.schema
    )
    if not rows:
        raise SqlError("3F000", f'schema "{asked.schema}" does not exist')
    if asked.schema != asked.present:
        raise SqlError(
            "0A000",
            f'extension "{asked.system.extension}" does not support SET SCHEMA',
            hint="CREATE EXTENSION ... SCHEMA makes it elsewhere as long as nothing is in it."
            if asked.system.movable
            else None,
        )


def _check_owner(asked: _Asked) -> None:
    if not asked.is_owner:
        raise SqlError("42501", f"must be owner of extension {asked.system.extension}")


def _check_version_name(version: str | None) -> None:
    """Raise SqlError 22023 for what PostgreSQL has no version named, either (`check_valid_version_name`)."""
    if version is None:
        return
    detail = None
    if not version:
        detail = "Version names must not be empty."
    elif "--" in version:
        detail = 'Version names must not contain "--".'
    elif version.startswith("-") or version.endswith("-"):
        detail = 'Version names must not begin or end with "-".'
    elif "/" in version:
        detail = "Version names must not contain directory separator characters."
    if detail is not None:
        raise SqlError("22023", f'invalid extension version name: "{version}"', detail=detail)


_ENTRY = f"SELECT FROM pg_catalog.pg_extension e WHERE e.extname = $1::pg_catalog.text AND NOT {HAS_MEMBERS}"


async def _drop(session: RequestSession, asked: _Asked) -> None:
    system, present = asked.system, asked.present
    if present is None:
        if await session.fetch(_ENTRY, system.extension):  # somebody has dropped what it stood for
            await session.execute(f'DROP EXTENSION "{system.extension}"')
            return
        if not asked.guarded:
            raise _missing(system)
        await _notice(session, f'extension "{system.extension}" does not exist, skipping')
        return
    _check_owner(asked)
    async with local_setting(session, "client_min_messages", "warning"):
        if system is STREAM_TABLES:
            await _drop_stream_tables(session, asked)
        else:
            await _drop_schemas(session, asked, present)
    await session.fetch(_NOTE_UNINSTALLED, system.extension)


_NOTE_UNINSTALLED = """
INSERT INTO pgtrickle.pgt_uninstalled (extension) VALUES ($1::pg_catalog.text)
ON CONFLICT (extension) DO NOTHING RETURNING extension
"""


async def _drop_schemas(session: RequestSession, asked: _Asked, present: str) -> None:
    """Drop the schemas of a system. Raises SqlError 2BP01."""
    system = asked.system
    if not asked.cascade:
        schemas = (present, *system.beside)
        parameters = ", ".join(f"${number + 1}::pg_catalog.text" for number in range(len(schemas)))
        _refuse_over(system, await session.fetch(f"SELECT pgtrickle._dependents({parameters})", *schemas))
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
    await session.execute(f"DROP SCHEMA {', '.join((quoted(present), *system.beside))} CASCADE")


async def _drop_stream_tables(session: RequestSession, asked: _Asked) -> None:
    """Drop all of pg_trickle but for what the server itself, queues and registers need. Raises SqlError 2BP01, 25001.

    Whoever refreshes, makes or changes anything is waited for, and sees it dropped afterwards: what has been made
    must be seen here.
    """
    ((isolation,),) = await session.fetch("SELECT pg_catalog.current_setting('transaction_isolation')")
    if isolation != "read committed":
        raise SqlError(
            "25001",
            f"DROP EXTENSION {asked.system.extension} cannot run in a transaction above READ COMMITTED",
            detail="Its snapshot may lack stream tables that others have made since.",
            hint="BEGIN ISOLATION LEVEL READ COMMITTED, or SET default_transaction_isolation = 'read committed'.",
        )
    await session.fetch("SELECT pgtrickle._lock_contents()::pg_catalog.text")
    if not asked.cascade:
        _refuse_over(asked.system, await session.fetch("SELECT pgtrickle._contents()"))
    await session.fetch("SELECT pgtrickle._drop_contents()::pg_catalog.text")
    await session.fetch("SELECT pgtrickle._drop_interface($1::pg_catalog.bool)::pg_catalog.text", asked.cascade)
    if await session.fetch(_ENTRY, asked.system.extension):
        await session.execute(f'DROP EXTENSION "{asked.system.extension}"')


def _refuse_over(system: System, rows: list[Row]) -> None:
    """Raise SqlError 2BP01 if there are dependents: one row, an array of descriptions."""
    if dependents := [str(name) for name in rows[0][0]]:
        raise SqlError(
            "2BP01",
            f"cannot drop extension {system.extension} because other objects depend on it",
            detail="\n".join(f"{name} depends on extension {system.extension}" for name in dependents),
            hint="Use DROP ... CASCADE to drop the dependent objects too.",
        )


def _missing(system: System) -> SqlError:
    return SqlError("42704", f'extension "{system.extension}" does not exist')


async def _notice(session: RequestSession, text: str) -> None:
    await session.fetch("SELECT pgtrickle._notice('NOTICE', $1::pg_catalog.text, NULL)::pg_catalog.text", text)
