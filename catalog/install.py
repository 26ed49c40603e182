"""Installs and upgrades the catalog schemas of a database, from the scripts beside this module.

Each system has a folder; what every system needs in its own schema is in ``shared``. ``migrations`` holds numbered
scripts that run once each, in order, and are recorded in the system's table of versions. ``functions`` holds functions
and views, written so that they can be run again; they are, as soon as any of them differs from what the database has.
``superuser`` is run where the role has the right, and the result says what is missing where it has not.

The server's role runs what is in these schemas, so they must belong to it or to a superuser. What belongs to anybody
else could be changed by that role, also into something else: nothing is installed beside it, and nothing of it is run.

The state of a database is one line for each system, kept as the comment of its schema, so that looking costs one small
query. Another tells whether what was installed is still there (`catalog.integrity`); what is not is made again. A
system that is `movable` may be in a schema of the user's choice; its scripts say ``@extschema@``, as those of
PostgreSQL's own extensions do, and the comment is what it is found by.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path

import structlog
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from catalog.descriptions import routines
from catalog.integrity import Damage, clear_way, damage, names_made, note, shown
from catalog.ownership import UntrustedSchema, check_owners, is_trusted, revoke_create, untrusted
from catalog.pinned_settings import PINNED_PATH
from catalog.registration import HAS_MEMBERS, register
from catalog.session import ScriptSession, SqlError, SqlSession
from catalog.settings_function import settings_function
from catalog.systems import STREAM_TABLES, SYSTEMS, VERSION, System

log = structlog.get_logger(__name__)

OLDEST_SERVER = 150000
LOCK_SECONDS = 10.0
"""So long the tables of a catalog are tried for. Who waits behind can do nothing about a prepared transaction."""

GIVES_WAY_AFTER = 0.5
"""Seconds that an installation first waits for one lock before it lets go of all and begins again; then twice as many.

Workers and users read the tables and views whose triggers and texts it makes, in orders of their own. This is less than
`deadlock_timeout` by default, so that of two that wait for each other it is the installation that gives way.
"""


@dataclass(frozen=True, slots=True)
class InstallResult:
    """What `install` found or did.

    `warnings` say which rights are missing and what works less for want of them, and what could not be repaired.
    """

    state: str
    changed: bool
    warnings: tuple[str, ...] = ()
    repaired: tuple[Damage, ...] = ()
    """What had been dropped or changed since an earlier installation by the same scripts."""


@dataclass(frozen=True, slots=True)
class Script:
    """One file of SQL; its name without the suffix is its version."""

    version: str
    sql: str

    @property
    def description(self) -> str:
        """The first comment line of the file."""
        return self.sql.split("\n", 1)[0].lstrip("- ").strip()

    def placed(self, extschema: str) -> str:
        """The script for a schema, whose name is given as an identifier."""
        return self.sql.replace("@extschema@", extschema)


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of one system in this version of Headwater, in the order in which they run."""

    migrations: tuple[Script, ...]
    functions: tuple[Script, ...]
    superuser: tuple[Script, ...]
    title: str = STREAM_TABLES.title

    def last(self, *, superuser: bool) -> tuple[Script, ...]:
        """The scripts that run each time: functions, and what describes them to their users in the database."""
        made = self.functions + (self.superuser if superuser else ())
        described = [one.comment for one in routines(script.sql for script in made) if one.description]
        return (*made, Script("descriptions", ";\n".join(described))) if described else made

    def state(self, *, superuser: bool) -> str:
        """The line by which a database tells whether it is up to date: the last migration, and a digest of everything.

        A migration with a lower number may be new, too: it was made beside the last one.

        >>> s = Script("0001_a", "-- A."); Scripts((s,), (), ()).state(superuser=False)
        'Headwater stream tables, 0001_a, functions 9d74bae55d0affd6'
        """
        digest = hashlib.sha256(" ".join(script.version for script in self.migrations).encode())
        for script in self.functions + (self.superuser if superuser else ()):
            digest.update(script.sql.encode())
        return f"Headwater {self.title}, {self.migrations[-1].version}, functions {digest.hexdigest()[:16]}"


def _read(folder: Path) -> tuple[Script, ...]:
    paths = sorted(folder.glob("*.sql"))
    return tuple(Script(p.stem, p.read_text(encoding="utf-8").replace("@version@", VERSION)) for p in paths)


@cache
def bundled_scripts(system: System = STREAM_TABLES) -> Scripts:
    """The scripts of a system beside this module, with those that every system has in its own schema."""
    here = Path(__file__).parent
    folder, internal = here / system.schema, system.internal or system.schema
    shared = [
        replace(script, sql=script.sql.replace("@internal@", internal))
        for script in _read(here / "shared" / "functions")
    ]
    made = [Script("12_known_settings", settings_function())] if system is STREAM_TABLES else []
    functions = sorted((*shared, *made, *_read(folder / "functions")), key=lambda script: script.version)
    return Scripts(_read(folder / "migrations"), tuple(functions), _read(folder / "superuser"), system.title)


_FOUND = """
SELECT n.nspname::text FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles a ON a.oid = n.nspowner
WHERE pg_catalog.obj_description(n.oid, 'pg_namespace') LIKE $1::text
  AND (a.rolsuper OR a.rolname = current_user AND NOT $4::boolean
       OR n.nspowner = (SELECT nspowner FROM pg_catalog.pg_namespace WHERE nspname = $3::text))
ORDER BY n.nspname = $2::text DESC, n.oid LIMIT 1
"""
"""A user may write the same comment on a schema of his own, which must not be where the engine's scripts run."""


async def schema_of(session: SqlSession, system: System, *, of_client: bool = False) -> str | None:
    """The schema into which a system has been installed in the session's database, None if it has not been.

    The session is the engine's own unless it is `of_client`, whose own schemas do not count.
    """
    rows = await session.fetch(_FOUND, f"Headwater {system.title}, %", system.schema, STREAM_TABLES.schema, of_client)
    return str(rows[0][0]) if rows else None


def quoted(schema: str) -> str:
    """A schema's name as an identifier, as it stands in the scripts in the place of ``@extschema@``.

    >>> quoted("accum"), quoted("user")
    ('accum', '"user"')

    Raises SqlError for characters that PostgreSQL refuses there too, since scripts may have the name in a string.
    """
    if re.search(r"""["'$\\\0]""", schema):
        raise SqlError("42602", f'invalid character in the name of schema "{schema}"')
    return schema if schema in {system.schema for system in SYSTEMS} else f'"{schema}"'


async def install(
    session: ScriptSession,
    scripts: Scripts | None = None,
    *,
    system: System = STREAM_TABLES,
    schema: str | None = None,
    anew: bool = False,
) -> InstallResult:
    """Bring a system's catalog in the session's database up to date. The session must be outside a transaction.

    A movable system is upgraded where it is; with `schema` it is made there, and if it is somewhere else without
    being in use, no longer there. What was dropped or changed since is made again. Of stream tables that are
    `uninstalled` only the part is looked after that the server itself and the other systems need, unless they shall be
    made `anew`. Costs a few small queries where there is nothing to do. Several servers may do this at once; one of
    them does the work.
    Raises SqlError: 42501 naming the right that is missing, 0A000 for a server that is too old, 42710 where the schema
    belongs to something else, and whatever PostgreSQL says to a script (nothing is left behind then). It is an
    UntrustedSchema where the schema, or something in it, belongs to another role.
    """
    scripts = scripts or bundled_scripts(system)
    place = schema or await _place(session, system)
    (present,), superuser, role = await _present_states(session, [place])
    gone = await _is_gone(session, system)
    registered = {} if gone and not anew else {system: place}
    warnings = _without_superuser(registered, role, superuser=superuser)
    found = None if gone and anew else await _examined(session, scripts, system, place)
    damaged = found or []
    repairable = _repairable(damaged)
    warnings += _lost(system, damaged)
    if found is not None and not repairable:
        await register(session, registered, superuser=superuser)
        return InstallResult(present, changed=False, warnings=warnings + await _missing(session, system))
    try:
        changed = await _install_and_commit(session, scripts, system, schema, anew=anew)
    except SqlError as error:
        if not damaged or _ends_all(error):
            raise
        # What is left of it works as well as before.
        warnings += (f"{system.title} are damaged and could not be repaired ({error.message}): {shown(damaged)}",)
        return InstallResult(present, changed=False, warnings=warnings)
    await register(session, registered, superuser=superuser)
    warnings += await _missing(session, system)
    repaired = repairable if changed else ()
    return InstallResult(scripts.state(superuser=superuser), changed=changed, warnings=warnings, repaired=repaired)


def _ends_all(error: SqlError) -> bool:
    """Whether what is there cannot be used, either."""
    return error.is_of_connection or isinstance(error, UntrustedSchema)


_NOTES_OF_UNINSTALLED = f"""
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
    WHERE n.nspname = '{STREAM_TABLES.schema}' AND c.relname = 'pgt_uninstalled' AND c.relkind = 'r'
      AND {is_trusted("n.nspowner")} AND {is_trusted("c.relowner")})
"""
"""Of a user's own schema nothing is read."""

_UNINSTALLED = "SELECT u.extension FROM pgtrickle.pgt_uninstalled u"

_DROP_INTERFACE = "SELECT pgtrickle._drop_interface(false)"

_FORGET_UNINSTALLED = """
DO $$ BEGIN
    IF to_regclass('pgtrickle.pgt_uninstalled') IS NOT NULL THEN
        DELETE FROM pgtrickle.pgt_uninstalled WHERE extension = '{}';
    END IF;
END $$
"""


async def uninstalled(session: SqlSession) -> frozenset[System]:
    """The systems that somebody has taken out of the database: a server does not install them by itself.

    Raises SqlError.
    """
    ((noted,),) = await session.fetch(_NOTES_OF_UNINSTALLED)
    gone = {str(extension) for (extension,) in await session.fetch(_UNINSTALLED)} if noted else set()
    return frozenset(system for system in SYSTEMS if system.extension in gone)


IS_UNINSTALLED = (
    "(pg_catalog.to_regclass('pgtrickle.pgt_uninstalled') IS NOT NULL"
    " AND pg_catalog.to_regprocedure('pgtrickle.version()') IS NULL)"
)
"""An expression: whether stream tables are uninstalled, where they are installed. Reads PostgreSQL's catalogs alone."""


async def _is_gone(session: SqlSession, system: System) -> bool:
    """Whether stream tables are uninstalled, of which a part stays. Of the others nothing does."""
    return system is STREAM_TABLES and system in await uninstalled(session)


def how_to_return(gone: Iterable[System]) -> str | None:
    """What new sessions are told of systems that were taken out of their database, None where none was.

    >>> how_to_return([STREAM_TABLES])
    'stream tables have been uninstalled from this database: CREATE EXTENSION pg_trickle makes them anew'
    """
    said = (
        f"{system.title} have been uninstalled from this database: CREATE EXTENSION {system.extension} makes them anew"
        for system in SYSTEMS
        if system in gone
    )
    return "; ".join(said) or None


async def in_order(session: SqlSession, gone: frozenset[System] = frozenset()) -> dict[System, InstallResult]:
    """What `install` would find of each system, if there is nothing to do for any of them; otherwise nothing.

    `gone` are those that are `uninstalled`: nothing is said of them, but of stream tables, of which the part is looked
    at that the others need. Costs as many queries for all of them as `install` takes for one. Raises SqlError.
    """
    places = {system: await _place(session, system) for system in SYSTEMS if system not in gone - {STREAM_TABLES}}
    states, superuser, role = await _present_states(session, places.values())
    present = dict(zip(places, states, strict=True))
    if not all(_is_current(present[system], bundled_scripts(system), superuser) for system in places):
        return {}
    if await untrusted(session, places) or await _damage(session, places):
        return {}
    registered = {system: place for system, place in places.items() if system not in gone}
    await register(session, registered, superuser=superuser)
    warnings = {
        system: _without_superuser({system} - gone, role, superuser=superuser) + await _missing(session, system)
        for system in places
    }
    return {system: InstallResult(present[system], changed=False, warnings=warnings[system]) for system in places}


async def examine(session: SqlSession, system: System = STREAM_TABLES) -> list[Damage] | None:
    """What `install` would repair of a system, and tables that it could not; None where it would do more, or less.

    That is where the system is not installed, by another version, or by somebody who is not trusted. Raises SqlError.
    """
    return await _examined(session, bundled_scripts(system), system, await _place(session, system))


async def _examined(session: SqlSession, scripts: Scripts, system: System, place: str) -> list[Damage] | None:
    (present,), superuser, _ = await _present_states(session, [place])
    if not _is_current(present, scripts, superuser) or await untrusted(session, {system: place}):
        return None
    return await _damage(session, {system: place}, scripts)


def _repairable(damaged: Iterable[Damage]) -> tuple[Damage, ...]:
    """What running the scripts again makes of it."""
    return tuple(one for one in damaged if one.can_be_repaired)


class Due(StrEnum):
    """What `install` would do for a system in a database that it may be installed in."""

    NOTHING = "nothing"
    UPGRADE = "upgrade"
    INSTALLATION = "installation"


async def due(session: SqlSession, system: System) -> Due:
    """What `install` would do for a system, by the rules of the installation; reads only.

    Raises SqlError where it would be refused: for want of a right, over an extension or a schema of somebody else's, or
    over the catalog of a newer version.
    """
    scripts = bundled_scripts(system)
    place = await _place(session, system)
    (present,), superuser, _ = await _present_states(session, [place])
    current = _is_current(present, scripts, superuser)
    if not current:
        await _check_rights(session, system, place)
    await check_owners(session, system, place)
    applied = await _applied(session, system, place)
    _check_not_newer(applied, scripts, system)
    if current:
        return Due.NOTHING
    return Due.UPGRADE if applied else Due.INSTALLATION


@lru_cache(16)
def _names(scripts: Scripts, system: System, place: str) -> tuple[str, ...]:
    """The kinds and names of what the scripts make and can make again, and of the tables, in a schema.

    Everything else that migrations make may be something else by now.
    """
    again = names_made(script.sql for script in scripts.functions + scripts.superuser)
    once = names_made(script.sql for script in scripts.migrations)
    generated = [f"generated:{name}" for name in system.generated]
    tables = [name for name in once if name.startswith("table:")]
    return tuple(name.replace("@extschema@", place) for name in again + generated + tables)


async def _damage(session: SqlSession, places: Mapping[System, str], scripts: Scripts | None = None) -> list[Damage]:
    """What is not as the scripts made it, of systems in these schemas; `scripts` are those of a single one."""
    return await damage(
        session,
        [f"{quoted(place)}.{system.versions}" for system, place in places.items()],
        [
            name
            for system, place in places.items()
            for name in _names(scripts or bundled_scripts(system), system, place)
        ],
        [schema for system, place in places.items() for schema in (place, *system.beside)],
    )


def _without_superuser(systems: Iterable[System], role: str, *, superuser: bool) -> tuple[str, ...]:
    """What works less where the role that installs is no superuser."""
    if superuser:
        return ()
    return tuple(system.without_superuser.format(role=role) for system in systems if system.without_superuser)


def _lost(system: System, damaged: list[Damage]) -> tuple[str, ...]:
    lost = [one for one in damaged if not one.can_be_repaired]
    return (f"{system.title} have lost what cannot be made again: {shown(lost)}",) if lost else ()


async def _install_and_commit(
    session: ScriptSession, scripts: Scripts, system: System, schema: str | None, *, anew: bool
) -> bool:
    """Install in transactions of its own, the last of which has had its locks soon enough."""
    changed = False
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(_gave_way),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            stop=stop_after_delay(LOCK_SECONDS),
            reraise=True,
        ):
            with attempt:
                patience = GIVES_WAY_AFTER * 2 ** (attempt.retry_state.attempt_number - 1)
                changed = await _attempt(session, scripts, system, schema, anew=anew, patience=patience)
    except SqlError as error:
        if not _gave_way(error):
            raise
        raise SqlError(
            "55P03",
            f"{system.title} cannot be installed or upgraded while a transaction uses them: {error.message}",
            hint="It is tried again when somebody connects. See pg_prepared_xacts, and xact_start in pg_stat_activity.",
        ) from None
    return changed


def _gave_way(error: BaseException) -> bool:
    return isinstance(error, SqlError) and error.sqlstate in {"55P03", "40P01"}


async def _attempt(
    session: ScriptSession, scripts: Scripts, system: System, schema: str | None, *, anew: bool, patience: float
) -> bool:
    await session.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        changed = await _install(session, scripts, system, schema, anew=anew, patience=patience)
        await session.execute("COMMIT")
    except BaseException:
        await session.execute("ROLLBACK")
        raise
    return changed


async def _place(session: SqlSession, system: System) -> str:
    return (await schema_of(session, system) if system.movable else None) or system.schema


async def _missing(session: SqlSession, system: System) -> tuple[str, ...]:
    rows = await session.fetch(system.missing) if system.missing else []
    return tuple(str(warning) for (warnings,) in rows for warning in warnings or ())


def _is_current(present: str, scripts: Scripts, superuser: bool) -> bool:
    """Scripts installed by a superuser are good enough for a server that is none."""
    return present in {scripts.state(superuser=superuser), scripts.state(superuser=True)}


async def _present_states(session: SqlSession, schemas: Iterable[str]) -> tuple[list[str], bool, str]:
    """The comments of schemas, and whether the session's role is a superuser, and its name."""
    rows = await session.fetch(
        "SELECT coalesce(obj_description(to_regnamespace(s.name)::oid, 'pg_namespace'), ''), r.rolsuper, "
        "r.rolname::text FROM unnest($1::text[]) WITH ORDINALITY AS s(name, number), pg_catalog.pg_roles r "
        "WHERE r.rolname = current_user ORDER BY s.number",
        [quoted(schema) for schema in schemas],
    )
    return [str(row[0]) for row in rows], bool(rows[0][1]), str(rows[0][2])


async def _install(
    session: ScriptSession, scripts: Scripts, system: System, schema: str | None, *, anew: bool, patience: float
) -> bool:
    """Install inside the session's READ COMMITTED transaction. Returns whether there was anything to do."""
    await session.execute("SET LOCAL client_min_messages = warning")
    await session.execute("SET LOCAL check_function_bodies = off")
    await session.execute(f"SET LOCAL search_path = {PINNED_PATH}")
    await session.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    await _lock(session, system)
    await session.execute(f"SET LOCAL lock_timeout = '{patience}s'")
    place = schema or await _place(session, system)
    await _check_rights(session, system, place)
    await check_owners(session, system, place)
    (present,), superuser, _ = await _present_states(session, [place])
    gone = await _is_gone(session, system)
    repairing = _is_current(present, scripts, superuser) and not (anew and gone)
    damaged = await _damage(session, {system: place}, scripts) if repairing else []
    if repairing and not _repairable(damaged):
        return False  # another server was faster
    await clear_way(session, damaged)
    if schema is not None:
        await _leave(session, system, schema)
    extschema = quoted(place)
    versions = f"{extschema}.{system.versions}"
    await _migrate(session, scripts, system, place)
    for script in scripts.last(superuser=superuser):
        await session.run_script(script.placed(extschema))
    state = scripts.state(superuser=superuser)
    if system.exclusive:
        await revoke_create(session, [place, *system.beside])
    await check_owners(session, system, place)  # of what the scripts found to be there already
    await _record(session, versions, "functions", state)
    await session.execute(_DROP_INTERFACE if gone and not anew else _FORGET_UNINSTALLED.format(system.extension))
    await note(session, versions, list(_names(scripts, system, place)), [place, *system.beside])
    await session.execute(f"COMMENT ON SCHEMA {extschema} IS '{state}'")
    log.info("catalog repaired" if repairing else "catalog installed", state=state, schema=place)
    return True


async def _migrate(session: ScriptSession, scripts: Scripts, system: System, place: str) -> None:
    """Run the migrations that have not been run in this schema, and record them.

    Raises SqlError: 42710 where the schema is something else, 0A000 where a newer version has been there.
    """
    extschema = quoted(place)
    versions = f"{extschema}.{system.versions}"
    applied = await _applied(session, system, place)
    _check_not_newer(applied, scripts, system)
    for script in scripts.migrations:
        if script.version not in applied:
            await session.run_script(script.placed(extschema))
            await _record(session, versions, script.version, script.description)


async def _applied(session: SqlSession, system: System, place: str) -> set[str]:
    """The versions that are recorded in a schema; none where nothing is installed. Raises SqlError 42710."""
    extschema = quoted(place)
    versions = f"{extschema}.{system.versions}"
    ((installed, occupied),) = await session.fetch(
        "SELECT to_regclass($1::text) IS NOT NULL, "
        "EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($2::text)) "
        "OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = to_regnamespace($2::text))",
        versions,
        extschema,
    )
    if installed:
        return {str(version) for (version,) in await session.fetch(f"SELECT version FROM {versions}")}
    if occupied and place == system.schema:
        raise SqlError(
            "42710",
            f"schema {system.schema} exists and was not made by Headwater",
            hint="Drop or rename it, or use another database.",
        )
    return set()


_INSTALLING = """
SELECT pg_try_advisory_xact_lock($1::bigint), ARRAY(
    SELECT r.rolsuper OR r.rolname = current_user
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_roles r ON r.oid = a.usesysid
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.pid <> pg_backend_pid()
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND (l.classid::bigint << 32 | l.objid::bigint) = $1::bigint)
"""
"""Whether the lock could be taken; and, of each session that holds it, whether its role could be one that installs."""


async def _lock(session: SqlSession, system: System) -> None:
    """Wait until no other server installs. Any role can take an advisory lock: who cannot install does not count."""
    while True:
        ((taken, holders),) = await session.fetch(_INSTALLING, system.advisory_lock)
        if taken:
            return
        if holders and not any(holders):
            log.warning("lock of the installation is held by another role and ignored", system=system.title)
            return
        await asyncio.sleep(0.1)


async def _leave(session: SqlSession, system: System, schema: str) -> None:
    """Remove a system from the schema where it is, to be made in another one. Raises SqlError if it is in use."""
    present = await schema_of(session, system)
    if present is None or present == schema:
        return
    old = quoted(present)
    query = system.in_use.replace("@extschema@", old) if system.in_use else "SELECT true"
    foreign = (
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relowner <> n.nspowner) "
        "OR EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid AND p.proowner <> n.nspowner) "
        "FROM pg_catalog.pg_namespace n WHERE n.nspname = $1::text"
    )
    if (await session.fetch(query))[0][0] or (await session.fetch(foreign, present))[0][0]:
        raise SqlError(
            "42710",
            f'extension "{system.extension}" is installed in schema "{present}", which is in use',
            hint=f"DROP EXTENSION {system.extension} first, if what is there may be lost.",
        )
    await session.execute(f"DROP SCHEMA {', '.join((old, *system.beside))} CASCADE")


def _check_not_newer(applied: set[str], scripts: Scripts, system: System) -> None:
    unknown = applied - {script.version for script in scripts.migrations} - {"functions"}
    if unknown:
        raise SqlError(
            "0A000",
            f"catalog of {system.title} was installed by a newer version of Headwater (script {max(unknown)})",
            hint="Upgrade this server.",
        )


async def _record(session: SqlSession, versions: str, version: str, description: str) -> None:
    await session.fetch(
        f"INSERT INTO {versions} (version, description) VALUES ($1::text, $2::text) "
        "ON CONFLICT (version) DO UPDATE SET description = excluded.description, applied_at = now() RETURNING version",
        version,
        description,
    )


async def _check_rights(session: SqlSession, system: System, schema: str) -> None:
    """Raise SqlError unless the role may do all that the scripts need, in a schema that nobody else rules."""
    rows = await session.fetch(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'), "
        "has_database_privilege(current_database(), 'CREATE'), current_user::text, current_database()::text, "
        f"EXISTS (SELECT FROM pg_extension e WHERE e.extname = $1::text AND {HAS_MEMBERS}), "
        "coalesce((SELECT NOT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace n"
        " WHERE n.nspname = $2::text), false), "
        "pg_is_in_recovery(), "
        "(SELECT min(f) FROM unnest($3::text[]) AS f WHERE NOT has_function_privilege(f, 'EXECUTE'))",
        system.extension,
        schema,
        list(system.functions_needed),
    )
    number, version, may_create, role, database, extension, foreign, recovery, function = rows[0]
    if int(number or 0) < OLDEST_SERVER:
        raise SqlError("0A000", f"PostgreSQL {version} is too old", hint="Headwater needs PostgreSQL 15 or newer.")
    if recovery:
        raise SqlError("25006", f"cannot install the catalog of {system.title} on a hot standby")
    if extension:
        raise SqlError(
            "42710",
            f"extension {system.extension} is installed in this database",
            hint="Drop it, or use another database.",
        )
    if foreign:
        raise SqlError(
            "42501",
            f'schema {schema} exists and belongs to a role whose rights role "{role}" has not',
            hint="Serve with the role that installed it.",
        )
    if not may_create:
        raise SqlError(
            "42501",
            f'permission denied for database {database}: role "{role}" lacks CREATE',
            hint=f'GRANT CREATE ON DATABASE "{database}" TO "{role}"; queries work without, {system.title} do not.',
        )
    if function:
        raise SqlError(
            "42501",
            f'permission denied for function {str(function).removesuffix("()")}: role "{role}" lacks EXECUTE',
            hint=f'GRANT EXECUTE ON FUNCTION {function} TO "{role}";',
        )
