"""DROP EXTENSION of what the server installs: what goes with it, and that it stays away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, errors

from server.postgres.cluster import binaries
from tests.clusters import OTHER_PROGRAMS
from tests.e2e.conftest import Database, Headwater

ROLE = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def filled(live_db: Database) -> Database:
    """A database whose scheduler is at work, with a table and two stream tables."""
    live_db.run("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 10), (2, 20)")
    live_db.run("SELECT pgtrickle.create_stream_table('s', 'SELECT sum(n) AS total FROM t', '1h')")
    live_db.run("SELECT pgtrickle.create_stream_table('above', 'SELECT total + 1 AS more FROM s', '1h')")
    return live_db


LEFT = """
SELECT 'function ' || p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'pgtrickle' AND p.proname NOT LIKE '\\_%' OR n.nspname = 'pgtrickle_roles'
UNION ALL SELECT 'relation ' || c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' OR n.nspname = 'pgtrickle_changes' AND c.relkind IN ('r', 'v')
   OR n.nspname = 'pgtrickle' AND c.relkind = 'v'
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = to_regclass('public.t')
UNION ALL SELECT 'event trigger ' || evtname FROM pg_event_trigger WHERE evtname LIKE 'pg\\_trickle%'
UNION ALL SELECT 'extension' FROM pg_extension WHERE extname = 'pg_trickle'
ORDER BY 1
"""
"""What is there of pg_trickle but for what the server itself uses, and what is in the schema public."""


def test_cascade_leaves_nothing_of_pg_trickle_but_what_the_server_needs(filled: Database) -> None:
    connection = filled.connect()
    with pytest.raises(errors.DependentObjectsStillExist) as failure:
        connection.execute("DROP EXTENSION pg_trickle")
    assert failure.value.diag.message_primary == "cannot drop extension pg_trickle because other objects depend on it"
    assert failure.value.diag.message_detail == (
        "stream table public.above depends on extension pg_trickle\n"
        "stream table public.s depends on extension pg_trickle"
    )
    assert failure.value.diag.message_hint == "Use DROP ... CASCADE to drop the dependent objects too."
    assert connection.execute("DROP EXTENSION pg_trickle CASCADE").statusmessage == "DROP EXTENSION"
    assert connection.execute(LEFT).fetchall() == [
        ("relation pgtrickle.pgt_stream_tables",),
        ("relation t",),
        ("relation t_pkey",),
    ]
    assert connection.execute("SELECT sum(n) FROM t").fetchone() == (30,)


def test_what_was_dropped_is_made_anew_for_create_extension_only(
    filled: Database, eventually: Callable[..., Any]
) -> None:
    with psycopg.connect(filled.server.direct_dsn(filled.name), autocommit=True) as direct:
        filled.run(f"ALTER DATABASE {filled.name} SET pg_trickle.enabled = off")
        direct.execute("SELECT pgtrickle.create_stream_table('left_over', 'SELECT 1 AS n')")
    filled.run("DROP EXTENSION pg_trickle CASCADE")
    assert filled.value("SELECT count(*) FROM pgtrickle.pgt_requests") == 0
    filled.run(f"ALTER DATABASE {filled.name} RESET pg_trickle.enabled")
    connection = filled.connect()
    for call in ("SELECT pgtrickle.create_stream_table('u', 'SELECT 1 AS n')", "SELECT * FROM pgtrickle.pgt_status()"):
        with pytest.raises(errors.UndefinedFunction):
            connection.execute(call)
    back = "CREATE EXTENSION pg_trickle makes them anew"
    create = "SELECT pgtrickle.create_stream_table('u', 'SELECT 1 AS n')"

    def hint() -> str:
        with pytest.raises(errors.UndefinedFunction) as lost:
            connection.execute(create)
        return str(lost.value.diag.message_hint)

    eventually(lambda: back in hint())
    eventually(lambda: connection.execute("SELECT pgtrickle._lease_holder('scheduler')").fetchone() == (None,))
    for statement in (
        "SUBSCRIBE t",
        "CREATE SOURCE c FROM LOAD GENERATOR COUNTER",
        "ALTER TABLE t SET (RETAIN HISTORY FOR '1 hour')",
    ):
        with pytest.raises(errors.UndefinedObject, match='extension "pg_trickle" does not exist') as failure:
            connection.execute(statement)
        assert failure.value.diag.message_hint == "CREATE EXTENSION pg_trickle makes it anew."
    for statement in ("DROP EXTENSION pg_trickle", "ALTER EXTENSION pg_trickle UPDATE"):
        with pytest.raises(errors.UndefinedObject, match='extension "pg_trickle" does not exist'):
            connection.execute(statement)
    assert connection.execute("DROP EXTENSION IF EXISTS pg_trickle").statusmessage == "DROP EXTENSION"
    assert connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trickle").statusmessage == "CREATE EXTENSION"
    assert connection.execute("SELECT count(*) FROM pgtrickle.pgt_refresh_history").fetchone() == (0,)
    connection.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT sum(n) AS total FROM t', '1s')")
    connection.execute("INSERT INTO t VALUES (3, 30)")
    eventually(lambda: connection.execute("SELECT total FROM s").fetchone() == (60,))
    trackers = "SELECT count(*) > 5 FROM pg_event_trigger WHERE evtname LIKE 'pg\\_trickle%'"
    assert connection.execute(trackers).fetchone() == (True,)
    assert filled.value("SELECT count(*) FROM pgtrickle.pgt_uninstalled") == 0


def test_a_drop_of_stream_tables_that_is_rolled_back_has_not_been(filled: Database) -> None:
    connection = filled.connect(autocommit=False)
    before = filled.rows(LEFT)
    connection.execute("DROP EXTENSION pg_trickle CASCADE")
    assert connection.execute("SELECT to_regclass('s')").fetchone() == (None,)
    connection.rollback()
    connection.execute("SAVEPOINT a; DROP EXTENSION pg_trickle CASCADE; ROLLBACK TO a")
    connection.execute("INSERT INTO t VALUES (3, 30); SELECT pgtrickle.refresh_stream_table('s')")
    connection.commit()
    assert filled.rows(LEFT) == before
    assert filled.value("SELECT total FROM s") == 60
    assert filled.value("SELECT count(*) FROM pgtrickle.pgt_uninstalled") == 0


def test_a_snapshot_that_may_be_too_old_drops_no_stream_tables(filled: Database) -> None:
    connection = filled.connect(autocommit=False)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(errors.ActiveSqlTransaction, match="above READ COMMITTED"):
        connection.execute("DROP EXTENSION pg_trickle CASCADE")
    connection.rollback()
    assert filled.value("SELECT total FROM s") == 30


def test_who_is_creating_a_stream_table_finds_the_extension_gone(db: Database, eventually: Callable[..., Any]) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, n int)")
    dropping, creating = db.connect(autocommit=False), db.connect()
    dropping.execute("DROP EXTENSION pg_trickle")
    failures: list[psycopg.Error] = []

    def create() -> None:
        with pytest.raises(psycopg.Error) as failure:
            creating.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT n FROM t')")
        failures.append(failure.value)

    thread = threading.Thread(target=create)
    thread.start()
    eventually(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
    dropping.commit()
    thread.join(60)
    assert [failure.sqlstate for failure in failures] == ["42704"]
    assert db.rows("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'") == [
        ("t",)
    ]


def test_a_stream_table_that_is_being_made_is_seen_by_who_drops(db: Database, eventually: Callable[..., Any]) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, n int)")
    creating, dropping = db.connect(autocommit=False), db.connect()
    creating.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT n FROM t')")
    failures: list[psycopg.Error] = []

    def drop() -> None:
        with pytest.raises(psycopg.Error) as failure:
            dropping.execute("DROP EXTENSION pg_trickle")
        failures.append(failure.value)

    thread = threading.Thread(target=drop)
    thread.start()
    eventually(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
    creating.commit()
    thread.join(60)
    assert [failure.diag.message_detail for failure in failures] == [
        "stream table public.s depends on extension pg_trickle"
    ]


def test_a_refresh_that_is_under_way_is_waited_for(filled: Database) -> None:
    refreshing, dropping = filled.connect(autocommit=False), filled.connect()
    refreshing.execute("INSERT INTO t VALUES (3, 30); SELECT pgtrickle.refresh_stream_table('s')")
    dropping.execute("SET lock_timeout = '200ms'")
    with pytest.raises(errors.LockNotAvailable):
        dropping.execute("DROP EXTENSION pg_trickle CASCADE")
    dropping.execute("RESET lock_timeout")
    thread = threading.Thread(target=lambda: dropping.execute("DROP EXTENSION pg_trickle CASCADE"))
    thread.start()
    refreshing.execute("SELECT total FROM s")
    refreshing.commit()
    thread.join(60)
    assert filled.value("SELECT to_regclass('s') IS NULL AND to_regclass('above') IS NULL")
    assert filled.value("SELECT sum(n) FROM t") == 60


def test_sources_histories_and_dependents_go_with_cascade(db: Database) -> None:
    connection = db.connect()
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    connection.execute("CREATE SOURCE counter FROM LOAD GENERATOR COUNTER")
    connection.execute("ALTER TABLE t SET (RETAIN HISTORY FOR '1 hour')")
    connection.execute("CREATE VIEW failed AS SELECT * FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'")
    connection.execute("CREATE VIEW states AS SELECT name, status FROM pgtrickle.pgt_status()")
    connection.execute("CREATE VIEW of_states AS SELECT name FROM states")
    connection.execute("CREATE VIEW of_failed AS SELECT f.* FROM failed f, pgtrickle.pgt_stream_tables")
    connection.execute(
        "CREATE FUNCTION failures() RETURNS SETOF pgtrickle.pgt_refresh_history"
        " BEGIN ATOMIC SELECT * FROM pgtrickle.pgt_refresh_history; END"
    )
    with pytest.raises(errors.DependentObjectsStillExist) as failure:
        connection.execute("DROP EXTENSION pg_trickle")
    assert str(failure.value.diag.message_detail).splitlines() == [
        f"{name} depends on extension pg_trickle"
        for name in (
            "source public.counter",
            "history of public.t",
            "function public.failures()",
            "rule _RETURN on view public.failed",
            "rule _RETURN on view public.of_failed",
            "rule _RETURN on view public.states",
        )
    ]
    connection.execute("DROP EXTENSION pg_trickle CASCADE")
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')"
    assert connection.execute(left).fetchall() == [("t",)]
    assert connection.execute("SELECT to_regproc('failures')").fetchone() == (None,)
    with pytest.raises(errors.UndefinedObject):
        connection.execute("SUBSCRIBE (SELECT * FROM t) AS OF AT LEAST 0")


def test_what_cannot_be_dropped_on_the_way_is_refused(db: Database) -> None:
    db.run("CREATE TABLE mine (row pgtrickle.pgt_refresh_history)")
    with pytest.raises(errors.DependentObjectsStillExist) as failure:
        db.run("DROP EXTENSION pg_trickle CASCADE")
    assert failure.value.diag.message_hint == "Drop it by a statement of its own."
    assert db.value("SELECT to_regprocedure('pgtrickle.version()') IS NOT NULL")


def test_dropping_stream_tables_needs_the_rights_of_an_owner(filled: Database, role: ROLE) -> None:
    alice = role("alice")
    name = alice.info.user
    filled.run(f"GRANT CREATE ON DATABASE {filled.name} TO {name}")
    with pytest.raises(errors.InsufficientPrivilege, match="must be owner of extension pg_trickle"):
        alice.execute("DROP EXTENSION pg_trickle CASCADE")
    for call in ("_drop_contents()", "_drop_interface(true)", "_lock_contents()", "_contents()", "_drop_dependents()"):
        with pytest.raises(errors.InsufficientPrivilege):
            alice.execute(f"SELECT pgtrickle.{call}")
    with pytest.raises(errors.InsufficientPrivilege):
        alice.execute("INSERT INTO pgtrickle.pgt_uninstalled VALUES ('pg_trickle')")
    filled.run("DROP EXTENSION pg_trickle CASCADE")
    assert alice.execute("CREATE EXTENSION pg_trickle").statusmessage == "CREATE EXTENSION"
    filled.run("DROP EXTENSION pg_trickle")
    filled.run(f"REVOKE CREATE ON DATABASE {filled.name} FROM {name}")
    with pytest.raises(errors.InsufficientPrivilege, match='permission denied to create extension "pg_trickle"'):
        alice.execute("CREATE EXTENSION pg_trickle")


def test_stream_tables_of_all_owners_go(db: Database, role: ROLE) -> None:
    db.run("GRANT CREATE ON SCHEMA public TO PUBLIC")
    alice = role("alice")
    alice.execute("CREATE TABLE a (id int PRIMARY KEY)")
    alice.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT count(*) AS n FROM a', '1h')")
    db.run("DROP EXTENSION pg_trickle CASCADE")
    assert db.value("SELECT to_regclass('s') IS NULL")
    assert alice.execute("INSERT INTO a VALUES (1)").rowcount == 1
    alice.close()


def test_a_subscription_ends_with_an_error_and_its_capture_with_it(
    db: Database, eventually: Callable[..., Any]
) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    reader = db.connect(autocommit=False)
    reader.execute("DECLARE c CURSOR FOR SUBSCRIBE t")
    assert reader.execute("FETCH 1 c WITH (timeout = '1s')").fetchall() == []
    db.run("DROP EXTENSION pg_trickle")
    with pytest.raises(errors.UndefinedObject, match='extension "pg_trickle" does not exist'):
        for _ in range(60):
            reader.execute("FETCH 1 c WITH (timeout = '1s')").fetchall()
    reader.rollback()
    eventually(lambda: db.value("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass") == 0)


def test_queues_and_registers_go_on_without_stream_tables(db: Database, eventually: Callable[..., Any]) -> None:
    connection = db.connect()
    connection.execute("DROP EXTENSION pg_trickle")
    connection.execute("SELECT pgque.create_queue('q'), pgque.subscribe('q', 'c')")
    connection.execute("SELECT pgque.send('q', 'x', '{}'::jsonb)")
    eventually(lambda: connection.execute("SELECT count(*) FROM pgque.receive('q', 'c', 10)").fetchone() == (1,))
    connection.execute("""SELECT accum.register_create('cash', '{"a": "int"}', '{"n": "int"}', high_write := true)""")
    connection.execute(
        """SELECT accum.register_post('cash', '{"recorder": "r", "period": "2026-04-18", "a": 1, "n": 2}')"""
    )
    merged = "SELECT count(*) FROM accum.cash_balance_cache_delta"
    eventually(lambda: connection.execute(merged).fetchone() == (0,))
    assert connection.execute("SELECT accum.cash_balance()::text").fetchone() == ('{"n": 2}',)
    assert connection.execute("DROP EXTENSION pgque, pg_accumulator").statusmessage == "DROP EXTENSION"
    for name in ("pgque", "pg_accumulator", "pg_trickle"):
        assert connection.execute(f"CREATE EXTENSION {name}").statusmessage == "CREATE EXTENSION"


def test_statements_of_one_string_make_and_drop_extensions(db: Database) -> None:
    connection = db.connect()
    connection.execute("CREATE SCHEMA books; CREATE EXTENSION pg_accumulator SCHEMA books; CREATE TABLE t (n int)")
    assert connection.execute("SELECT count(*) FROM books.register_list()").fetchone() == (0,)
    assert connection.execute("SELECT to_regclass('t') IS NOT NULL").fetchone() == (True,)
    for name in ("pg_accumulator", "pgque", "pg_trickle"):
        connection.execute(f"DROP EXTENSION {name} CASCADE; CREATE EXTENSION {name}")
        connection.execute(f"DROP EXTENSION {name}")
        connection.execute(f"BEGIN; CREATE EXTENSION {name}; COMMIT")
    connection.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT count(*) AS n FROM t')")
    assert connection.execute("SELECT n FROM s").fetchone() == (0,)


def test_what_a_transaction_block_has_done_is_not_seen_by_the_server(db: Database) -> None:
    connection = db.connect(autocommit=False)
    for before, name, schema in (
        ("CREATE SCHEMA books", "pg_accumulator", "SCHEMA books"),
        ("DROP EXTENSION pg_accumulator", "pg_accumulator", ""),
        ("DROP EXTENSION pgque", "pgque", ""),
        ("DROP EXTENSION pg_trickle", "pg_trickle", ""),
    ):
        connection.execute(before)
        began = time.monotonic()
        with pytest.raises(errors.ActiveSqlTransaction, match=f'extension "{name}" cannot be created in the transac'):
            connection.execute(f"CREATE EXTENSION {name} {schema}")
        assert time.monotonic() - began < 4, "it has waited for a lock"
        connection.rollback()


def told(server: Headwater) -> tuple[str, str]:
    """What psql is told as it connects, and the extensions that PostgreSQL shows."""
    shown = "SELECT extname FROM pg_extension WHERE extname LIKE 'pg\\_%' OR extname = 'pgque' ORDER BY 1"
    psql = [str(binaries() / "psql"), server.dsn(), "-XAt", "-c", shown]
    done = subprocess.run(psql, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def restarted(server: Headwater) -> None:
    server.stop()
    server.start()


def test_what_was_dropped_stays_away_when_clients_and_servers_come_back(
    own_server: Headwater, eventually: Callable[..., Any]
) -> None:
    names = ("pg_trickle", "pgque", "pg_accumulator")
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT count(*) AS n FROM t', '1s')")
        connection.execute("DROP EXTENSION pg_trickle, pgque, pg_accumulator CASCADE")
    for again in (lambda: None, lambda: restarted(own_server)):
        again()
        shown, said = eventually(lambda: (answer := told(own_server))[1] and answer)
        if not OTHER_PROGRAMS:
            assert shown == ""
        assert all(f"CREATE EXTENSION {name} makes them anew" in said for name in names)
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:
        left = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^(pgque|accum)'").fetchall()
        assert left == []
        for call in ("pgtrickle.create_stream_table('s', 'SELECT 1')", "pgque.create_queue('q')"):
            with pytest.raises((errors.UndefinedFunction, errors.InvalidSchemaName)):
                connection.execute(f"SELECT {call}")
        for name in names:
            assert connection.execute(f"CREATE EXTENSION {name}").statusmessage == "CREATE EXTENSION"
    for again in (lambda: None, lambda: restarted(own_server)):
        again()
        assert told(own_server)[1] == ""
    assert "failed" not in own_server.log


@pytest.mark.long
def test_a_server_that_is_killed_behind_a_drop_ends_what_is_left_when_it_comes_back(
    own_server: Headwater, eventually: Callable[..., Any]
) -> None:
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:
        connection.execute("ALTER DATABASE postgres SET pg_trickle.cdc_mode = 'auto'")
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT count(*) AS n FROM t', '1s')")
        slots = "SELECT count(*) FROM pg_replication_slots"
        mode = "SELECT cdc_mode FROM pgtrickle.check_cdc_health()"
        eventually(lambda: connection.execute(mode).fetchone() == ("WAL",), 90)
        assert connection.execute(slots).fetchone() == (1,)
        connection.execute("DROP EXTENSION pg_trickle CASCADE")
    own_server.kill()
    own_server.start()
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:
        eventually(lambda: connection.execute(slots).fetchone() == (0,), 90)
        eventually(lambda: connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,), 90)
        identity = "SELECT relreplident::text FROM pg_class WHERE oid = 't'::regclass"
        assert connection.execute(identity).fetchone() == ("d",)
        assert connection.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM pgtrickle.pgt_captures").fetchone() == (0,)


def test_commands_say_that_stream_tables_are_uninstalled(own_server: Headwater) -> None:
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:
        connection.execute("DROP EXTENSION pg_trickle, pgque")
    command = [sys.executable, "-m", "server", "status", "--data", str(own_server.data)]
    status = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"})
    assert status.stdout.count("uninstalled") == 1, status.stdout


@pytest.mark.long
def test_two_servers_and_a_role_that_is_no_superuser(
    own_server: Headwater, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """One server drops what the other is at work on; their role owns the schemas, and may act as alice."""
    with psycopg.connect(own_server.direct_dsn(), autocommit=True) as admin:
        for statement in (
            "CREATE ROLE plain LOGIN PASSWORD 'secret'",
            "CREATE ROLE alice LOGIN PASSWORD 'secret'",
            "GRANT alice TO plain",
            "CREATE DATABASE shop",
            "GRANT CREATE ON DATABASE shop TO plain",
        ):
            admin.execute(statement)
    login = conninfo.conninfo_to_dict(own_server.direct_dsn())
    url = f"postgresql://plain:secret@/shop?host={login['host']}&port={login['port']}"
    servers = [Headwater(tmp_path / name / "data", "--postgres", url) for name in ("first", "second")]
    plain = {"user": "plain", "password": "secret", "host": "127.0.0.1", "dbname": "shop"}
    try:
        for server in servers:
            server.data.parent.mkdir()
            server.start()
        one, two = (
            psycopg.connect(conninfo.make_conninfo(**plain, port=server.port), autocommit=True) for server in servers
        )
        with psycopg.connect(own_server.direct_dsn("shop"), autocommit=True) as admin:
            admin.execute("GRANT CREATE, USAGE ON SCHEMA public TO alice")
        alice = psycopg.connect(
            conninfo.make_conninfo(**plain | {"user": "alice"}, port=servers[1].port), autocommit=True
        )
        alice.execute("CREATE TABLE a (id int PRIMARY KEY)")
        alice.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT count(*) AS n FROM a', '1s')")
        with pytest.raises(errors.InsufficientPrivilege, match="must be owner of extension pg_trickle"):
            alice.execute("DROP EXTENSION pg_trickle CASCADE")
        one.execute("DROP EXTENSION pg_trickle CASCADE")
        assert alice.execute("SELECT to_regclass('s')").fetchone() == (None,)
        with pytest.raises(errors.UndefinedFunction):
            two.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT 1 AS n')")
        assert alice.execute("INSERT INTO a VALUES (1)").rowcount == 1
        two.execute("CREATE EXTENSION pg_trickle")
        alice.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT count(*) AS n FROM a', '1s')")
        alice.execute("INSERT INTO a VALUES (2)")
        eventually(lambda: alice.execute("SELECT n FROM s").fetchone() == (2,))
        for connection in (one, two, alice):
            connection.close()
    finally:
        for server in servers:
            if server.process is not None:
                server.stop()


def test_writers_go_on_where_an_immediate_stream_table_was(db: Database, eventually: Callable[..., Any]) -> None:
    connection = db.connect()
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    connection.execute(
        "SELECT pgtrickle.create_stream_table('s', 'SELECT sum(n) AS total FROM t', refresh_mode => 'IMMEDIATE')"
    )
    connection.execute("INSERT INTO t VALUES (1, 10)")
    assert connection.execute("SELECT total FROM s").fetchone() == (10,)
    connection.execute("BEGIN; DROP EXTENSION pg_trickle CASCADE; INSERT INTO t VALUES (2, 20); COMMIT")
    connection.execute("UPDATE t SET n = n + 1; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (3, 30)")
    assert connection.execute("SELECT array_agg(n ORDER BY id) FROM t").fetchone() == ([21, 30],)
    eventually(lambda: connection.execute("SELECT FROM pg_trigger WHERE tgrelid = 't'::regclass").fetchall() == [])
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'pgtrickle_changes'::regnamespace AND relkind = 'r'"
    eventually(lambda: connection.execute(left).fetchall() == [])
