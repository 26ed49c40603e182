"""Commits in two phases: a transaction with engine requests in it can be prepared, and is ended by any session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.e2e.conftest import Database, Headwater, drop_role

Eventually = Callable[..., Any]

SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM t GROUP BY k"
CREATE = f"SELECT pgtrickle.create_stream_table('sums', '{SUMS}', '1s')"
SOURCE = "CREATE TABLE t (id int PRIMARY KEY, k int, v int)"
ROWS = "INSERT INTO t SELECT n, n % 3, n FROM generate_series(1, 9) AS n"


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture
def busy(live_db: Database) -> Iterator[Database]:
    """A database with a source, whose scheduler is at work; nothing may be prepared when it is dropped."""
    live_db.run(SOURCE)
    live_db.run(ROWS)
    yield live_db
    with psycopg.connect(live_db.server.dsn(live_db.name), autocommit=True) as connection:
        prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        for (gid,) in connection.execute(prepared).fetchall():
            connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


@pytest.fixture
def quiet(busy: Database) -> Database:
    """The same, where nothing is refreshed but by hand."""
    busy.run(f"ALTER DATABASE {busy.name} SET pg_trickle.enabled = off")
    return busy


def prepare(connection: psycopg.Connection[Any], *statements: str, gid: str = "both") -> None:
    """Run the statements in a transaction, and prepare it; the session ends."""
    for statement in ("BEGIN", *statements, f"PREPARE TRANSACTION '{gid}'"):
        connection.execute(statement.encode())
    assert connection.info.transaction_status == TransactionStatus.IDLE
    connection.close()


@pytest.mark.parametrize("connect", [Database.connect, Database.bypass])
def test_stream_table_of_a_prepared_transaction_is_maintained_once_it_is_committed(
    busy: Database, eventually: Eventually, connect: Callable[[Database], psycopg.Connection[Any]]
) -> None:
    prepare(busy.connect(), CREATE)
    assert busy.value("SELECT to_regclass('sums')") is None
    connect(busy).execute("COMMIT PREPARED 'both'")
    busy.assert_current("sums")
    busy.run("INSERT INTO t VALUES (10, 0, 100)")
    eventually(lambda: busy.difference("sums") == [])
    assert busy.value("SELECT total FROM sums WHERE k = 0") == 118


def test_of_a_prepared_transaction_that_is_rolled_back_nothing_is_left(quiet: Database) -> None:
    before = quiet.traces()
    prepare(quiet.connect(), CREATE)
    quiet.run("ROLLBACK PREPARED 'both'")
    assert [trace for trace in quiet.traces() if not trace.startswith(("capture", "trigger", "relation"))] == [
        trace for trace in before if not trace.startswith(("capture", "trigger", "relation"))
    ]
    quiet.create("sums", SUMS)
    quiet.run("INSERT INTO t VALUES (10, 0, 100)")
    quiet.assert_differential("sums")


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_altered_in_a_prepared_transaction(quiet: Database, end: str) -> None:
    quiet.create("sums", SUMS)
    prepare(
        quiet.connect(),
        "INSERT INTO t VALUES (10, 0, 100)",
        "SELECT pgtrickle.alter_stream_table('sums', refresh_mode => 'FULL', schedule => '1h')",
    )
    quiet.run(f"{end} PREPARED 'both'")
    altered = ("FULL", "1h", 118) if end == "COMMIT" else ("AUTO", "calculated", 18)
    quiet.run("INSERT INTO t VALUES (11, 1, 200)")
    quiet.assert_refreshed("sums")
    found = "SELECT requested_mode, schedule, total FROM pgtrickle.pgt_stream_tables, sums WHERE k = 0"
    assert quiet.rows(found) == [altered]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_dropped_in_a_prepared_transaction(quiet: Database, end: str) -> None:
    quiet.create("sums", SUMS)
    prepare(quiet.connect(), "SELECT pgtrickle.drop_stream_table('sums')")
    quiet.run(f"{end} PREPARED 'both'")
    if end == "COMMIT":
        assert quiet.value("SELECT to_regclass('sums')") is None
        quiet.create("sums", SUMS)
    quiet.run("INSERT INTO t VALUES (10, 0, 100)")
    quiet.assert_differential("sums")


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("mode", ["DIFFERENTIAL", "FULL"])
def test_refreshed_in_a_prepared_transaction(quiet: Database, mode: str, end: str) -> None:
    quiet.create("sums", SUMS, refresh_mode=mode)
    quiet.run("INSERT INTO t VALUES (10, 0, 100)")
    prepare(
        quiet.connect(),
        "INSERT INTO t VALUES (11, 0, 200)",
        "SELECT pgtrickle.refresh_stream_table('sums')",
        "UPDATE t SET v = v + 1 WHERE id = 11",
    )
    quiet.run("INSERT INTO t VALUES (12, 0, 300)")
    quiet.run(f"{end} PREPARED 'both'")
    quiet.assert_refreshed("sums")
    assert quiet.value("SELECT total FROM sums WHERE k = 0") == 418 + (201 if end == "COMMIT" else 0)


def test_reinitialised_in_a_prepared_transaction(quiet: Database) -> None:
    quiet.create("sums", "SELECT k, count(v) AS n FROM t GROUP BY k")
    prepare(
        quiet.connect(),
        "ALTER TABLE t ALTER COLUMN v TYPE bigint",
        "SELECT pgtrickle.refresh_stream_table('sums')",
    )
    quiet.run("COMMIT PREPARED 'both'")
    quiet.run("INSERT INTO t VALUES (10, 0, 100000000000)")
    quiet.assert_refreshed("sums")


def test_session_that_listens_can_refresh_in_a_prepared_transaction(quiet: Database) -> None:
    quiet.create("sums", SUMS)
    connection = quiet.connect()
    connection.execute("LISTEN mine")
    prepare(connection, "INSERT INTO t VALUES (10, 0, 100)", "SELECT pgtrickle.refresh_stream_table('sums')")
    quiet.run("COMMIT PREPARED 'both'")
    quiet.assert_current("sums")


def test_in_another_role_than_the_sessions_own(quiet: Database) -> None:
    quiet.run("CREATE ROLE two_phase_owner; GRANT CREATE ON SCHEMA public TO two_phase_owner")
    try:
        quiet.run("GRANT SELECT ON t TO two_phase_owner")
        prepare(quiet.connect(), "SET LOCAL ROLE two_phase_owner", CREATE)
        quiet.run("COMMIT PREPARED 'both'")
        quiet.run("INSERT INTO t VALUES (10, 0, 100)")
        prepare(quiet.connect(), "SELECT pgtrickle.refresh_stream_table('sums')")
        quiet.run("COMMIT PREPARED 'both'")
        quiet.assert_current("sums")
    finally:
        drop_role(quiet.connection, "two_phase_owner")


def test_temporary_source_is_refused_without_a_notice(quiet: Database) -> None:
    connection = quiet.connect()
    connection.execute("CREATE TEMPORARY TABLE mine (id int PRIMARY KEY)")
    told: list[str | None] = []
    connection.add_notice_handler(lambda diagnostic: told.append(diagnostic.message_primary))
    with pytest.raises(psycopg.errors.FeatureNotSupported, match='temporary relation "mine" cannot be a source'):
        connection.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT id FROM mine')")
    assert told == []


def test_committed_while_no_server_runs(own_server: Headwater, own_db: Database, eventually: Eventually) -> None:
    own_db.run(SOURCE)
    own_db.run(ROWS)
    prepare(own_db.connect(), CREATE)
    own_db.close()
    own_server.stop()
    own_server.start()
    restarted = Database(own_server, "postgres")
    restarted.bypass().execute("COMMIT PREPARED 'both'")
    restarted.bypass().execute("INSERT INTO t VALUES (10, 0, 100)")
    eventually(lambda: restarted.difference("sums") == [])
    assert restarted.value("SELECT total FROM sums WHERE k = 0") == 118
    restarted.close()


def test_alert_cannot_be_sent_in_two_phases_and_postgresql_says_so(quiet: Database) -> None:
    quiet.create("sums", SUMS)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="executed LISTEN, UNLISTEN, or NOTIFY"):
        prepare(quiet.connect(), "SELECT pgtrickle.alter_stream_table('sums', status => 'SUSPENDED')")
    assert quiet.state("sums")["status"] == "ACTIVE"


def test_role_that_may_create_nothing_can_have_a_query_explained(
    quiet: Database, role: Callable[..., psycopg.Connection[Any]]
) -> None:
    """The query is analysed in a temporary view then."""
    reader = role("reader")
    quiet.run(f"REVOKE CREATE ON SCHEMA public FROM {reader.info.user}; GRANT SELECT ON t TO {reader.info.user}")
    call = "SELECT pgtrickle._analysed('SELECT k FROM t', 'public', '{definition}', false)->>'definition'"
    assert reader.execute(call).fetchall() == [(" SELECT k\n   FROM public.t".strip(),)]
    assert quiet.value("SELECT count(*) FROM pg_class WHERE relname LIKE '\\_\\_pgt\\_definition%%'") == 0


@pytest.mark.parametrize("extended", [False, True])
def test_in_either_protocol(quiet: Database, extended: bool) -> None:
    connection = quiet.connect()
    for statement in ("BEGIN", CREATE, "PREPARE TRANSACTION 'both'"):
        connection.execute(statement.encode(), prepare=extended, binary=extended)
    quiet.run("COMMIT PREPARED 'both'")
    quiet.assert_current("sums")


def test_in_one_string_or_pipeline(quiet: Database) -> None:
    connection = quiet.connect()
    connection.execute(f"BEGIN; {CREATE}; PREPARE TRANSACTION 'both'".encode())
    connection.execute("COMMIT PREPARED 'both'")
    quiet.assert_current("sums")
    with connection.pipeline():
        for statement in (
            "BEGIN",
            "INSERT INTO t VALUES (10, 0, 100)",
            "SELECT pgtrickle.refresh_stream_table('sums')",
            "PREPARE TRANSACTION 'both'",
        ):
            connection.execute(statement.encode())
    connection.execute("COMMIT PREPARED 'both'")
    quiet.assert_current("sums")
    assert quiet.value("SELECT total FROM sums WHERE k = 0") == 118


def test_what_others_write_while_it_is_prepared_is_not_lost(
    busy: Database, role: Callable[..., psycopg.Connection[Any]]
) -> None:
    """The role may not lock the table: its changes are captured from before, so nobody waits."""
    reader = role("reader")
    busy.run(f"GRANT SELECT ON t TO {reader.info.user}")
    prepare(reader, CREATE)
    busy.run("INSERT INTO t VALUES (10, 0, 100)")
    busy.run("SELECT pg_sleep(3)")  # for what ends captures that nobody needs
    busy.run("INSERT INTO t VALUES (11, 0, 100)")
    busy.run("COMMIT PREPARED 'both'")
    busy.assert_differential("sums")
    assert busy.value("SELECT total FROM sums WHERE k = 0") == 218
