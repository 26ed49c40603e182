"""Stream tables that are refreshed in one transaction: atomic diamonds."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.conftest import Database, Headwater
from tests.e2e.reliability.test_crash_recovery import connected, kill
from tests.e2e.scheduling.loading import seen_while, skips
from tests.e2e.stream_tables.test_scheduler import GATE

Eventually = Callable[..., Any]
TORN = "SELECT count(*) FROM st_d WHERE b <> c"


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


def diamond(db: Database, **of_meeting: Any) -> None:
    """That of the reference, over 10 rows; in st_d b and c are the same if they are of one moment."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT n, 0 FROM generate_series(1, 10) n")
    db.create("st_a", "SELECT id, v FROM t", schedule="1s")
    db.create("st_b", "SELECT id, v AS b FROM st_a", schedule="1s")
    db.create("st_c", "SELECT id, v AS c FROM st_a", schedule="1s")
    db.create("st_d", "SELECT id, b, c FROM st_b JOIN st_c USING (id)", schedule="1s", **of_meeting)


@contextmanager
def writing(db: Database, statement: str, each: float = 0.05) -> Iterator[None]:
    """A client that runs a statement again and again, so many seconds after the last."""
    ended = threading.Event()
    writer = db.connect()

    def write() -> None:
        while not ended.wait(each):
            writer.execute(statement.encode())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def transactions(db: Database, *names: str) -> list[set[Any]]:
    """The times at which the transactions of a stream table's refreshes began that found something."""
    return [
        {
            row["data_timestamp"]
            for row in db.history(name)
            if row["initiated_by"] != "INITIAL" and row["action"] in FOUND
        }
        for name in names
    ]


FOUND = ("DIFFERENTIAL", "FULL")
"""As a whole where that was faster: all rows of these changes differ."""


def test_atomic_diamond_is_never_seen_torn(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    diamond(db, diamond_consistency="atomic")
    db.run("UPDATE t SET v = 1")
    # What was begun before st_d was populated, and they were a diamond, has ended then.
    eventually(lambda: db.value("SELECT min(b) FROM st_d") == 1, what="the first refresh of the diamond")
    names = ("st_b", "st_c", "st_d")
    before = transactions(db, *names)
    with seen_while(db, TORN) as seen, writing(db, "UPDATE t SET v = v + 1"):
        eventually(lambda: len(transactions(db, "st_d")[0]) >= 10, what="refreshes of the diamond")
    eventually(lambda: not db.difference("st_a") and db.value("SELECT min(d.b) = min(t.v) FROM st_d d, t"))
    assert seen == {(0,)}
    db.assert_current("st_a", "st_b", "st_c", "st_d")
    of_b, of_c, of_d = (after - first for after, first in zip(transactions(db, *names), before, strict=True))
    assert of_b == of_c == of_d


def test_failing_member_fails_all_and_leaves_the_unit_when_it_is_suspended(
    live_db: Database, eventually: Eventually
) -> None:
    db = live_db
    diamond(db, diamond_consistency="atomic")
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.max_consecutive_errors = 1")
    db.run(
        "SELECT pgtrickle.alter_stream_table('st_d', query =>"
        " 'SELECT id, b, c, 1 / (b - 7) AS q FROM st_b JOIN st_c USING (id)')"
    )
    with seen_while(
        db, "SELECT count(*) FROM st_b, st_d WHERE st_b.id = 1 AND st_d.id = 1 AND st_b.b <> st_d.b"
    ) as seen:
        db.run("UPDATE t SET v = 7 WHERE id = 1")
        eventually(lambda: db.state("st_d")["status"] == "SUSPENDED")
    assert seen == {(0,)}
    failed = db.history("st_d")[-1]
    assert failed["status"] == "FAILED" and failed["error_message"].startswith("22012")
    said = "stream table public.st_d, which is refreshed together with it, has failed"
    eventually(lambda: skips(db, "st_b") == skips(db, "st_c") == [said])
    # Nobody sees in st_d any more what does not fit together: the others go on, still together.
    eventually(lambda: db.value("SELECT b FROM st_b WHERE id = 1") == 7)
    of_b, of_c = transactions(db, "st_b", "st_c")
    assert of_b == of_c
    db.run("UPDATE t SET v = 8 WHERE id = 1")
    eventually(lambda: db.value("SELECT b FROM st_b WHERE id = 1") == 8)
    db.run("SELECT pgtrickle.resume_stream_table('st_d')")
    eventually(lambda: db.rows("SELECT b, c FROM st_d WHERE id = 1") == [(8, 8)])
    # One from which others of the unit read holds all of them back.
    db.run("SELECT pgtrickle.alter_stream_table('st_b', status => 'SUSPENDED')")
    db.run("UPDATE t SET v = 9 WHERE id = 1")
    suspended = "stream table public.st_b, which is refreshed together with it, is suspended"
    eventually(lambda: skips(db, "st_c")[-1] == suspended and skips(db, "st_d")[-1:] == [suspended])
    assert db.rows("SELECT b, c FROM st_d WHERE id = 1") == [(8, 8)]


def test_refreshes_by_hand_beside_it(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    diamond(db, diamond_consistency="atomic")
    by_hand = "SELECT pgtrickle.refresh_stream_table('st_{}')"
    with (
        writing(db, "UPDATE t SET v = v + 1 WHERE id = 1"),
        # With pauses, on a slow machine, too: the scheduler does not wait for who refreshes one of them just now.
        writing(db, by_hand.format("b"), each=0.5),
        writing(db, by_hand.format("c"), each=0.5),
    ):
        counted = "SELECT count(*) FROM pgtrickle.pgt_scheduler_jobs WHERE unit_kind = 'atomic_group'"
        eventually(lambda: db.value(counted) >= 3)
    eventually(lambda: not any(db.difference(f"st_{letter}") for letter in "abcd"))
    assert db.rows("SELECT DISTINCT status FROM pgtrickle.pgt_refresh_history") == [("COMPLETED",)]
    ((epoch,),) = set(db.rows("SELECT epoch FROM pgtrickle.diamond_groups()"))
    assert epoch >= 3


def test_all_diamonds_of_a_database_and_jobs(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    diamond(db)
    ids = [db.state(f"st_{letter}")["pgt_id"] for letter in "abcd"]
    db.run("UPDATE t SET v = v + 1")
    eventually(lambda: db.value("SELECT sum(b + c) FROM st_d") == 20)
    jobs = "SELECT unit_key, unit_kind, status, member_count, attempt_no FROM pgtrickle.parallel_job_status()"
    single = [(f"s:{each}", "singleton", "SUCCEEDED", 1, 1) for each in ids]
    assert set(db.rows(jobs)) >= set(single)
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.diamond_consistency = 'atomic'")
    unit = f"a:{','.join(map(str, ids[1:]))}"
    since = db.value("SELECT clock_timestamp()")

    def refreshed_together() -> bool:
        db.run("UPDATE t SET v = v + 1")
        return (unit, "atomic_group", "SUCCEEDED", 3, 1) in db.rows(jobs)

    eventually(refreshed_together)
    ((found, times, scheduler, worker, ms),) = db.rows(
        "SELECT count(*), bool_and(enqueued_at <= started_at AND started_at < finished_at),"
        f" count(DISTINCT scheduler_pid), bool_and(worker_pid > 0), min(duration_ms)"
        f" FROM pgtrickle.pgt_scheduler_jobs WHERE enqueued_at > '{since}'"
    )
    assert (times, scheduler, worker) == (True, 1, True) and found >= 1 and ms > 0
    eventually(lambda: db.rows("SELECT FROM pgtrickle.parallel_job_status(0)") == [], what="nothing is under way")


def test_slowest_and_fastest(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    diamond(db, diamond_consistency="atomic", diamond_schedule_policy="slowest")
    db.run("SELECT pgtrickle.alter_stream_table('st_c', schedule => '1h')")
    db.create("other", "SELECT sum(v) AS v FROM st_a", schedule="1s")
    assert {row[0] for row in db.rows("SELECT schedule_policy FROM pgtrickle.diamond_groups()")} == {"slowest"}
    for n in range(1, 3):
        db.run("UPDATE t SET v = v + 1")
        eventually(lambda n=n: db.value("SELECT v FROM other") == 10 * n)
    assert db.value("SELECT sum(b + c) FROM st_d") == 0 and transactions(db, "st_b", "st_c", "st_d") == [set()] * 3
    db.run("SELECT pgtrickle.alter_stream_table('st_d', diamond_schedule_policy => 'fastest')")
    eventually(lambda: db.value("SELECT sum(b + c) FROM st_d") == 40)
    of_b, of_c = transactions(db, "st_b", "st_c")
    assert of_b == of_c and len(of_b) == 1
    query = "SELECT id, b, c FROM st_b JOIN st_c USING (id)"
    db.run("SELECT pgtrickle.create_or_replace_stream_table('st_d', %s, '1s')", query)
    state = db.state("st_d")
    assert (state["diamond_consistency"], state["diamond_schedule_policy"]) == ("none", "fastest")


def test_jobs_that_are_running_and_queued(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    db.run(GATE)
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.max_concurrent_refreshes = 1")
    db.create("slow", "SELECT id, gate(v) AS v FROM t", schedule="1s")
    db.create("after", "SELECT count(*) AS n FROM t", schedule="1s")
    states = "SELECT unit_key, status FROM pgtrickle.parallel_job_status() WHERE finished_at IS NULL ORDER BY 1"
    slow, after = (f"s:{db.state(name)['pgt_id']}" for name in ("slow", "after"))
    lock = db.connect(autocommit=False)
    lock.execute("SELECT pg_advisory_xact_lock(1)")
    db.run("INSERT INTO t VALUES (1, 1000)")
    eventually(lambda: (slow, "RUNNING") in db.rows(states))
    db.run("INSERT INTO t VALUES (2, 1)")
    eventually(lambda: sorted(db.rows(states)) == sorted([(slow, "RUNNING"), (after, "QUEUED")]))
    numbers = db.rows("SELECT job_id FROM pgtrickle.parallel_job_status() WHERE status = 'RUNNING'")
    lock.rollback()
    eventually(lambda: db.rows(states) == [])
    ended = db.rows("SELECT job_id FROM pgtrickle.parallel_job_status() WHERE status = 'SUCCEEDED'")
    assert set(numbers) <= set(ended)


@pytest.mark.long
def test_killed_in_the_middle_of_a_unit(own_server: Headwater, eventually: Eventually) -> None:
    chance = random.Random(3)
    with connected(own_server) as db:
        diamond(db, diamond_consistency="atomic")
    refreshed = 0
    for _ in range(24):
        with connected(own_server) as db:
            with seen_while(db, TORN) as seen:
                for _ in range(20):
                    db.run("UPDATE t SET v = v + 1")
                    time.sleep(chance.uniform(0, 0.05))
            assert seen == {(0,)}
        kill(own_server, chance.choice(["headwater", "postgres", "both", "backend"]), chance)
        with connected(own_server) as db:
            assert db.rows(TORN) == [(0,)]
            eventually(lambda db=db: db.value("SELECT (SELECT min(b) FROM st_d) = (SELECT min(v) FROM t)"))
            db.assert_current("st_a", "st_b", "st_c", "st_d")
            refreshed = db.value("SELECT max(epoch) FROM pgtrickle.diamond_groups()")
    assert refreshed > 24
