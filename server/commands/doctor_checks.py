"""What `headwater doctor` looks at in a PostgreSQL. Each check is one function, which only reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from catalog.install import Due, due, uninstalled
from catalog.session import SqlError, SqlSession
from catalog.settings import SETTINGS
from catalog.systems import SYSTEMS
from engine.service import OTHER_CONNECTIONS
from server.postgres.url import PostgresUrl


class Outcome(StrEnum):
    """`WARNING`: Headwater works, but not all of it. `ERROR`: it does not, or no client gets in."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found, and what to do about it; nothing where it is OK."""

    check: str
    status: Outcome
    message: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined: the PostgreSQL, and from which age on a transaction is a long one."""

    url: PostgresUrl
    long_transaction: timedelta


Found = list[tuple[Outcome, str, str]]
Check = Callable[[SqlSession, Subject], Awaitable[Found]]

OK, WARNING, ERROR = Outcome.OK, Outcome.WARNING, Outcome.ERROR


async def primary(session: SqlSession, subject: Subject) -> Found:
    """A standby cannot be written to."""
    ((standby,),) = await session.fetch("SELECT pg_is_in_recovery()")
    if not standby:
        return [(OK, "this is a primary", "")]
    return [(ERROR, "PostgreSQL is a standby: nothing can be installed or captured on it", "Connect to the primary.")]


async def encoding(session: SqlSession, subject: Subject) -> Found:
    """The write-ahead log is read as UTF-8; SQL_ASCII says nothing about what its bytes mean."""
    ((name,),) = await session.fetch("SELECT getdatabaseencoding()")
    if name == "UTF8":
        return [(OK, "the encoding of the database is UTF8", "")]
    todo = "Make a database with ENCODING 'UTF8', and restore a dump into it."
    if name == "SQL_ASCII":
        return [(WARNING, "the encoding of the database is SQL_ASCII: texts that are not UTF-8 are errors", todo)]
    return [(WARNING, f"the encoding of the database is {name}: changes are captured by triggers only", todo)]


_ROLE = """
SELECT r.rolname::text, r.rolsuper, r.rolreplication, has_database_privilege(current_database(), 'CREATE'),
       quote_ident(r.rolname), quote_ident(current_database())
FROM pg_roles r WHERE r.rolname = current_user
"""

_OWNERS = """
SELECT DISTINCT r.rolname::text FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
WHERE c.relkind IN ('r', 'p', 'v', 'm') AND NOT r.rolsuper AND r.oid >= 16384
  AND NOT pg_has_role(r.oid, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'USAGE' END)
ORDER BY 1
"""


async def role(session: SqlSession, subject: Subject) -> Found:
    """A superuser can do all; another role what it has been granted."""
    ((name, superuser, _, _, quoted, _),) = await session.fetch(_ROLE)
    if superuser:
        return [(OK, f'the role "{name}" is a superuser', "")]
    found: Found = []
    for system in SYSTEMS:
        if system.without_superuser:
            missing = system.without_superuser.format(role=f'"{name}"')
            found.append((WARNING, missing, f"ALTER ROLE {quoted} SUPERUSER; or do without."))
    if owners := [str(owner) for (owner,) in await session.fetch(_OWNERS)]:
        listed = ", ".join(f'"{owner}"' for owner in owners[:5]) + (", …" if len(owners) > 5 else "")
        message = (
            f'the role "{name}" may not act for the owners {listed}: their tables and queries are out of its reach'
        )
        found.append((WARNING, message, f"GRANT the owner's role TO {quoted}; for each that is to have stream tables."))
    ((language,),) = await session.fetch("SELECT current_setting('lc_messages')")
    if not is_english(str(language)):
        message = (
            f'lc_messages is "{language}": functions of the server read the call stack in English, and refuse calls'
        )
        found.append((ERROR, message, "As a superuser: ALTER SYSTEM SET lc_messages = 'C'; and reload."))
    return found


def is_english(lc_messages: str) -> bool:
    """Whether PostgreSQL's messages are in English with this `lc_messages`.

    >>> [is_english(each) for each in ("", "C", "C.UTF-8", "en_GB.UTF-8", "POSIX", "cs_CZ", "de_DE.UTF-8")]
    [True, True, True, True, True, False, False]
    """
    return lc_messages in ("", "C", "POSIX") or lc_messages.startswith(("C.", "en"))


async def catalog(session: SqlSession, subject: Subject) -> Found:
    """What the installation would find, by its own rules; what is the same for several systems is said once."""
    ((standby,),) = await session.fetch("SELECT pg_is_in_recovery()")
    if standby:
        return []
    said = {
        Due.NOTHING: "installed by this version",
        Due.UPGRADE: "installed by an earlier version, upgraded when the server first serves the database",
        Due.INSTALLATION: "not installed yet, and can be",
    }
    gone = await uninstalled(session)
    titles = {(OK, "uninstalled, CREATE EXTENSION makes them anew", ""): [s.title for s in SYSTEMS if s in gone]}
    for system in SYSTEMS:
        if system in gone:
            continue
        try:
            state = await due(session, system)
            backup = "Make a backup before: an earlier version cannot go on afterwards."
            one = (WARNING, said[state], backup) if state is Due.UPGRADE else (OK, said[state], "")
        except SqlError as error:
            if error.is_of_connection or error.sqlstate[:2] == "25":
                raise
            hint = f"{error.hint or ''} {error.detail or ''}".strip()
            one = (ERROR, error.message, " ".join(hint.split()))
        titles.setdefault(one, []).append(system.title)
    return [
        (status, f"{', '.join(names)}: {message}", todo) for (status, message, todo), names in titles.items() if names
    ]


async def wal_capture(session: SqlSession, subject: Subject) -> Found:
    """Capture from the write-ahead log; without it triggers capture."""
    found: Found = []
    ((level, limit),) = await session.fetch(
        "SELECT current_setting('wal_level'), current_setting('max_slot_wal_keep_size')"
    )
    if level != "logical":
        message = f"wal_level is {level}: changes are captured by triggers only, not from the write-ahead log"
        found.append((WARNING, message, "ALTER SYSTEM SET wal_level = logical; and restart PostgreSQL."))
    elif limit == "-1":
        message = "a replication slot that nobody reads keeps all write-ahead log, until the disk is full"
        todo = "ALTER SYSTEM SET max_slot_wal_keep_size = '8GB'; or as much as there is room for, and reload."
        found.append((WARNING, message, todo))
    ((name, superuser, replicates, creates, quoted, database),) = await session.fetch(_ROLE)
    if not (superuser or replicates):
        message = f'the role "{name}" may not use replication: changes are captured by triggers only'
        found.append((WARNING, message, f"ALTER ROLE {quoted} REPLICATION;"))
    if not (superuser or creates):
        message = f'the role "{name}" may not create publications: changes are captured by triggers only'
        found.append((WARNING, message, f"GRANT CREATE ON DATABASE {database} TO {quoted};"))
    return found or [(OK, "changes can be captured from the write-ahead log", "")]


_SLOTS = """
SELECT current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication),
       EXISTS (SELECT FROM pg_replication_slots s WHERE s.database = current_database()
               AND s.slot_name = 'pgtrickle_' || (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
"""

_IDLE_SLOTS = """
SELECT s.slot_name::text, coalesce(pg_size_pretty(pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
           s.restart_lsn)), 'nothing'), coalesce(s.wal_status, '') = 'lost', quote_literal(s.slot_name)
FROM pg_replication_slots s WHERE s.slot_type = 'logical' AND NOT s.active AND NOT s.temporary ORDER BY 1
"""


async def slots(session: SqlSession, subject: Subject) -> Found:
    """A database whose tables are captured from the log needs a slot and a WAL sender."""
    found: Found = []
    ((most, used, senders, sending, ours),) = await session.fetch(_SLOTS)
    if int(used) >= int(most) and not ours:
        message = f"all {most} replication slots are in use: changes are captured by triggers only"
        todo = "Raise max_replication_slots and restart PostgreSQL, or drop a slot that nobody reads."
        found.append((WARNING, message, todo))
    if int(sending) >= int(senders) and not ours:
        message = f"all {senders} WAL senders are in use: changes are captured by triggers only"
        found.append((WARNING, message, "Raise max_wal_senders and restart PostgreSQL."))
    for name, kept, lost, quoted in await session.fetch(_IDLE_SLOTS):
        state = "has lost what it needs" if lost else f"keeps {kept} of write-ahead log"
        message = f'nobody reads the logical slot "{name}", which {state}'
        found.append((WARNING, message, f"Start who reads it, or SELECT pg_drop_replication_slot({quoted});"))
    return found or [(OK, f"{int(most) - int(used)} of {most} replication slots are free", "")]


async def event_triggers(session: SqlSession, subject: Subject) -> Found:
    """PostgreSQL 17 and later can switch them off; that they take a superuser is said of the role."""
    ((setting,),) = await session.fetch("SELECT current_setting('event_triggers', true)")
    if setting == "off":
        message = (
            "event triggers are switched off: DDL on sources and stream tables is noticed at the next refresh only"
        )
        return [(WARNING, message, "ALTER SYSTEM SET event_triggers = on; and reload.")]
    return [(OK, "event triggers are not switched off", "")]


_LOGIN = """
SELECT inet_client_addr() IS NULL OR inet_client_addr() << '127.0.0.0/8' OR inet_client_addr() = '::1',
       coalesce((SELECT s.ssl FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid()), false),
       has_table_privilege('pg_hba_file_rules', 'SELECT') AND has_function_privilege('pg_hba_file_rules()', 'EXECUTE')
"""


async def authentication(session: SqlSession, subject: Subject) -> Found:
    """Clients must prove to PostgreSQL who they are, through a connection of the server's."""
    ((local, encrypted, readable),) = await session.fetch(_LOGIN)
    found: Found = []
    todo = "Put scram-sha-256 into pg_hba.conf for where the server connects from, and SELECT pg_reload_conf();"
    lines = subject.url.lines_without_proof()
    if lines:
        shown = "; ".join(lines[:5]) + ("; …" if len(lines) > 5 else "")
        message = (
            f"pg_hba.conf lets the server in without a password, and clients for whom it does are refused: {shown}"
        )
        found.append((WARNING, message, todo))
    elif not subject.url.is_asked_for_password():
        message = "PostgreSQL asks this role for no password; clients of whom it asks none are refused"
        found.append((WARNING, message, todo))
    elif not readable:
        message = "a password is asked of this role; of others it is not known, since pg_hba_file_rules cannot be read"
        found.append((OK, message, ""))
    if not (local or encrypted):
        message = "the connection is not encrypted, and not on this machine"
        found.append((WARNING, message, "Set ssl = on in PostgreSQL, and sslmode=verify-full in the URL."))
    return found or [(OK, "clients are asked for a password" + (", over TLS" if encrypted else ""), "")]


CONNECTIONS = OTHER_CONNECTIONS + int(next(s.default for s in SETTINGS if s.name == "max_concurrent_refreshes"))
"""So many the engine may have open for a database in use, as long as no setting says otherwise."""

_CONNECTIONS = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0) AS all_of_them,
       (SELECT count(*) FROM pg_stat_activity a WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()),
       r.rolconnlimit, d.datconnlimit, r.rolsuper
FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()
"""


async def connections(session: SqlSession, subject: Subject) -> Found:
    """The engine's own connections to a database, and at least as many clients."""
    ((most, used, of_role, of_database, superuser),) = await session.fetch(_CONNECTIONS)
    found: Found = []
    free = int(most) - int(used)
    if free < 2 * CONNECTIONS:
        message = (
            f"{max(free, 0)} of {most} connections are free; the engine opens up to {CONNECTIONS} for each database"
        )
        status = WARNING if free >= CONNECTIONS else ERROR
        found.append((status, message, "Raise max_connections and restart PostgreSQL, or close what is not used."))
    limits = (("role", of_role), ("database", of_database))
    for what, limit in limits if not superuser else ():
        if 0 <= int(limit) < 2 * CONNECTIONS:
            message = f"the {what} may have {limit} connections only; the engine opens up to {CONNECTIONS}"
            found.append((WARNING, message, f"ALTER {what.upper()} … CONNECTION LIMIT -1;"))
    return found or [(OK, f"{free} of {most} connections are free", "")]


OTHERS = {
    "timescaledb": "hypertables allow no triggers with transition tables, so their changes cannot be captured by them",
    "citus": "distributed tables allow no triggers, so their changes cannot be captured by them",
    "pg_ivm": "its incremental views and stream tables each maintain themselves, and neither knows of the other",
}
"""Extensions that a database can have beside Headwater, and what does not go together with them. Those whose place
Headwater takes are found by `catalog`."""


async def extensions(session: SqlSession, subject: Subject) -> Found:
    """Others that change how tables work."""
    names = await session.fetch(
        "SELECT extname::text FROM pg_extension WHERE extname = ANY ($1::text[]) ORDER BY 1", list(OTHERS)
    )
    todo = "Let no stream table, subscription or history read such a table."
    found: Found = [(WARNING, f"extension {name} is installed: {OTHERS[str(name)]}", todo) for (name,) in names]
    return found or [(OK, "no extension is known to be in the way", "")]


_LONG = """
SELECT a.pid::text, coalesce(a.usename::text, ''), extract(epoch FROM clock_timestamp() - a.xact_start)::bigint
FROM pg_stat_activity a
WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid() AND a.datname = current_database()
  AND a.xact_start <= clock_timestamp() - $1::text::interval
ORDER BY a.xact_start
"""

_PREPARED = """
SELECT p.gid::text, extract(epoch FROM clock_timestamp() - p.prepared)::bigint, quote_literal(p.gid)
FROM pg_prepared_xacts p WHERE p.database = current_database() ORDER BY p.prepared
"""


async def transactions(session: SqlSession, subject: Subject) -> Found:
    """To put triggers on a table, and to make a slot, one has to wait for those that are open."""
    found: Found = []
    age = f"{subject.long_transaction.total_seconds()} s"
    for pid, user, seconds in await session.fetch(_LONG, age):
        message = f'a transaction of role "{user}" (process {pid}) has been open for {seconds} s: captures wait for it'
        found.append((WARNING, message, f"End it, or SELECT pg_terminate_backend({pid});"))
    for name, seconds, quoted in await session.fetch(_PREPARED):
        message = f'transaction "{name}" was prepared {seconds} s ago and is open: captures wait for it'
        found.append((WARNING, message, f"COMMIT PREPARED {quoted}; or ROLLBACK PREPARED {quoted};"))
    ((sees,),) = await session.fetch("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")
    if not sees:
        message = "transactions of other roles cannot be seen"
        found.append((WARNING, message, "GRANT pg_read_all_stats to the role, to have them checked."))
    return found or [(OK, "no transaction has been open for long", "")]


CHECKS: dict[str, Check] = {
    "primary": primary,
    "role": role,
    "catalog": catalog,
    "encoding": encoding,
    "authentication": authentication,
    "connections": connections,
    "wal capture": wal_capture,
    "slots": slots,
    "event triggers": event_triggers,
    "extensions": extensions,
    "transactions": transactions,
}
"""The checks by their names, in the order in which they are made."""
