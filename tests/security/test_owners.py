"""What the owner of one thing says, or has done by code of his, holds up nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Role = Callable[..., psycopg.Connection[Any]]
Eventually = Callable[..., Any]


@pytest.fixture
def db(emptied_db: Database) -> Database:
    return emptied_db


def test_no_role_can_lock_the_requests_of_others(db: Database, role: Role) -> None:
    mallory, bob = role("mallory"), role("bob")
    mallory.execute("BEGIN")
    with pytest.raises(psycopg.errors.InsufficientPrivilege), mallory.transaction():
        mallory.execute("LOCK TABLE pgtrickle.pgt_requests IN ACCESS EXCLUSIVE MODE")
    bob.execute("SET statement_timeout = '60s'; CREATE TABLE t (id int PRIMARY KEY)")
    bob.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM t')")
    mallory.execute("ROLLBACK")


@pytest.mark.parametrize(
    "request_",
    [
        "SELECT pgtrickle.create_stream_table('st', 'SELECT 1 AS a /* ' || repeat('x', 1048576) || ' */')",
        "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path) VALUES ('drop', '{}', repeat('x', 1048576))",
    ],
)
def test_request_that_is_long_is_refused(db: Database, role: Role, request_: str) -> None:
    """The server reads it as a whole, on the thread that relays for all."""
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        role("mallory").execute(request_.encode())


def test_any_period_of_history_leaves_others_theirs(db: Database, role: Role, eventually: Eventually) -> None:
    """Of two relations over one table, whose histories are retained for different periods."""
    mallory = role("mallory")
    db.run("CREATE TABLE t (id int); GRANT SELECT ON t TO PUBLIC")
    mallory.execute("CREATE VIEW v AS SELECT id FROM t")
    db.run("SELECT pgtrickle.retain_history('t', '1 hour')")
    mallory.execute("SELECT pgtrickle.retain_history('v', '170000000 years')")
    held = "SELECT max(held_from) FROM pgtrickle.history_status() HAVING count(held_from) = 2"
    ((since,),) = eventually(lambda: db.rows(held), what="both are held")
    db.run("INSERT INTO t VALUES (1)")
    with db.connect().cursor().copy(f"COPY (SUBSCRIBE t AS OF {since}) TO STDOUT".encode()) as copy:
        assert bytes(next(iter(copy))).split(b"\t")[1:] == [b"1", b"1\n"]


@pytest.mark.long
def test_trigger_that_does_not_end_stops_no_other_source(db: Database, role: Role, eventually: Eventually) -> None:
    mallory, bob = role("mallory"), role("bob")
    mallory.execute("CREATE SOURCE held FROM LOAD GENERATOR COUNTER (TICK INTERVAL '0.1s')")
    bob.execute("CREATE SOURCE ticking FROM LOAD GENERATOR COUNTER (TICK INTERVAL '0.1s')")
    mallory.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOOP"
        " BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$;"
        "CREATE TRIGGER hold AFTER INSERT ON held FOR EACH STATEMENT EXECUTE FUNCTION hold()"
    )
    failed = "SELECT error FROM pgtrickle.source_status() WHERE name = 'public.held' AND error IS NOT NULL"
    eventually(lambda: db.rows(failed), what="the tick is given up")
    ticked = bob.execute("SELECT count(*) FROM ticking").fetchone()
    eventually(lambda: bob.execute("SELECT count(*) FROM ticking").fetchone() != ticked, what="another tick")
    time.sleep(1)  # the session has been ended
    busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    eventually(lambda: db.value(busy) <= 1, what="one at a time")


def test_what_a_role_writes_down_does_not_stop_the_scheduler(db: Database, role: Role, eventually: Eventually) -> None:
    """Stream tables that are said to read each other, and requests that Python cannot read."""
    mallory, bob = role("mallory"), role("bob")
    for owner, table in ((mallory, "ms"), (bob, "bs")):
        owner.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)".encode())
    for name in ("m1", "m2"):
        mallory.execute("SELECT pgtrickle.create_stream_table(%s, 'SELECT id FROM ms')", [name])
    for name, read in (("m1", "m2"), ("m2", "m1")):
        mallory.execute(
            "SELECT pgtrickle._set_dependencies(pgtrickle._resolve(%s), jsonb_build_array("
            "jsonb_build_object('relid', %s::regclass::oid::bigint, 'columns', '[]'::jsonb)))",
            [name, read],
        )
    mallory.execute("SET headwater.relay = off")  # as if it bypassed the server
    for arguments in ("repeat('[', 2500) || repeat(']', 2500)", "repeat('1', 5000)"):
        mallory.execute(f"SELECT pgtrickle._request('drop', ({arguments})::jsonb, '')".encode())
    bob.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM bs', '1s')")
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.enabled = on")
    bob.execute("INSERT INTO bs VALUES (1)")
    eventually(lambda: bob.execute("SELECT id FROM st").fetchall() == [(1,)], what="a scheduled refresh")
    failed = "SELECT count(*) FROM pgtrickle.pgt_request_errors WHERE error_state = '22023'"
    eventually(lambda: db.value(failed) == 2, what="the requests are refused")
