"""What monitoring shows is so, and nobody who looks waits for a transaction that somebody has left open."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

LEFT_OPEN = [
    "DROP TABLE src",
    "DROP TABLE st",
    "TRUNCATE src",
    "ALTER TABLE src ADD COLUMN more int; ALTER TABLE st SET (fillfactor = 50)",
    "ALTER TABLE src DROP COLUMN v CASCADE",
    "DROP TABLE part; CREATE TABLE other (id int); DROP TABLE other",
    "SELECT pgtrickle.drop_stream_table('st')",
    "SELECT pgtrickle.refresh_stream_table('st')",
    "SELECT pgtrickle.alter_stream_table('st', schedule => '2h')",
    "SELECT pgtrickle.create_stream_table('other', 'SELECT v FROM src', '1h')",
    "LOCK TABLE src, st, part IN ACCESS EXCLUSIVE MODE",
]
# Of a name; whatever else monitors is found in the catalog.
OF_A_NAME = ["get_refresh_history", "get_lag", "get_staleness", "list_sources", "explain_st"]
MONITORING = """
SELECT format('SELECT * FROM pgtrickle.%I', c.relname) FROM pg_class c
WHERE c.relnamespace = 'pgtrickle'::regnamespace AND c.relkind = 'v'
UNION ALL
SELECT format('SELECT * FROM pgtrickle.%I()', p.proname) FROM pg_proc p
WHERE p.pronamespace = 'pgtrickle'::regnamespace AND p.proname !~ '^_' AND p.prokind = 'f' AND p.provolatile <> 'v'
  AND p.pronargs = p.pronargdefaults AND p.prorettype <> 'trigger'::regtype
ORDER BY 1
"""


def test_lag_is_the_age_of_rows_that_lack_changes(db: Database) -> None:
    def lags() -> list[float | None]:
        return [db.value(f"SELECT pgtrickle.get_lag('{name}')") for name in ("first", "second", "empty")]

    db.run("CREATE TABLE src (id int PRIMARY KEY, v int)")
    db.create("first", "SELECT id, v FROM src", schedule="1h")
    db.create("second", "SELECT sum(v) AS s FROM first", schedule="1h")
    db.create("empty", "SELECT id FROM src", schedule="1h", initialize=False)
    db.run("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = data_timestamp - interval '1 day'")
    assert lags() == [0, 0, None]  # nothing has changed
    db.run("INSERT INTO src VALUES (1, 1)")
    first, second, empty = lags()
    assert first is not None and second is not None and empty is None
    assert 86400 <= first < 86700 and 86400 <= second < 86700  # the second reads it from the first
    db.refresh("first")
    first, second, _ = lags()
    assert first == 0
    assert second is not None and second >= 86400
    db.refresh("second")
    assert lags()[:2] == [0, 0]


def test_transaction_that_is_left_open_holds_up_no_monitoring(db: Database) -> None:
    db.run("CREATE TABLE src (id int PRIMARY KEY, v int); CREATE TABLE part (id int) PARTITION BY RANGE (id)")
    db.run("CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10)")
    db.create("st", "SELECT id, v FROM src", schedule="1h")
    db.create("st2", "SELECT id FROM part", schedule="1h")
    db.run("INSERT INTO src VALUES (1, 1); INSERT INTO part VALUES (1)")
    db.run("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = data_timestamp - interval '1 day'")
    looks = [look for (look,) in db.rows(MONITORING)]
    looks += [f"SELECT * FROM pgtrickle.{name}('st')" for name in OF_A_NAME]
    assert "SELECT * FROM pgtrickle.quick_health" in looks
    db.run("SET lock_timeout = '30s'")
    waiting = []
    with psycopg.connect(db.server.dsn(db.name)) as user:
        for statement in LEFT_OPEN:
            user.execute(statement.encode())
            for look in looks:
                try:
                    db.run(look)
                except psycopg.errors.LockNotAvailable as error:
                    waiting.append(f"{statement}: {look}: {error}")
            user.rollback()
    assert waiting == []


HEALTH = "SELECT status, stale_tables, scheduler_running FROM pgtrickle.quick_health"
LATE = """
SELECT bool_or(at < clock_timestamp() - interval '3 s')
FROM (SELECT max(start_time) AS at FROM pgtrickle.pgt_refresh_history WHERE status = 'COMPLETED' GROUP BY pgt_id) AS x
"""
"""Whether one with a schedule of a second has not been refreshed for so long that it is stale indeed."""


def test_healthy_server_under_load_is_ok(live_db: Database, eventually: Callable[..., Any]) -> None:
    live_db.run("CREATE TABLE src (id int PRIMARY KEY, v int)")
    live_db.create("st", "SELECT id, v FROM src", schedule="1s")
    live_db.create("whole", "SELECT count(*) AS n, now() - now() AS none FROM src", schedule="1s", refresh_mode="FULL")
    eventually(lambda: live_db.rows(HEALTH) == [("OK", 0, True)], what="it is healthy")
    writer = live_db.connect()
    seen = set()
    end = time.monotonic() + 4
    id_ = 0
    while time.monotonic() < end or not seen:
        id_ += 1
        writer.execute("INSERT INTO src VALUES (%s, 0)", [id_])
        ((*health, late),) = live_db.rows(f"SELECT *, ({LATE}) FROM ({HEALTH}) AS health")
        if not late:  # a busy machine may be
            seen.add(tuple(health))
    assert seen == {("OK", 0, True)}


def test_what_is_not_refreshed_is_stale(live_db: Database, eventually: Callable[..., Any]) -> None:
    live_db.run("CREATE TABLE src (id int PRIMARY KEY, v int)")
    live_db.create("st", "SELECT id, v FROM src", schedule="1s")
    eventually(lambda: live_db.rows(HEALTH) == [("OK", 0, True)], what="it is healthy")
    with live_db.bypass().transaction() as held:
        held.connection.execute("LOCK TABLE st IN SHARE MODE")
        live_db.run("INSERT INTO src VALUES (1, 1)")
        eventually(lambda: live_db.rows(HEALTH) == [("WARNING", 1, True)], what="it stands still")
    eventually(lambda: live_db.rows(HEALTH) == [("OK", 0, True)], what="it goes on")
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.enabled = off")
    live_db.run("INSERT INTO src VALUES (2, 1)")
    eventually(
        lambda: live_db.value("SELECT stale_tables FROM pgtrickle.quick_health") == 1, what="nothing is refreshed"
    )


def test_who_may_know_what_changes_is_told_what_is_stale(
    db: Database, eventually: Callable[..., Any], role: Callable[..., Any]
) -> None:
    db.run("CREATE TABLE src (id int PRIMARY KEY, v int); CREATE TABLE rests (id int PRIMARY KEY)")
    db.create("st", "SELECT id, v FROM src", schedule="1s")
    db.create("above", "SELECT id FROM st", schedule="1s")
    db.create("resting", "SELECT id FROM rests", schedule="1s")
    db.run("INSERT INTO src VALUES (1, 1)")
    stale = (
        "SELECT stale_tables FROM pgtrickle.quick_health",
        "SELECT count(*) FROM pgtrickle.stream_tables_info WHERE stale",
    )
    eventually(lambda: [db.value(each) for each in stale] == [2, 2], what="both are")
    for number, (rights, expected) in enumerate([("", 0), ("SELECT ON src", 2), ("pg_monitor", 2)]):
        somebody = role(f"looker{number}")
        if rights:
            db.run(f"GRANT {rights} TO {somebody.info.user}")
        for each in stale:
            assert somebody.execute(each.encode()).fetchone() == (expected,), (rights, each)


@pytest.mark.long
def test_server_that_hangs_is_seen(own_db: Database, eventually: Callable[..., Any]) -> None:
    own_db.run("CREATE TABLE src (id int PRIMARY KEY, v int)")
    own_db.create("st", "SELECT id, v FROM src", schedule="1s")
    eventually(lambda: own_db.rows(HEALTH) == [("OK", 0, True)], what="it is healthy")
    past = own_db.bypass()
    assert own_db.server.process is not None
    os.kill(own_db.server.process.pid, signal.SIGSTOP)
    try:
        past.execute("INSERT INTO src VALUES (1, 1)")
        standing = [("WARNING", 1, False)]
        eventually(lambda: past.execute(HEALTH.encode()).fetchall() == standing, what="it is seen", seconds=60)
    finally:
        os.kill(own_db.server.process.pid, signal.SIGCONT)
    eventually(lambda: own_db.rows(HEALTH) == [("OK", 0, True)], what="it goes on")


def test_bytes_that_wait_for_subscribers_and_their_lag(
    db: Database, eventually: Callable[..., Any], role: Callable[..., Any]
) -> None:
    status = (
        "SELECT reads, subscriber, clients, waiting_bytes, extract(epoch FROM lag)::float8"
        " FROM pgtrickle.subscription_status()"
    )
    db.run("CREATE TABLE src (id int PRIMARY KEY, v text)")
    reader, second = db.connect(), db.connect()
    for connection in (reader, second):
        connection.execute("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE src")
        connection.execute("FETCH 0 c")
    owner = db.value("SELECT current_user::text")
    eventually(lambda: db.rows(status) == [("public.src", owner, 2, 0, 0.0)], what="nothing waits")
    db.run("INSERT INTO src SELECT n, repeat('x', 1000) FROM generate_series(1, 500) AS n")
    # Each client is given all of it: more than 1 000 bytes a row, and less than twice that.
    eventually(lambda: 2 * 500_000 < db.rows(status)[0][3] < 2 * 1_000_000, what="all waits for both")
    eventually(lambda: db.rows(status)[0][4] > 2, what="the lag grows")
    assert len(reader.execute("FETCH ALL c").fetchall()) == 500
    eventually(lambda: 500_000 < db.rows(status)[0][3] < 1_000_000, what="it waits for one")
    shown = next(line for line in db.server.status().splitlines() if "public.src" in line)
    assert re.search(r"\b[56]\d\d kB\b.*\b\d+\.\d s", shown), shown
    assert len(second.execute("FETCH ALL c").fetchall()) == 500
    eventually(lambda: db.rows(status) == [("public.src", owner, 2, 0, 0.0)], what="nothing waits again")
    second.close()
    eventually(lambda: db.rows(status)[0][2] == 1, what="one client is left")
    assert role("eve").execute(status).fetchall() == []
    reader.close()
    eventually(lambda: db.rows(status) == [], what="the subscription has ended")
