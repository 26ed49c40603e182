"""A refresh is seen while it is under way, by those who may see it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from tests.e2e.conftest import Database

PROGRESS = """
SELECT pgt_name, action, phase, initial, pid, transaction_start IS NOT NULL, wait_event, source_rows, table_bytes > 0
FROM pgtrickle.pgt_stat_progress_refresh ORDER BY pgt_name, phase
"""
WAITING = "waiting for another refresh"


def test_refresh_is_seen_while_it_is_under_way(
    db: Database, eventually: Callable[..., Any], role: Callable[..., psycopg.Connection[Any]]
) -> None:
    alice = role("alice")
    bob = role("bob")
    alice.execute("CREATE TABLE src (id int PRIMARY KEY); INSERT INTO src SELECT generate_series(1, 5); ANALYZE src")
    alice.execute("CREATE TABLE gate (id int PRIMARY KEY)")
    alice.execute(
        "CREATE FUNCTION wait(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM FROM public.gate; RETURN $1; END $$"
    )

    # The refresh waits in its statement for as long as somebody has locked what the function reads.
    def locked() -> psycopg.Connection[Any]:
        connection = db.connect(autocommit=False, user=alice.info.user, password=alice.info.password)
        connection.execute("LOCK TABLE gate")
        return connection

    def in_background(statement: str) -> tuple[threading.Thread, int]:
        connection = db.connect(user=alice.info.user, password=alice.info.password)
        pid = connection.execute("SELECT pg_backend_pid()").fetchall()[0][0]
        connection.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        thread = threading.Thread(target=lambda: connection.execute(statement.encode()), daemon=True)
        thread.start()
        return thread, pid

    def seen_to_be(expected: list[Any], look: Callable[[], list[Any]]) -> None:
        eventually(lambda: look() == expected, what=f"{expected} is what is seen")

    told: list[str] = []
    held = locked()
    creation = "SELECT pgtrickle.create_stream_table('slow', 'SELECT wait(id) AS id FROM src', refresh_mode => 'FULL')"
    creating, _ = in_background(creation)
    # It is storing a moment before its session waits for the lock.
    populated = [("slow", "FULL", "storing", True, True, "relation", 5, True)]
    seen_to_be(populated, lambda: [row[:4] + row[5:] for row in alice.execute(PROGRESS)])
    status = db.server.status()
    assert "Refreshes under way" in status
    assert "storing (initial population)" in status
    assert bob.execute(PROGRESS.encode()).fetchall() == []
    held.close()
    creating.join()
    assert db.rows(PROGRESS) == []

    alice.execute("INSERT INTO src VALUES (6)")
    alice.execute(f"GRANT SELECT ON slow TO {bob.info.user}".encode())
    held = locked()
    first, first_pid = in_background("SELECT pgtrickle.refresh_stream_table('slow')")
    refreshed = ("slow", "FULL", "storing", False, first_pid)
    seen_to_be([refreshed], lambda: [row[:5] for row in db.rows(PROGRESS)])
    second, second_pid = in_background("SELECT pgtrickle.refresh_stream_table('slow')")
    waits = ("slow", None, WAITING, False, second_pid)
    seen_to_be([refreshed, waits], lambda: [row[:5] for row in db.rows(PROGRESS)])
    # Who may read the table sees that, but not what others' sessions do.
    assert [(*row[:4], *row[5:7]) for row in bob.execute(PROGRESS.encode())] == [
        ("slow", "FULL", "storing", False, False, None),
        ("slow", None, WAITING, False, False, None),
    ]
    eventually(lambda: told, what="the second one is told that it waits")
    assert told == ['waiting for another session, which refreshes or changes stream table "slow"']
    # An advisory lock of anybody else shows nothing, nor does it keep a refresh waiting.
    pgt_id = db.state("slow")["pgt_id"]
    with bob.transaction():
        bob.execute("SELECT pgtrickle._note_progress(%s, 3)", [pgt_id])
        assert len(db.rows(PROGRESS)) == 2
    held.close()
    first.join()
    second.join()
    with bob.transaction():
        bob.execute("SELECT pg_advisory_xact_lock(1213661184 + n, %s) FROM generate_series(0, 31) AS n", [pgt_id])
        alice.execute("INSERT INTO src VALUES (7); SELECT pgtrickle.refresh_stream_table('slow')")
        assert db.rows(PROGRESS) == []
