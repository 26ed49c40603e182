"""`headwater doctor` against PostgreSQL servers with one fault each."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import psycopg
import pytest

import server.postgres.url
from catalog.install import bundled_scripts, install
from catalog.session import SqlSession
from catalog.systems import QUEUES, STREAM_TABLES
from engine.session.pool import PooledSession
from server.commands import doctor
from server.commands.doctor import examine
from server.commands.doctor_checks import CHECKS, CONNECTIONS, Finding, Outcome, Subject
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.url import PostgresUrl
from tests.clusters import new_database, started_cluster

HEADWATER = str(Path(sys.executable).with_name("headwater"))
ROLE, PASSWORD = "ordinary", "secret"
SETTINGS = {
    "fsync": "off",
    "autovacuum": "off",
    "shared_buffers": "16MB",
    "wal_level": "replica",
    "max_replication_slots": "1",
    "max_wal_senders": "1",
    "max_connections": str(2 * CONNECTIONS + 10),
}


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL as it comes: it writes no logical log. Nobody else uses it."""
    with started_cluster(tmp_path_factory.mktemp("poor") / "data", SETTINGS) as postgres:
        with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
        yield postgres


@pytest.fixture
def at(poor: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(poor) as name, psycopg.connect(poor.dsn(name), autocommit=True) as admin:
        yield Database(poor, name, admin)


class Database:
    """A database of that PostgreSQL, and a superuser's session in it."""

    def __init__(self, cluster: EmbeddedPostgres, name: str, admin: psycopg.Connection[Any]):
        self.cluster = cluster
        self.name = name
        self.admin = admin

    def url(self, user: str = "postgres", password: str | None = None) -> PostgresUrl:
        return url_of(self.cluster, self.name, user, password)

    def findings(self, check: str, user: str = "postgres", **options: Any) -> list[Finding]:
        password = PASSWORD if user == ROLE else None
        return [one for one in examine(self.url(user, password), **options) if one.check == check]

    def finding(self, check: str, user: str = "postgres", **options: Any) -> Finding:
        (found,) = self.findings(check, user, **options)
        return found


def url_of(
    cluster: EmbeddedPostgres, database: str, user: str = "postgres", password: str | None = None
) -> PostgresUrl:
    secret = quote(password or cluster.password, safe="")
    host = quote(str(cluster.socket_dir), safe="")
    return PostgresUrl.parse(f"postgresql://{user}:{secret}@/{database}?host={host}&port={cluster.port}")


def is_warning(found: Finding, message: str, todo: str) -> bool:
    return found.status == Outcome.WARNING and message in found.message and todo in found.todo


def is_error(found: Finding, message: str, todo: str) -> bool:
    return found.status == Outcome.ERROR and message in found.message and todo in found.todo


def headwater_doctor(url: PostgresUrl, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PG"))}
    return subprocess.run(
        [HEADWATER, "doctor", *arguments],
        env={**clean, "HEADWATER_POSTGRES": url.dsn()},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_postgres_of_the_servers_own_has_nothing_that_is_an_error(cluster: EmbeddedPostgres, database: str) -> None:
    url = url_of(cluster, database)
    found = {one.check: one for one in examine(url)}
    assert list(found) == ["connection", *CHECKS]
    assert all(one.status == Outcome.OK for name, one in found.items() if name not in ("slots", "transactions"))
    done = headwater_doctor(url, "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == "" and said["ok"] is True
    assert [set(one) for one in said["checks"]] == [{"check", "status", "message", "todo"}] * len(said["checks"])
    assert url.parameters["password"] not in done.stdout


def test_an_error_is_shown_with_what_to_do_and_ends_with_status_1(at: Database) -> None:
    at.admin.execute("CREATE SCHEMA pgque CREATE TABLE mine (i int)")
    done = headwater_doctor(at.url())
    lines = done.stdout.splitlines()
    (number,) = [n for n, line in enumerate(lines) if line.startswith("error")]
    assert lines[number] == "error   catalog: queues: schema pgque exists and was not made by Headwater"
    assert lines[number + 1].strip() == "Drop or rename it, or use another database."
    assert done.returncode == 1
    assert json.loads(doctor.as_json(at.url(), examine(at.url())))["ok"] is False


def test_no_check_changes_anything(at: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that changes something has a number, and the numbers have no gap here."""

    async def writes(session: SqlSession, subject: Subject) -> list[tuple[Outcome, str, str]]:
        await session.execute("CREATE TABLE public.made_by_a_check (i int)")
        return [(Outcome.OK, "made", "")]

    def next_number() -> int:
        row = at.admin.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        return int(row[0])

    before = next_number()
    examine(at.url())
    examine(at.url(ROLE, PASSWORD))
    assert next_number() == before + 1
    monkeypatch.setitem(doctor.CHECKS, "writes", writes)
    assert is_warning(at.finding("writes"), "cannot execute CREATE TABLE in a read-only transaction", "")
    assert at.admin.execute("SELECT to_regclass('public.made_by_a_check')").fetchone() == (None,)


def test_wal_level_replica_leaves_triggers(at: Database) -> None:
    found = at.finding("wal capture")
    assert is_warning(found, "wal_level is replica", "ALTER SYSTEM SET wal_level = logical")


def test_role_without_rights_is_told_each_of_them(at: Database) -> None:
    at.admin.execute("CREATE TABLE t (i int)")
    at.admin.execute("CREATE ROLE somebody")
    at.admin.execute("ALTER TABLE t OWNER TO somebody")
    try:
        role = at.findings("role", ROLE)
        assert any(is_warning(one, "event triggers of pgtrickle are not installed", "SUPERUSER") for one in role)
        assert any(is_warning(one, 'may not act for the owners "somebody"', "GRANT the owner's role") for one in role)
        catalog = at.findings("catalog", ROLE)
        assert all(is_error(one, "lacks CREATE", "GRANT CREATE ON DATABASE") for one in catalog) and catalog
        capture = at.findings("wal capture", ROLE)
        assert any(is_warning(one, "may not use replication", "REPLICATION") for one in capture)
        assert any(is_warning(one, "may not create publications", "GRANT CREATE") for one in capture)
        assert is_warning(at.finding("transactions", ROLE), "cannot be seen", "pg_read_all_stats")
        at.admin.execute(f"GRANT somebody TO {ROLE}")
        at.admin.execute(f"GRANT CREATE ON DATABASE {at.name} TO {ROLE}")
        assert not any("somebody" in one.message for one in at.findings("role", ROLE))
        assert at.finding("catalog", ROLE).status == Outcome.OK
    finally:
        at.admin.execute("DROP OWNED BY somebody CASCADE")
        at.admin.execute("DROP ROLE somebody")


def test_no_replication_slot_left_and_one_that_nobody_reads(at: Database, cluster: EmbeddedPostgres) -> None:
    at.admin.execute("SELECT pg_create_physical_replication_slot('standby')")
    try:
        assert is_warning(at.finding("slots"), "all 1 replication slots are in use", "Raise max_replication_slots")
    finally:
        at.admin.execute("SELECT pg_drop_replication_slot('standby')")
    with new_database(cluster) as name, psycopg.connect(cluster.dsn(name), autocommit=True) as admin:
        admin.execute(f"SELECT pg_create_logical_replication_slot('idle_{name}', 'pgoutput')")
        try:
            found = [one for one in examine(url_of(cluster, name)) if f'"idle_{name}"' in one.message]
            assert is_warning(found[0], "nobody reads the logical slot", f"pg_drop_replication_slot('idle_{name}')")
        finally:
            admin.execute(f"SELECT pg_drop_replication_slot('idle_{name}')")


def test_schema_of_another_role(at: Database) -> None:
    at.admin.execute(f"CREATE SCHEMA accum_roles AUTHORIZATION {ROLE}")
    (found,) = [one for one in at.findings("catalog") if one.status == Outcome.ERROR]
    assert is_error(found, f'registers: schema accum_roles exists and belongs to role "{ROLE}"', "Drop it.")


@pytest.mark.parametrize(
    ("version", "status", "message"),
    [
        ("9999_of_tomorrow", Outcome.ERROR, "installed by a newer version of Headwater (script 9999_of_tomorrow)"),
        (bundled_scripts(STREAM_TABLES).migrations[0].version, Outcome.WARNING, "installed by an earlier version"),
    ],
)
def test_catalog_of_another_version(at: Database, version: str, status: Outcome, message: str) -> None:
    at.admin.execute("CREATE SCHEMA pgtrickle CREATE TABLE pgt_schema_version (version text, description text)")
    at.admin.execute("INSERT INTO pgtrickle.pgt_schema_version VALUES (%s)", (version,))
    (found,) = [one for one in at.findings("catalog") if "stream tables" in one.message]
    assert found.status == status and message in found.message and found.todo


def test_catalog_of_this_version(at: Database) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(at.url().dsn())
        try:
            await install(PooledSession(connection), system=QUEUES)
        finally:
            await connection.close()

    asyncio.run(run())
    messages = [one.message for one in at.findings("catalog") if one.status == Outcome.OK]
    assert "queues: installed by this version" in messages
    assert "stream tables, registers: not installed yet, and can be" in messages


def test_extensions_whose_place_is_taken_and_those_in_the_way(at: Database) -> None:
    if not at.admin.execute("SELECT FROM pg_available_extensions WHERE name = 'pgque'").fetchall():
        pytest.skip("before PostgreSQL 18 there is no directory of extensions that can be written to")
    at.admin.execute("CREATE EXTENSION pgque")
    at.admin.execute("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    at.admin.execute("ALTER EXTENSION pgque ADD FUNCTION f()")
    (found,) = [one for one in at.findings("catalog") if one.status == Outcome.ERROR]
    assert is_error(found, "queues: extension pgque is installed in this database", "Drop it, or use another database.")
    row = at.admin.execute("SELECT current_setting('data_directory')").fetchone()
    assert row is not None
    directory = Path(row[0]) / "extension"
    (directory / "timescaledb.control").write_text("default_version = '1'\nrelocatable = false\n")
    (directory / "timescaledb--1.sql").write_text("SELECT 1;\n")
    at.admin.execute("CREATE EXTENSION timescaledb")
    assert is_warning(at.finding("extensions"), "extension timescaledb is installed", "Let no stream table")


def test_event_triggers_are_switched_off(at: Database) -> None:
    if at.admin.info.server_version < 170000:
        pytest.skip("there is no such setting before PostgreSQL 17")
    assert at.finding("event triggers").status == Outcome.OK
    at.admin.execute(f"ALTER DATABASE {at.name} SET event_triggers = off")
    assert is_warning(at.finding("event triggers"), "are switched off", "event_triggers = on")


def test_transactions_that_stay_open(at: Database, cluster: EmbeddedPostgres) -> None:
    assert at.finding("transactions").status == Outcome.OK
    with psycopg.connect(at.cluster.dsn(at.name)) as other:
        other.execute("SELECT 1")
        pid = other.info.backend_pid
        found = at.finding("transactions", long_transaction=timedelta())
        assert is_warning(found, f"(process {pid}) has been open", f"pg_terminate_backend({pid})")
        assert at.finding("transactions").status == Outcome.OK  # it is not five minutes old
    at.admin.execute("BEGIN")
    at.admin.execute("CREATE TABLE p (i int)")
    at.admin.execute("PREPARE TRANSACTION 'it''s open'")
    try:
        found = at.finding("transactions")
        assert is_warning(found, 'transaction "it\'s open" was prepared', "COMMIT PREPARED 'it''s open'")
    finally:
        at.admin.execute("ROLLBACK PREPARED 'it''s open'")


def test_few_connections_left(at: Database) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(psycopg.connect(at.cluster.dsn(at.name), autocommit=True))
        assert is_warning(at.finding("connections"), f"opens up to {CONNECTIONS}", "Raise max_connections")
        at.admin.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT 5")
        try:
            assert "the role may have 5 connections only" in at.findings("connections", ROLE)[-1].message
        finally:
            at.admin.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")


@pytest.mark.parametrize(
    ("name", "message"), [("LATIN1", "by triggers only"), ("SQL_ASCII", "texts that are not UTF-8 are errors")]
)
def test_encoding_other_than_utf8(poor: EmbeddedPostgres, name: str, message: str) -> None:
    with psycopg.connect(poor.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE encoded ENCODING '{name}' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0")
        try:
            found = [one for one in examine(url_of(poor, "encoded")) if one.check == "encoding"]
            assert is_warning(found[0], message, "ENCODING 'UTF8'")
        finally:
            admin.execute("DROP DATABASE encoded WITH (FORCE)")


@contextmanager
def trusted(at: Database) -> Iterator[None]:
    """PostgreSQL asks nobody in this database for a password."""
    row = at.admin.execute("SELECT current_setting('hba_file')").fetchone()
    assert row is not None
    rules = Path(row[0])
    before = rules.read_text()
    try:
        rules.write_text(f"local {at.name} all trust\n{before}")
        at.admin.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 60
        while at.url().is_asked_for_password():  # until the postmaster has read it
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        rules.write_text(before)
        at.admin.execute("SELECT pg_reload_conf()")


def test_login_without_a_password(at: Database) -> None:
    assert at.finding("authentication").status == Outcome.OK
    unknown = at.finding("authentication", ROLE)
    assert unknown.status == Outcome.OK and "pg_hba_file_rules cannot be read" in unknown.message
    with trusted(at):
        assert is_warning(at.finding("authentication"), f"line 1: local {at.name} all trust", "scram-sha-256")
        assert is_warning(at.finding("authentication", ROLE), "asks this role for no password", "scram-sha-256")


def test_wrong_password_and_unsupported_version(at: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = examine(at.url(ROLE, "wrong"))
    assert is_error(found, "could not connect", "HEADWATER_POSTGRES") and "wrong" not in found.message
    monkeypatch.setattr(server.postgres.url, "OLDEST", 99)
    (found,) = examine(at.url())
    assert is_error(found, "supported are 99 to", "Upgrade PostgreSQL.")


def test_standby(poor: EmbeddedPostgres) -> None:
    """What reads the log of another one behaves as one that waits for a log that does not come."""
    with psycopg.connect(poor.dsn(), autocommit=True) as admin:
        row = admin.execute("SELECT current_setting('data_directory')").fetchone()
    assert row is not None
    poor.stop()
    signal = Path(row[0]) / "standby.signal"
    signal.touch()
    try:
        poor.start()
        found = {one.check: one for one in examine(url_of(poor, "postgres"))}
        assert is_error(found["primary"], "PostgreSQL is a standby", "Connect to the primary.")
        assert "catalog" not in found and "transactions" in found
        poor.stop()
    finally:
        signal.unlink()
        poor.start()
