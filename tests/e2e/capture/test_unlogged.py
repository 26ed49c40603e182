"""PostgreSQL empties unlogged tables when it recovers from a crash, and tells nobody."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from engine.subscribe.hub import NOT_LATER
from tests.e2e.conftest import Database, Headwater
from tests.e2e.reliability.test_crash_recovery import connected, kill

Eventually = Callable[..., Any]

SOURCES = """
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, v int);
CREATE TABLE parted (id int, v int) PARTITION BY RANGE (id);
CREATE TABLE logged_part PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE UNLOGGED TABLE unlogged_part PARTITION OF parted DEFAULT;
INSERT INTO u SELECT n, n FROM generate_series(1, 20) AS n;
INSERT INTO parted SELECT n, n FROM generate_series(1, 20) AS n;
"""
REGISTER = """
SELECT accum.register_create(name => 'hw', dimensions => '{"item": "text"}', resources => '{"n": "numeric"}',
                             high_write => true);
SELECT accum.register_post('hw', '{"recorder": "d:1", "period": "2026-01-02", "item": "a", "n": 5}'::jsonb)
"""


def told(db: Database, subscribe: str) -> list[bytes]:
    """The updates of a subscription that has an end."""
    with db.connection.cursor() as cursor, cursor.copy(f"COPY ({subscribe}) TO STDOUT".encode()) as copied:
        return [bytes(part) for part in copied]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "scheduled"])
def test_stream_tables_lose_what_a_crash_has_emptied(
    own_server: Headwater, own_db: Database, eventually: Eventually, by_hand: bool
) -> None:
    db = own_db
    db.run(SOURCES)
    db.run(REGISTER)
    queries = {
        "plain": "SELECT id, v FROM u",
        "summed": "SELECT count(*) AS n, sum(v) AS total FROM u",
        "joined": "SELECT p.id, u.v FROM parted p JOIN u ON u.id = p.id",
        "parts": "SELECT id % 3 AS k, count(*) AS n FROM parted GROUP BY 1",
        "balances": "SELECT item, n FROM accum.hw_balance_cache",
    }
    if by_hand:
        db.run("ALTER DATABASE postgres SET pg_trickle.enabled = off")
    for name, query in queries.items():
        db.create(name, query, schedule="1s")
    for turn in range(2):
        own_db.close()
        kill(own_server, "backend", random.Random(turn))
        with connected(own_server) as db:
            assert db.value("SELECT count(*) FROM u") == 0
            db.run("INSERT INTO u VALUES (15, -1), (100, 7); INSERT INTO parted VALUES (100, 7)")
            db.run(
                "SELECT accum.register_post('hw', %s::jsonb)",
                f'{{"recorder": "d:{turn + 2}", "period": "2026-01-03", "item": "a", "n": 2}}',
            )
            for name in queries:
                if by_hand:
                    db.assert_refreshed(name)
                else:
                    eventually(lambda db=db, name=name: not db.difference(name), what=f"{name} equals its query")
                assert db.state(name)["status"] == "ACTIVE"


def test_clean_restart_empties_nothing_and_computes_nothing_anew(own_server: Headwater, own_db: Database) -> None:
    own_db.run(SOURCES)
    own_db.run("ALTER DATABASE postgres SET pg_trickle.enabled = off")
    own_db.create("plain", "SELECT id, v FROM u")
    own_db.close()
    own_server.stop()
    with connected(own_server) as db:
        db.run("INSERT INTO u VALUES (100, 7)")
        db.assert_differential("plain")


@pytest.mark.long
def test_past_of_what_a_crash_has_emptied_is_not_held(
    own_server: Headwater, own_db: Database, eventually: Eventually
) -> None:
    own_db.run(SOURCES)
    own_db.run("ALTER TABLE u SET (RETAIN HISTORY FOR '1 hour')")
    held = "SELECT held_from FROM pgtrickle.history_status()"
    moment = eventually(lambda: own_db.value(held), what="history is held")
    own_db.close()
    kill(own_server, "backend", random.Random(1))
    time.sleep(NOT_LATER / 1000)
    with connected(own_server) as db:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="held"):
            told(db, f"SUBSCRIBE u AS OF {moment} UP TO {moment + 1}")
        again = f"SELECT nullif(held_from, {moment}) FROM pgtrickle.history_status()"
        begun = eventually(lambda: db.value(again), what="history is held again")
        assert begun > moment
        assert told(db, f"SUBSCRIBE u AS OF {begun} UP TO {begun + 1}") == []


def test_past_is_not_held_across_a_time_without_capture(own_db: Database, eventually: Eventually) -> None:
    """However short it was, and although somebody is subscribed."""
    db = own_db
    db.run("CREATE TABLE t (a int); ALTER TABLE t SET (RETAIN HISTORY FOR '1 hour')")
    held = "SELECT held_from FROM pgtrickle.history_status()"
    moment = eventually(lambda: db.value(held), what="history is held")
    db.run("INSERT INTO t VALUES (1)")
    reading = db.connect()
    reading.execute("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t")
    assert reading.execute("FETCH 1 c").fetchall()
    time.sleep(NOT_LATER / 1000)
    db.run("ALTER TABLE t DISABLE TRIGGER USER; INSERT INTO t VALUES (2); ALTER TABLE t ENABLE TRIGGER USER")
    again = db.connect()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="held"):
        again.execute(f"BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t AS OF {moment}".encode())
        again.execute("FETCH 1 c")
