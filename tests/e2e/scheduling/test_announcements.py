"""Who listens through the server is told what becomes of stream tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.e2e.conftest import Database


def test_listener_is_told_of_refreshes_and_of_what_becomes_of_stream_tables(
    live_db: Database, eventually: Callable[..., Any]
) -> None:
    db = live_db
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.max_consecutive_errors = 2")
    db.run("CREATE TABLE src (id int PRIMARY KEY, v int); INSERT INTO src VALUES (1, 1)")
    listener = db.connect()
    for channel in ("pg_trickle_alert", "pgtrickle_refresh", "pg_trickle_refresh"):
        listener.execute(f"LISTEN {channel}".encode())
    told: list[tuple[str, dict[str, Any]]] = []

    def hears(channel: str, event: str, **values: Any) -> None:
        def heard() -> list[dict[str, Any]]:
            for notified in listener.notifies(timeout=0.01):
                told.append((notified.channel, json.loads(notified.payload)))
            return [
                payload
                for on, payload in told
                if (on, payload["event"]) == (channel, event)
                and all(payload.get(key) == value for key, value in values.items())
            ]

        eventually(heard, what=f"{event} {values}")

    db.create("st", "SELECT id, 10 / v AS v FROM src", schedule="1s")
    hears("pg_trickle_alert", "created", pgt_schema="public", pgt_name="st")
    hears("pgtrickle_refresh", "refresh_completed", pgt_name="st", action="FULL", initiated_by="INITIAL")
    db.run("INSERT INTO src VALUES (2, 2)")
    for channel in ("pgtrickle_refresh", "pg_trickle_refresh"):
        hears(channel, "refresh_completed", action="DIFFERENTIAL", initiated_by="SCHEDULER", rows_inserted=1)

    db.run("BEGIN; INSERT INTO src VALUES (3, 2); SELECT pgtrickle.refresh_stream_table('st')")
    later = db.connect()
    later.execute("SELECT pgtrickle.create_stream_table('other', 'SELECT count(*) AS n FROM src')")
    hears("pgtrickle_refresh", "refresh_completed", pgt_name="other", initiated_by="INITIAL")
    db.run("COMMIT")  # the number of its row is lower than that of what was told already
    hears("pgtrickle_refresh", "refresh_completed", pgt_name="st", initiated_by="MANUAL", rows_inserted=1)

    db.run("SELECT pgtrickle.alter_stream_table('st', schedule => '2s')")
    hears("pg_trickle_alert", "altered", pgt_name="st")
    db.run("INSERT INTO src VALUES (4, 0)")
    hears("pg_trickle_alert", "refresh_failed", pgt_name="st", sqlstate="22012")
    hears("pg_trickle_alert", "auto_suspended", pgt_name="st")
    hears("pg_trickle_alert", "stale_data", pgt_name="st", schedule_seconds=2)
    db.run("UPDATE src SET v = 5 WHERE id = 4; SELECT pgtrickle.resume_stream_table('st')")
    hears("pg_trickle_alert", "resumed", pgt_name="st")
    db.run("ALTER TABLE src ALTER v TYPE bigint")
    hears("pg_trickle_alert", "reinitialized", pgt_name="st", action="REINITIALIZE")
    db.run("SELECT pgtrickle.drop_stream_table('other')")
    hears("pg_trickle_alert", "dropped", pgt_name="other")
    numbers = [payload["refresh_id"] for on, payload in told if on == "pg_trickle_refresh"]
    assert len(numbers) == len(set(numbers)), "each is told once"
