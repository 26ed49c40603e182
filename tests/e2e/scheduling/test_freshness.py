"""A stream table is reported no fresher than what it reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tests.e2e.conftest import Database

STALE = "SELECT pgt_name FROM pgtrickle.stream_tables_info WHERE stale ORDER BY 1"
TIMES = "SELECT pgt_name, data_timestamp FROM pgtrickle.pgt_stream_tables"


def test_below_a_stream_table_that_fails_nothing_is_fresh(live_db: Database, eventually: Callable[..., Any]) -> None:
    db = live_db
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.max_consecutive_errors = 1")
    db.connection = db.connect()
    db.run("CREATE TABLE src (id int PRIMARY KEY, v int); CREATE TABLE side (id int PRIMARY KEY, v int)")
    db.run("INSERT INTO src VALUES (1, 5); INSERT INTO side VALUES (1, 1)")
    db.create("up", "SELECT id, 10 / v AS v FROM src", schedule="1s")
    db.create("middle", "SELECT id, v + 1 AS v FROM up", schedule="1s")
    db.create("leaf", "SELECT m.id, m.v, s.v AS w FROM middle m JOIN side s USING (id)", schedule="1s")
    db.create("apart", "SELECT id FROM side", schedule="1s")
    db.create("seldom", "SELECT id FROM src", schedule="1h")
    db.create("often", "SELECT count(*) AS n FROM seldom", schedule="1s")  # as old as seldom may be

    def names(statement: str) -> list[str]:
        return [name for (name,) in db.rows(statement)]

    assert names(STALE) == []
    # Upstream has all there is: what is read below is as of now, however long ago upstream was refreshed.
    db.run("UPDATE side SET v = 2")
    eventually(lambda: db.rows("SELECT v, w FROM leaf") == [(3, 2)], what="leaf has followed")
    assert (times := dict(db.rows(TIMES)))["leaf"] > times["up"]

    db.run("INSERT INTO src VALUES (2, 0)")
    eventually(lambda: db.state("up")["status"] == "SUSPENDED", what="up is suspended")
    before = dict(db.rows(TIMES))
    db.run("UPDATE side SET v = 3")
    eventually(lambda: db.rows("SELECT v, w FROM leaf") == [(3, 3)], what="leaf has followed what it can")
    told: list[str] = []
    db.connection.add_notice_handler(lambda notice: told.append(f"{notice.message_primary} {notice.message_hint}"))
    db.refresh("leaf")
    db.run("UPDATE side SET v = 3")  # with something to compute
    db.refresh("leaf")
    db.refresh("middle")
    assert (
        told
        == [
            'upstream stream tables were not refreshed: "public.up"'
            " Resume what is suspended: SELECT pgtrickle.resume_stream_table('public.up');"
        ]
        * 3
    )
    times = dict(db.rows(TIMES))
    assert times["up"] == before["up"]
    assert max(times["middle"], times["leaf"]) <= max(before.values()), "nothing of them is as of after the failure"
    assert times["middle"] == before["middle"]
    ended = db.history("middle")[-1]
    assert ended["data_timestamp"] == times["middle"]
    assert ended["freshness_deadline"] == times["middle"] + timedelta(seconds=1)
    failed = db.history("up")[-1]
    assert (failed["status"], failed["action"]) == ("FAILED", "DIFFERENTIAL")
    assert failed["freshness_deadline"] == times["up"] + timedelta(seconds=1)
    eventually(lambda: names(STALE) == ["leaf", "middle", "up"], what="all three are stale, and no others")
    # A schedule counts from when something was read, not from how old that was.
    state = db.state("leaf")
    assert datetime.fromisoformat(state["frontier"]["at"]) > state["data_timestamp"]

    db.run("UPDATE src SET v = 10 WHERE id = 2; SELECT pgtrickle.resume_stream_table('up')")
    eventually(lambda: names(STALE) == [] and db.state("up")["consecutive_errors"] == 0, what="all go on")
    db.run("UPDATE side SET v = 4")
    eventually(lambda: db.value("SELECT max(w) FROM leaf") == 4, what="leaf has followed")
    db.assert_current("up", "middle", "leaf")

    # What fails is written down as what it was.
    db.run("BEGIN; ALTER TABLE src ADD more int; ALTER TABLE src DROP v; ALTER TABLE src ADD v int DEFAULT 0; COMMIT")
    eventually(lambda: db.history("up")[-1]["status"] == "FAILED", what="it cannot be computed anew")
    assert db.history("up")[-1]["action"] == "REINITIALIZE", db.history("up")[-1]
    assert dict(db.rows(TIMES))["leaf"] > max(before.values())
