"""Mirrors of tables that are captured from the write-ahead log: Spark computes what PostgreSQL would."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.capture.test_wal import PATIENCE, TABLES, Writers, by_triggers, from_log
from tests.e2e.conftest import Database, Headwater

Eventually = Callable[..., Any]


@pytest.fixture
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    server = Headwater(tmp_path_factory.mktemp("sail") / "data", "--spark", "sail").start()
    database = Database(server, "postgres")
    try:
        database.run("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        yield database
    finally:
        database.close()
        server.stop()


def computed(db: Database, name: str) -> tuple[str, str, bool]:
    """How the last refresh was done, by whom, and whether a source was copied into the mirror for it."""
    row = db.history(name)[-1]
    return row["action"], row["executor"], "(0 copied anew)" not in row["executor_reason"]


@pytest.mark.long
@pytest.mark.parametrize("seconds", [3, 60])
def test_mirror_follows_the_log(db: Database, eventually: Eventually, seconds: int) -> None:
    db.run(TABLES + "INSERT INTO a SELECT n, n % 6, 'v', n FROM generate_series(1, 60) n")
    options = {"refresh_mode": "DIFFERENTIAL", "engine": "spark"}
    db.create("sums", "SELECT g, count(*) AS n, sum(x) AS total FROM a GROUP BY g", **options)
    db.create("joined", "SELECT a.id, a.x, b.id AS b FROM a JOIN b ON b.a = a.id", **options)
    db.run("INSERT INTO a VALUES (61, 1, 'v', 1); INSERT INTO b VALUES (3, 61)")
    db.assert_refreshed("sums", "joined")
    db.run("SELECT pgtrickle.alter_stream_table('sums', cdc_mode => 'wal')")
    db.run("SELECT pgtrickle.alter_stream_table('joined', cdc_mode => 'auto')")
    eventually(from_log(db, "a", "b"), PATIENCE)
    # Mirrors that were made of what triggers had captured go on.
    db.run("UPDATE a SET x = x + 1 WHERE id < 10; INSERT INTO b VALUES (1, 1), (2, 2); DELETE FROM a WHERE id = 11")
    db.assert_refreshed("sums", "joined")
    assert computed(db, "sums") == computed(db, "joined") == ("DIFFERENTIAL", "spark", False)
    with Writers(lambda: psycopg.connect(db.server.direct_dsn(db.name)), seed=seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            db.refresh("sums")
            db.refresh("joined")
    db.assert_refreshed("sums", "joined")
    assert from_log(db, "a", "b")()
    for name in ("sums", "joined"):
        assert {(row["action"], row["executor"]) for row in db.history(name)[1:]} <= {
            ("DIFFERENTIAL", "spark"),
            ("NO_DATA", "postgres"),
        }
    db.run("SELECT pgtrickle.alter_stream_table('sums', cdc_mode => 'trigger')")
    db.run("SELECT pgtrickle.alter_stream_table('joined', cdc_mode => 'trigger')")
    eventually(by_triggers(db, "a"), PATIENCE)
    db.run("UPDATE a SET x = x + 1")
    db.assert_refreshed("sums")
    assert computed(db, "sums") == ("DIFFERENTIAL", "spark", False)


@pytest.mark.long
def test_mirror_of_partitions_that_are_emptied(db: Database, eventually: Eventually) -> None:
    db.run(
        "CREATE TABLE p (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);"
        "INSERT INTO p SELECT n, 1 + n % 2 FROM generate_series(1, 100) n"
    )
    db.create("counts", "SELECT k, count(*) AS n FROM p GROUP BY k", cdc_mode="wal", engine="spark")
    eventually(from_log(db, "p"), PATIENCE)
    db.run("INSERT INTO p1 VALUES (101, 1)")
    db.assert_refreshed("counts")
    db.run("UPDATE p SET k = 3 - k WHERE id < 30; DELETE FROM p1 WHERE id > 90")
    db.assert_refreshed("counts")
    assert computed(db, "counts") == ("DIFFERENTIAL", "spark", False)
    db.run("TRUNCATE p1; INSERT INTO p VALUES (200, 1), (201, 2)")
    db.assert_refreshed("counts")
    assert db.last("counts")[0] == "FULL"
    db.run("INSERT INTO p VALUES (300, 1); UPDATE p SET k = 3 - k")
    db.assert_refreshed("counts")
    assert from_log(db, "p")()
