"""Installs and upgrades the catalog schemas of a database, from the scripts beside this module.

``pgtrickle/migrations`` holds numbered scripts that run once each, in order, and are recorded in
``pgtrickle.pgt_schema_version``. ``pgtrickle/functions`` holds functions and views, written so that they can be run
again; they are, as soon as any of them differs from what the database has. ``pgtrickle/superuser`` is run where the
role has the right, and the result says what is missing where it has not.

The state of a database is one line, kept as the comment of the schema, so that looking costs one small query.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import structlog

from catalog.session import SqlError, SqlSession

log = structlog.get_logger(__name__)

SCRIPTS = Path(__file__).parent / "pgtrickle"
ADVISORY_LOCK = 0x7067_7472_6963_6B6C  # "pgtrickl"
OLDEST_SERVER = 150000

WITHOUT_EVENT_TRIGGERS = (
    "event triggers of pgtrickle are not installed, since role {role} is no superuser: DROP TABLE on a stream table "
    "or a source, and ALTER TABLE on a source, are noticed at the next refresh only; columns that stream tables "
    "use cannot be dropped or retyped, and must not be renamed"
)


@dataclass(frozen=True, slots=True)
class InstallResult:
    """What `install` found or did.

    `warnings` say which rights are missing and what works less for want of them.
    """

    state: str
    changed: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """One file of SQL; its name without the suffix is its version."""

    version: str
    sql: str

    @property
    def description(self) -> str:
        """The first comment line of the file."""
        return self.sql.split("\n", 1)[0].lstrip("- ").strip()


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of this version of Headwater, in the order in which they run."""

    migrations: tuple[Script, ...]
    functions: tuple[Script, ...]
    superuser: tuple[Script, ...]

    def state(self, *, superuser: bool) -> str:
        """The line by which a database tells whether it is up to date.

        >>> s = Script("0001_a", "-- A."); Scripts((s,), (), ()).state(superuser=False)
        'Headwater stream tables, 0001_a, functions e3b0c44298fc1c14'
        """
        digest = hashlib.sha256()
        for script in self.functions + (self.superuser if superuser else ()):
            digest.update(script.sql.encode())
        return f"Headwater stream tables, {self.migrations[-1].version}, functions {digest.hexdigest()[:16]}"


def _read(folder: Path) -> tuple[Script, ...]:
    return tuple(Script(p.stem, p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.sql")))


@cache
def bundled_scripts() -> Scripts:
    """The scripts beside this module."""
    return Scripts(_read(SCRIPTS / "migrations"), _read(SCRIPTS / "functions"), _read(SCRIPTS / "superuser"))


async def install(session: SqlSession, scripts: Scripts | None = None) -> InstallResult:
    """Bring the catalog of the session's database up to date. The session must be outside a transaction.

    Costs one query where there is nothing to do. Several servers may do this at once; one of them does the work.
    Raises SqlError: 42501 naming the right that is missing, 0A000 for a server that is too old, 42710 where the schema
    belongs to something else, and whatever PostgreSQL says to a script (nothing is left behind then).
    """
    scripts = scripts or bundled_scripts()
    present, superuser, role = await _present_state(session)
    warnings = () if superuser else (WITHOUT_EVENT_TRIGGERS.format(role=role),)
    if _is_current(present, scripts, superuser):
        return InstallResult(present, changed=False, warnings=warnings)
    await session.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        changed = await _upgrade(session, scripts, superuser)
        await session.execute("COMMIT")
    except BaseException:
        await session.execute("ROLLBACK")
        raise
    return InstallResult(scripts.state(superuser=superuser), changed=changed, warnings=warnings)


def _is_current(present: str, scripts: Scripts, superuser: bool) -> bool:
    """Scripts installed by a superuser are good enough for a server that is none."""
    return present in {scripts.state(superuser=superuser), scripts.state(superuser=True)}


async def _present_state(session: SqlSession) -> tuple[str, bool, str]:
    rows = await session.fetch(
        "SELECT coalesce(obj_description(to_regnamespace('pgtrickle')::oid, 'pg_namespace'), ''), r.rolsuper, "
        "r.rolname::text FROM pg_catalog.pg_roles r WHERE r.rolname = current_user"
    )
    present, superuser, role = rows[0]
    return str(present), bool(superuser), str(role)


async def _upgrade(session: SqlSession, scripts: Scripts, superuser: bool) -> bool:
    await session.execute("SET LOCAL client_min_messages = warning")
    await session.execute("SET LOCAL check_function_bodies = off")
    await session.execute("SET LOCAL search_path = pg_catalog")
    await session.fetch("SELECT pg_advisory_xact_lock($1::bigint)::text", ADVISORY_LOCK)
    present, _, _ = await _present_state(session)
    if _is_current(present, scripts, superuser):
        return False  # another server was faster
    await _check_rights(session)
    applied: set[str] = set()
    rows = await session.fetch("SELECT to_regclass('pgtrickle.pgt_schema_version') IS NOT NULL")
    if rows[0][0]:
        rows = await session.fetch("SELECT version FROM pgtrickle.pgt_schema_version")
        applied = {str(version) for (version,) in rows}
    _check_not_newer(applied, scripts)
    for script in scripts.migrations:
        if script.version not in applied:
            await session.execute(script.sql)
            await _record(session, script.version, script.description)
    for script in scripts.functions + (scripts.superuser if superuser else ()):
        await session.execute(script.sql)
    state = scripts.state(superuser=superuser)
    await _record(session, "functions", state)
    await session.execute(f"COMMENT ON SCHEMA pgtrickle IS '{state}'")
    log.info("catalog installed", state=state)
    return True


def _check_not_newer(applied: set[str], scripts: Scripts) -> None:
    unknown = applied - {script.version for script in scripts.migrations} - {"functions"}
    if unknown:
        raise SqlError(
            "0A000",
            f"catalog of stream tables was installed by a newer version of Headwater (script {max(unknown)})",
            hint="Upgrade this server.",
        )


async def _record(session: SqlSession, version: str, description: str) -> None:
    await session.fetch(
        "INSERT INTO pgtrickle.pgt_schema_version (version, description) VALUES ($1::text, $2::text) "
        "ON CONFLICT (version) DO UPDATE SET description = excluded.description, applied_at = now() RETURNING version",
        version,
        description,
    )


async def _check_rights(session: SqlSession) -> None:
    """Raise SqlError unless the role may do all that the scripts need."""
    rows = await session.fetch(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'), "
        "has_database_privilege(current_database(), 'CREATE'), current_user::text, current_database()::text, "
        "EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trickle'), "
        "coalesce((SELECT NOT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace n"
        " WHERE n.nspname = 'pgtrickle'), false), "
        "pg_is_in_recovery(), "
        "has_function_privilege('pg_control_system()', 'EXECUTE')"
    )
    number, version, may_create, role, database, extension, foreign, recovery, control = rows[0]
    if int(number or 0) < OLDEST_SERVER:
        raise SqlError("0A000", f"PostgreSQL {version} is too old", hint="Headwater needs PostgreSQL 15 or newer.")
    if recovery:
        raise SqlError("25006", "cannot install the catalog of stream tables on a hot standby")
    if extension:
        raise SqlError(
            "42710", "extension pg_trickle is installed in this database", hint="Drop it, or use another database."
        )
    if foreign:
        raise SqlError(
            "42501",
            f'schema pgtrickle exists and belongs to a role whose rights role "{role}" has not',
            hint="Serve with the role that installed it, or with a member of that role.",
        )
    if not may_create:
        raise SqlError(
            "42501",
            f'permission denied for database {database}: role "{role}" lacks CREATE',
            hint=f'GRANT CREATE ON DATABASE "{database}" TO "{role}"; queries work without, stream tables do not.',
        )
    if not control:
        raise SqlError(
            "42501",
            f'permission denied for function pg_control_system: role "{role}" lacks EXECUTE',
            hint=f'GRANT EXECUTE ON FUNCTION pg_control_system() TO "{role}";',
        )
