"""The clock of the machine is set back: what has waited for a time does not wait for it twice.

What is stored looks then as if it had happened later than it did, and that is how these tests set the clock back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.e2e.conftest import Database

Eventually = Callable[..., Any]


def test_stream_tables_are_refreshed(live_db: Database, eventually: Eventually) -> None:
    live_db.run("CREATE TABLE t (id int PRIMARY KEY)")
    live_db.create("counted", "SELECT count(*) AS n FROM t", schedule="1s")
    live_db.create("hourly", "SELECT count(*) AS n FROM t", schedule="1h")
    live_db.run(
        "UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = data_timestamp + interval '1 hour',"
        " created_at = created_at + interval '1 hour', last_refresh_at = last_refresh_at + interval '1 hour'"
    )
    for n in range(1, 4):
        live_db.run("INSERT INTO t VALUES (%s)", n)
        eventually(lambda n=n: live_db.value("SELECT n FROM counted") == n, what="it follows its source")
    assert live_db.value("SELECT n FROM hourly") == 0


def test_stream_table_without_rows_gets_them(live_db: Database, eventually: Eventually) -> None:
    live_db.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with live_db.connection.transaction():
        live_db.create("later", "SELECT id FROM t", schedule="1s", initialize=False)
        live_db.run("UPDATE pgtrickle.pgt_stream_tables SET created_at = created_at + interval '1 hour'")
    eventually(lambda: live_db.rows("SELECT id FROM later") == [(1,)], what="it is populated")


def test_subscription_goes_on_where_it_was(live_db: Database, eventually: Eventually) -> None:
    live_db.run("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t SET (RETAIN HISTORY FOR '2 hours')")
    held = "SELECT bool_and(held_from IS NOT NULL) FROM pgtrickle.history_status()"
    eventually(lambda: live_db.value(held), what="history is held")
    live_db.run("INSERT INTO t VALUES (1)")
    live_db.run("SELECT setval('pgtrickle.pgt_timeline_seq', last_value + 3600000) FROM pgtrickle.pgt_timeline_seq")
    with live_db.connect() as reader:
        reader.execute("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t WITH (PROGRESS)")
        told = [row for _ in range(4) for row in reader.execute("FETCH 1 c").fetchall()]
        closed = int(max(row[0] for row in told if row[1]))
    live_db.run("INSERT INTO t VALUES (2)")
    with live_db.connect() as reader:
        reader.execute("SET statement_timeout = '90s'")
        reader.execute(f"BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t WITH (SNAPSHOT false) AS OF {closed - 1}".encode())
        assert [row[-1] for row in reader.execute("FETCH 1 c").fetchall()] == [2]
