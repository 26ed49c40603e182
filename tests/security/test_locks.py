"""No role can take a lock that the engine waits for, or make itself look elected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Role = Callable[..., psycopg.Connection[Any]]
Eventually = Callable[..., Any]

TABLES = (
    "pgt_leases",
    "pgt_source_locks",
    "pgt_name_locks",
    "pgt_timeline_lock",
    "pgt_role_functions_lock",
    "pgt_circles_lock",
)


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


def test_functions_of_the_catalog_take_no_advisory_lock(db: Database) -> None:
    """But for those that count and put back what a session holds itself: no other role can be in their way. And those
    that show a refresh under way, or a turn that the scheduler claims (what others lock counts for nothing there, see
    test_who_gives_way_to_a_group), which wait for nobody.

    Those of queues and registers are looked at where they are tested.
    """
    found = db.rows(
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname ~ '^pgtrickle' AND p.prosrc ~ 'pg_(try_)?advisory_(xact_)?lock|locktype = ''advisory'''"
    )
    assert sorted(name for (name,) in found) == [
        "pgtrickle._claim_turn(bigint[])",
        "pgtrickle._give_way(bigint,text)",
        "pgtrickle._is_claimed(bigint)",
        "pgtrickle._note_progress(bigint,integer,text)",
        "pgtrickle._refreshes_under_way()",
        "pgtrickle._restore_session(text[],jsonb)",
        "pgtrickle._session_locks()",
    ]


@pytest.mark.parametrize("table", TABLES)
def test_no_role_can_lock_or_write_what_is_there_to_be_locked(db: Database, role: Role, table: str) -> None:
    mallory = role("mallory")
    for statement in (
        f"LOCK TABLE pgtrickle.{table} IN ROW SHARE MODE",
        f"LOCK TABLE pgtrickle.{table} IN EXCLUSIVE MODE",
        f"SELECT * FROM pgtrickle.{table} FOR KEY SHARE",
        f"DELETE FROM pgtrickle.{table}",
        f"INSERT INTO pgtrickle.{table} DEFAULT VALUES",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), mallory.transaction():
            mallory.execute(statement.encode())


@pytest.mark.parametrize(
    "call",
    [
        "_take_lease('scheduler', true)",
        "_remove_lost_leases()",
        "_share_source(1)",
        "_own_source(1)",
        "_lock_privileges(1)",
        "_tidy_source_locks()",
        "_is_session(1, now(), 10)",
    ],
)
def test_no_role_can_call_what_takes_them(db: Database, role: Role, call: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role("mallory").execute(f"SELECT pgtrickle.{call}".encode())


def test_squatted_advisory_locks_stop_nothing(live_db: Database, eventually: Eventually) -> None:
    live_db.run("CREATE ROLE squatter LOGIN PASSWORD 'secret'")
    try:
        squatter = live_db.bypass(user="squatter", password="secret")
        live_db.run("CREATE TABLE t (id int PRIMARY KEY)")
        oid = live_db.value("SELECT 't'::regclass::oid::bigint")
        squatter.execute("BEGIN")
        # What an earlier version used: its elections, its clock, the refreshes' keys, the source's, and the timeline's.
        for key in (0x4865616477617465, 0x70677175655F636C, 0x706761636D61696E, 8099570498233003621, *range(1, 50)):
            squatter.execute("SELECT pg_advisory_lock(%s::bigint)", [key])
        for n in range(3):
            squatter.execute("SELECT pg_advisory_lock(%s::int, %s::int)", [1885824099 + n, oid if n < 2 else 0])
        squatter.execute('SELECT pg_advisory_lock(hashtextextended(\'pgtrickle "public"."st"\', 0))')
        # Nothing of it is in the way of who refreshes, schedules, ticks, or starts to capture.
        live_db.run("SET statement_timeout = '60s'")
        live_db.create("st", "SELECT id FROM t", schedule="1s")
        live_db.run("INSERT INTO t VALUES (1)")
        eventually(lambda: live_db.rows("SELECT id FROM st") == [(1,)], what="a scheduled refresh")
        eventually(lambda: live_db.value("SELECT pgtrickle._lease_holder('scheduler')"))
        live_db.run("SELECT pgque.create_queue('q'), pgque.subscribe('q', 'c'), pgque.send('q', 'x')")
        eventually(lambda: live_db.rows("SELECT payload FROM pgque.receive('q', 'c', 10)"), what="a tick")
        with live_db.connect().cursor().copy("COPY (SUBSCRIBE t) TO STDOUT") as copy:
            assert bytes(next(iter(copy))).split(b"\t")[1:] == [b"1", b"1\n"]
        squatter.close()
    finally:
        live_db.close()
        with psycopg.connect(live_db.server.dsn(), autocommit=True) as connection:
            connection.execute("DROP ROLE squatter")


def test_lease_of_a_session_that_has_ended_is_free(db: Database, eventually: Eventually) -> None:
    first, second = db.bypass(), db.bypass()
    take = "SELECT pgtrickle._take_lease('a test')"
    assert first.execute(take).fetchone() == (True,)
    assert second.execute(take).fetchone() == (False,)
    first.execute("SELECT pg_advisory_unlock_all()")
    first.execute("DISCARD ALL")
    assert second.execute(take).fetchone() == (False,)
    first.close()
    eventually(lambda: second.execute(take).fetchone() == (True,))
    # Nor does another session count that happens to have the same number.
    second.execute("UPDATE pgtrickle.pgt_leases SET backend_start = backend_start - interval '1 s'")
    assert second.execute("SELECT pgtrickle._lease_holder('a test')").fetchone() == (None,)
