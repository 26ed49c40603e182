"""What is told of the past has the timestamps at which others were told of it when it happened."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database, Headwater, _database, drop_role
from tests.e2e.subscribe.following import timestamp_of

Eventually = Callable[..., Any]

QUESTIONS = {
    "a table": "t",
    "a filter": "(SELECT word, n * 2 AS twice FROM t WHERE n % 3 > 0)",
    "the parts of a union": "(SELECT id, 'few' AS kind FROM t WHERE n < 3 UNION ALL SELECT id, 'any' FROM t)",
    "a set-returning function": "(SELECT id, s FROM t, LATERAL generate_series(1, n % 3) AS s)",
    "a view": "seen",
    "a key": "t ENVELOPE UPSERT (KEY (id))",
    "a key with what was before": "t ENVELOPE DEBEZIUM (KEY (id))",
    "an order": "t WITHIN TIMESTAMP ORDER BY n DESC, id, mz_diff",
    "an aggregate": "(SELECT n % 3 AS rest, count(*) AS many FROM t GROUP BY 1)",
    "groups of several columns": "(SELECT word, n, count(*) AS many, bool_and(id > 9) AS late FROM t GROUP BY 1, 2)",
    "extrema": "(SELECT word, min(n) AS least, max(id) AS last, avg(n) AS mean FROM t GROUP BY 1)",
    "the extremum of groups": "(SELECT max(many) AS most FROM (SELECT word, count(*) AS many FROM t GROUP BY 1) AS s)",
    "groups of groups": "(SELECT many, count(*) AS words FROM (SELECT word, count(*) AS many FROM t GROUP BY 1) AS s"
    " GROUP BY 1)",
    "some groups": "(SELECT word, sum(n) AS total FROM t JOIN kinds USING (word) GROUP BY 1 HAVING count(*) > 4)",
    "one row": "(SELECT max(n) AS most, array_agg(word ORDER BY id) FILTER (WHERE n = 1) AS words FROM t)",
    "a join": "(SELECT a.id, b.word FROM t AS a JOIN t AS b ON b.n = a.n + 1)",
    "a join with a table without key": "(SELECT id, kind FROM t LEFT JOIN kinds USING (word))",
    "a join with an aggregate": "(SELECT kind, n FROM kinds JOIN (SELECT word, sum(n) AS n FROM t GROUP BY 1) AS s"
    " USING (word))",
    "rows that have another": "(SELECT id FROM t AS a WHERE EXISTS (SELECT FROM kinds AS k WHERE k.word = a.word))",
    "a window": "(SELECT id, rank() OVER (PARTITION BY word ORDER BY n) AS place FROM t)",
    "the first": "(SELECT id, n FROM t ORDER BY n DESC, id LIMIT 3)",
    "a recursion": "(WITH RECURSIVE r(id, n) AS (SELECT id, n FROM t WHERE n < 2 UNION SELECT t.id, t.n FROM t JOIN r"
    " ON t.n = r.n + 2) SELECT * FROM r)",
    "a table without key": "kinds",
    "a key of another's": "(SELECT id, n, word FROM t) ENVELOPE DEBEZIUM (KEY (word, n))",
    "a key of groups": "(SELECT word, count(*) AS many FROM t GROUP BY 1) ENVELOPE UPSERT (KEY (word))",
}

HELD = "SELECT bool_and(held_from IS NOT NULL) FROM pgtrickle.history_status()"


@pytest.fixture
def past(server: Headwater, eventually: Eventually) -> Iterator[Database]:
    for database in _database(server):
        database.run("CREATE TABLE t (id int PRIMARY KEY, word text, n int NOT NULL)")
        database.run("CREATE VIEW seen AS SELECT id, upper(word) AS word FROM t WHERE n > 1")
        database.run("INSERT INTO t SELECT id, 'w' || id % 5, id % 7 FROM generate_series(1, 40) AS id")
        database.run("CREATE TABLE kinds (word text, kind text)")
        database.run("INSERT INTO kinds SELECT 'w' || i % 4, 'k' || i % 2 FROM generate_series(1, 9) AS i")
        for table in ("t", "kinds"):
            database.run(f"ALTER TABLE {table} SET (RETAIN HISTORY FOR '1h')")
        eventually(lambda database=database: database.value(HELD))
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
                            "INSERT INTO kinds VALUES ('new', 'k' || %(n)s)",
                            "UPDATE kinds SET kind = kind || '!' WHERE length(kind) < 4 AND word = 'w' || %(n)s",
                            "DELETE FROM kinds WHERE word = 'w' || %(n)s AND kind LIKE '%%!'",
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
    questions = [*QUESTIONS.values()]
    live = past.connect(autocommit=False)
    begun = []
    for number, what in enumerate(questions):
        live.execute(f"DECLARE c{number} CURSOR FOR {with_options(what, 'PROGRESS, SNAPSHOT = false')}")
        ((timestamp, *_),) = live.execute(f"FETCH 1 c{number}").fetchall()
        begun.append(int(timestamp))
    for seeds in ((0, 1), (2, 3)):  # so that there are two timestamps, however slow the machine is
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(changed, past, seed) for seed in seeds]:
                done.result()
        with past.connect(autocommit=False) as last:
            last.execute("UPDATE t SET n = n + 1 WHERE id = 1")
            ((xid,),) = last.execute("SELECT pg_current_xact_id()::text").fetchall()
        end = eventually(lambda xid=xid: timestamp_of(past, xid)) + 1  # type: ignore[misc]
    for number, (what, start) in enumerate(zip(questions, begun, strict=True)):
        told = [row for row in updates(live, f"c{number}", lambda closed: closed >= end) if row[0] < end]
        asked = with_options(what, "SNAPSHOT = false") + f" AS OF {start} UP TO {end}"
        found = past.rows(asked)
        assert len({row[0] for row in told}) > 1
        assert [row[0] for row in found] == sorted(row[0] for row in found)
        ordered = "WITHIN" in what
        assert (found if ordered else sorted(found, key=repr)) == (told if ordered else sorted(told, key=repr)), what
    live.close()


def test_the_past_is_told_so_where_evaluation_is_slow(past: Database, eventually: Eventually) -> None:
    """Commits come faster than the query follows: it is told of at fewer timestamps, and these are the past's."""
    past.run(
        "CREATE FUNCTION slowly(int) RETURNS int LANGUAGE plpgsql IMMUTABLE"
        " AS 'BEGIN WHILE NOT pg_try_advisory_xact_lock_shared(1) LOOP PERFORM pg_sleep(0.01); END LOOP;"
        " RETURN $1; END'"
    )
    what = "(SELECT id, slowly(n) AS n FROM t WHERE id > 1000)"
    live = past.connect(autocommit=False)
    live.execute(f"DECLARE c CURSOR FOR {with_options(what, 'PROGRESS, SNAPSHOT = false')}")
    ((start, *_),) = live.execute("FETCH 1 c").fetchall()
    evaluated = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    with past.connect(autocommit=False) as writer, past.bypass() as gate:
        gate.execute("SELECT pg_advisory_lock(1)")
        for number in range(1, 13):
            writer.execute("INSERT INTO t VALUES (%s, 'new', 1)", [1000 + number])
            ((xid,),) = writer.execute("SELECT pg_current_xact_id()::text").fetchall()
            writer.commit()
            if number == 1:
                eventually(lambda: gate.execute(evaluated).fetchall(), what="the evaluation of the first")
    end = eventually(lambda: timestamp_of(past, xid)) + 1
    told = [row for row in updates(live, "c", lambda closed: closed >= end) if row[0] < end]
    found = past.rows(with_options(what, "SNAPSHOT = false") + f" AS OF {start} UP TO {end}")
    assert len(told) == 12
    assert 1 < len({row[0] for row in told}) < 12
    assert sorted(found) == sorted(told)
    live.close()


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


@pytest.fixture
def reader(past: Database) -> Iterator[str]:
    """A role that may read some columns."""
    name = f"reader_{os.getpid()}"
    past.run(f"CREATE ROLE {name}; GRANT SELECT (n) ON t TO {name}")
    yield name
    drop_role(past.connection, name)


def test_who_may_only_read_is_told_of_the_past(past: Database, reader: str) -> None:
    """With no right to other columns, such as the key."""
    with past.connect(autocommit=False) as connection:
        connection.execute("DECLARE c CURSOR FOR SUBSCRIBE t WITH (PROGRESS, SNAPSHOT = false)")
        ((start, *_),) = connection.execute("FETCH 1 c").fetchall()
        past.run("UPDATE t SET n = 100 WHERE id = 1")
        rows: list[tuple[Any, ...]] = []
        while not rows:
            rows = [row for row in connection.execute("FETCH ALL c") if not row[1]]
        last = int(rows[-1][0])
    with past.connect() as connection:
        connection.execute(f"SET ROLE {reader}")
        asked = "SUBSCRIBE (SELECT max({}) AS most FROM t) WITH (SNAPSHOT = false) AS OF {} UP TO {}"
        found = connection.execute(asked.format("n", start, last + 1)).fetchall()
        assert sorted(found) == [(last, -1, 6), (last, 1, 100)]
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(asked.format("word", start, last + 1))


def test_history_that_is_just_beginning_holds_nothing(past: Database) -> None:
    past.run("CREATE TABLE recent (n int); INSERT INTO recent VALUES (1)")
    with past.connect() as connection:
        for statement in ("SET (RETAIN HISTORY FOR '1h')", "ADD COLUMN m int"):
            connection.execute(f"ALTER TABLE recent {statement}")
            begun = time.monotonic()
            while time.monotonic() < begun + 3:
                with pytest.raises(errors.InvalidParameterValue, match="held"):
                    connection.execute(f"SUBSCRIBE recent AS OF {int(time.time() * 1000) - 20_000} UP TO 5000000000000")
