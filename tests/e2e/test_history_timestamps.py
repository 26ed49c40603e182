"""What is told of the past has the timestamps at which others were told of it when it happened."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater, _database
from tests.e2e.following import timestamp_of

Eventually = Callable[..., Any]

APART = {
    "a table": "t",
    "a filter": "(SELECT word, n * 2 AS twice FROM t WHERE n % 3 > 0)",
    "the parts of a union": "(SELECT id, 'few' AS kind FROM t WHERE n < 3 UNION ALL SELECT id, 'any' FROM t)",
    "a set-returning function": "(SELECT id, s FROM t, LATERAL generate_series(1, n % 3) AS s)",
    "a view": "seen",
    "a key": "t ENVELOPE UPSERT (KEY (id))",
    "a key with what was before": "t ENVELOPE DEBEZIUM (KEY (id))",
    "an order": "t WITHIN TIMESTAMP ORDER BY n DESC, id, mz_diff",
}
"""What gives every timestamp's changes apart."""

TOGETHER = {
    "an aggregate": "(SELECT n % 3 AS rest, count(*) AS many FROM t GROUP BY 1)",
    "a join": "(SELECT a.id, b.word FROM t AS a JOIN t AS b ON b.n = a.n + 1)",
}
"""What gives their sum, at the last."""


@pytest.fixture
def past(server: Headwater, eventually: Eventually) -> Iterator[Database]:
    for database in _database(server):
        database.run("CREATE TABLE t (id int PRIMARY KEY, word text, n int NOT NULL)")
        database.run("CREATE VIEW seen AS SELECT id, upper(word) AS word FROM t WHERE n > 1")
        database.run("INSERT INTO t SELECT id, 'w' || id % 5, id % 7 FROM generate_series(1, 40) AS id")
        database.run("ALTER TABLE t SET (RETAIN HISTORY FOR '1h')")
        eventually(lambda database=database: database.value("SELECT held_from FROM pgtrickle.history_status()"))
        yield database


def changed(database: Database, seed: int) -> None:
    """Transactions of all kinds, that also take rows from each other, come to nothing or are rolled back."""
    chance = random.Random(seed)
    with database.connect(autocommit=False) as connection:
        for _ in range(12):
            for _ in range(chance.randint(1, 4)):
                id_ = seed * 1000 + chance.randint(1, 15)
                connection.execute(
                    chance.choice(
                        [
                            "INSERT INTO t VALUES (%(id)s, 'new', %(n)s) ON CONFLICT (id) DO UPDATE SET n = t.n + 1",
                            "UPDATE t SET word = word || '.' WHERE id = %(n)s",
                            "UPDATE t SET n = n - 1 WHERE id = %(id)s",
                            "DELETE FROM t WHERE id = %(id)s",
                        ]
                    ),
                    {"id": id_, "n": chance.randint(1, 9)},
                )
            if chance.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
            time.sleep(0.05)


def updates(connection: psycopg.Connection[Any], cursor: str, until: Callable[[int], bool]) -> list[tuple[Any, ...]]:
    """All rows up to a progress message that says enough, but for these messages."""
    found: list[tuple[Any, ...]] = []
    while True:
        for row in connection.execute(f"FETCH ALL {cursor}"):
            if not row[1]:
                found.append((row[0], *row[2:]))
            elif until(int(row[0])):
                return found


def with_options(what: str, options: str) -> str:
    return f"SUBSCRIBE {what} WITH ({options})"


def test_the_past_is_told_as_it_was_told_when_it_happened(past: Database, eventually: Eventually) -> None:
    questions = [*APART.values(), *TOGETHER.values()]
    live = past.connect(autocommit=False)
    begun = []
    for number, what in enumerate(questions):
        live.execute(f"DECLARE c{number} CURSOR FOR {with_options(what, 'PROGRESS, SNAPSHOT = false')}")
        ((timestamp, *_),) = live.execute(f"FETCH 1 c{number}").fetchall()
        begun.append(int(timestamp))
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(changed, past, seed) for seed in range(4)]:
            done.result()
    with past.connect(autocommit=False) as last:
        last.execute("UPDATE t SET n = n + 1 WHERE id = 1")
        ((xid,),) = last.execute("SELECT pg_current_xact_id()::text").fetchall()
    end = eventually(lambda: timestamp_of(past, xid)) + 1
    for number, (what, start) in enumerate(zip(questions, begun, strict=True)):
        told = [row for row in updates(live, f"c{number}", lambda closed: closed >= end) if row[0] < end]
        asked = with_options(what, "SNAPSHOT = false") + f" AS OF {start} UP TO {end}"
        found = past.rows(asked)
        assert len({row[0] for row in told}) > 1
        assert [row[0] for row in found] == sorted(row[0] for row in found)
        if what in APART.values():
            ordered = "ORDER BY" in what
            assert (found if ordered else sorted(found, key=repr)) == (told if ordered else sorted(told, key=repr))
        else:
            assert {row[0] for row in found} == {end - 1}
            assert sums(found) == sums(told)
    live.close()


def sums(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    """What changes come to in all."""
    found: dict[tuple[Any, ...], int] = {}
    for _, diff, *values in rows:
        found[tuple(values)] = found.get(tuple(values), 0) + diff
    return {row: diff for row, diff in found.items() if diff}


def test_who_resumes_now_is_told_when_it_happened(past: Database) -> None:
    """Also of what has happened since the last timestamp, which belongs to the one at which it joins."""
    with past.connect(autocommit=False) as connection:
        connection.execute("DECLARE c CURSOR FOR SUBSCRIBE t WITH (PROGRESS, SNAPSHOT = false)")
        ((start, *_),) = connection.execute("FETCH 1 c").fetchall()
    for word in ("one", "two", "three"):
        with past.connect(autocommit=False) as connection:
            connection.execute("UPDATE t SET word = %s WHERE id = 1", [word])
    with past.connect(autocommit=False) as connection:
        connection.execute(f"DECLARE c CURSOR FOR SUBSCRIBE t WITH (PROGRESS, SNAPSHOT = false) AS OF {start}")
        rows = updates(connection, "c", lambda closed: closed > start)
    came = [(row[0], row[3]) for row in rows if row[1] == 1]
    times = [timestamp for timestamp, _ in came]
    assert came[-1][1] == "three"
    assert times == sorted(set(times))
    assert all(timestamp > start for timestamp in times)
