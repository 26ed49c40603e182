"""SUBSCRIBE from end to end: every example of the reference, and what the stream means."""

from __future__ import annotations

import random
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import errors

from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory
from tests.e2e.conftest import Database, Headwater, _database
from tests.e2e.subscribe.following import Folded, timestamp_of

Eventually = Callable[..., Any]


@pytest.fixture(scope="module")
def followed(server: Headwater) -> Iterator[Database]:
    """One database for all of this file."""
    for database in _database(server):
        database.run("CREATE SOURCE counter FROM LOAD GENERATOR COUNTER (TICK INTERVAL '100ms')")
        database.run("CREATE TABLE kv (key int PRIMARY KEY, value int)")
        yield database


def begun(connection: psycopg.Connection[Any], subscribe: str, cursor: str = "c") -> list[tuple[Any, ...]]:
    """Declare a cursor over a SUBSCRIBE WITH (PROGRESS), and return what it begins with, to the end of the snapshot."""
    connection.execute(f"DECLARE {cursor} CURSOR FOR {subscribe}")
    rows: list[tuple[Any, ...]] = []
    while sum(row[1] for row in rows) < 2:
        rows += connection.execute(f"FETCH ALL {cursor}").fetchall()
    return rows


def changes(connection: psycopg.Connection[Any], cursor: str = "c") -> list[tuple[Any, ...]]:
    """The next changes, without their timestamps and progress messages."""
    rows: list[tuple[Any, ...]] = []
    while not rows:
        found = connection.execute(f"FETCH ALL {cursor}").fetchall()
        rows += [row[2:] for row in found if not row[1]]
    return rows


def test_fetching_from_a_counter(followed: Database) -> None:
    connection = followed.connect(autocommit=False)
    connection.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT * FROM counter)")
    first = connection.execute("FETCH ALL c").fetchall()
    assert first and all(type(row[0]) is Decimal and row[1] == 1 for row in first)
    rows = [*first]
    while len(rows) < len(first) + 3:
        rows += connection.execute("FETCH 100 c WITH (timeout='1s')").fetchall()
    rows += connection.execute("FETCH ALL c WITH (timeout='0s')").fetchall()
    assert sorted(row[2] for row in rows) == list(range(1, len(rows) + 1))
    times = [row[0] for row in rows]
    assert times == sorted(times)
    connection.execute("CLOSE c")
    connection.rollback()


def test_copy_in_psql(followed: Database, server: Headwater) -> None:
    postgres = EmbeddedPostgres(DataDirectory(server.data))
    for milliseconds in (1500, 15_000, 60_000):  # UP TO must be later than the beginning
        up_to = f"extract(epoch FROM clock_timestamp()) * 1000 + {milliseconds}"
        command = f"COPY (SUBSCRIBE (SELECT * FROM counter WHERE counter <= 2) UP TO {up_to}) TO STDOUT"
        done = subprocess.run(
            [str(postgres.psql), "-XAt", server.dsn(followed.name), "-c", command], capture_output=True, text=True
        )
        if "is earlier than AS OF" not in done.stderr:
            break
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert sorted(line[1:] for line in lines) == [["1", "1"], ["1", "2"]]


def test_envelopes(followed: Database) -> None:
    followed.run("TRUNCATE kv; INSERT INTO kv VALUES (1, 2), (2, 4)")
    upsert, debezium, ordered = (followed.connect(autocommit=False) for _ in range(3))
    rows = begun(upsert, "SUBSCRIBE kv ENVELOPE UPSERT (KEY (key)) WITH (PROGRESS)")
    assert rows[0][1:] == (True, None, None, None)
    assert sorted(row[1:] for row in rows[1:-1]) == [(False, "upsert", 1, 2), (False, "upsert", 2, 4)]
    rows = begun(debezium, "SUBSCRIBE TO kv ENVELOPE DEBEZIUM (KEY (key)) WITH (PROGRESS = true)")
    assert sorted(row[2:] for row in rows[1:-1]) == [("insert", 1, None, 2), ("insert", 2, None, 4)]
    begun(ordered, "SUBSCRIBE kv WITHIN TIMESTAMP ORDER BY value DESC NULLS LAST, mz_diff WITH (PROGRESS)")
    steps = [
        ("INSERT INTO kv VALUES (3, 6)", [("upsert", 3, 6)], [("insert", 3, None, 6)], [(1, 3, 6)]),
        (
            "UPDATE kv SET value = 10 WHERE key = 1",
            [("upsert", 1, 10)],
            [("upsert", 1, 2, 10)],
            [(1, 1, 10), (-1, 1, 2)],
        ),
        (
            "DELETE FROM kv",
            [("delete", 1, None), ("delete", 2, None), ("delete", 3, None)],
            [("delete", 1, 10, None), ("delete", 2, 4, None), ("delete", 3, 6, None)],
            [(-1, 1, 10), (-1, 3, 6), (-1, 2, 4)],
        ),
    ]
    for statement, upserts, images, sorted_rows in steps:
        followed.run(statement)
        assert sorted(changes(upsert)) == upserts
        assert sorted(changes(debezium)) == images
        assert changes(ordered) == sorted_rows
    for connection in (upsert, debezium, ordered):
        connection.rollback()


def test_key_violation(followed: Database) -> None:
    followed.run("CREATE TABLE keyless (key int, value int)")
    upsert, debezium = (followed.connect(autocommit=False) for _ in range(2))
    begun(upsert, "SUBSCRIBE keyless ENVELOPE UPSERT (KEY (key)) WITH (PROGRESS)")
    begun(debezium, "SUBSCRIBE keyless ENVELOPE DEBEZIUM (KEY (key)) WITH (PROGRESS)")
    followed.run("INSERT INTO keyless VALUES (1, 1), (1, 2)")
    assert changes(upsert) == [("key_violation", 1, None)]
    assert changes(debezium) == [("key_violation", 1, None, None)]
    followed.run("DELETE FROM keyless WHERE value = 1")
    assert changes(upsert) == [("upsert", 1, 2)]
    upsert.rollback()
    debezium.rollback()


def test_as_of_and_up_to(followed: Database) -> None:
    connection = followed.connect()
    assert connection.execute("SUBSCRIBE kv AS OF 5000000000000 UP TO 5000000000000").fetchall() == []
    with pytest.raises(errors.InvalidParameterValue, match="is earlier than AS OF"):
        connection.execute("SUBSCRIBE kv AS OF 5000000000000 UP TO 4999999999999")
    with pytest.raises(errors.InvalidParameterValue, match="is earlier than AS OF"):
        connection.execute("SUBSCRIBE kv UP TO 1")
    with pytest.raises(errors.InvalidParameterValue, match="is not held"):
        connection.execute("SUBSCRIBE kv AS OF 1")
    assert connection.execute("SUBSCRIBE (SELECT 1 AS one)").fetchall()[0][1:] == (1, 1)


def test_a_moment_ago_means_now_only_to_who_is_given_the_rows_of_now(followed: Database) -> None:
    """Where no history is retained. Without a snapshot what has changed since would be missing."""
    connection = followed.connect()
    moment = connection.execute("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()[0]
    with connection.transaction(force_rollback=True):
        # Evaluated as late as can be: a moment lasts a second, on a busy machine, too.
        connection.execute(
            "DECLARE c CURSOR FOR SUBSCRIBE kv WITH (PROGRESS) AS OF clock_timestamp() - interval '5 milliseconds'"
        )
        assert connection.execute("FETCH 1 c").fetchall()
    for options in (f"WITH (SNAPSHOT = false) AS OF {moment}", f"AS OF {moment} UP TO {moment + 1}"):
        with pytest.raises(errors.InvalidParameterValue, match=f"timestamp {moment} is not held"):
            connection.execute(f"SUBSCRIBE kv {options}")


def test_as_of_the_past(followed: Database, eventually: Eventually) -> None:
    """The state at a time, what has happened since, and what happened until another time."""
    followed.run("CREATE TABLE told (id int PRIMARY KEY, word text)")
    followed.run("INSERT INTO told VALUES (1, 'one')")
    followed.run("ALTER TABLE told SET (RETAIN HISTORY FOR '1h')")
    held = "SELECT held_from FROM pgtrickle.history_status() WHERE name = 'public.told'"
    first = eventually(lambda: followed.value(held))
    times = []
    for statement in (
        "INSERT INTO told VALUES (2, 'two')",
        "UPDATE told SET word = 'zwei' WHERE id = 2",
        "DELETE FROM told WHERE id = 1",
    ):
        with followed.connect(autocommit=False) as connection:
            connection.execute(statement)
            ((xid,),) = connection.execute("SELECT pg_current_xact_id()::text").fetchall()
        times.append(eventually(lambda xid=xid: timestamp_of(followed, xid)))

    def at(subscribe: str) -> list[tuple[Any, ...]]:
        return [row[1:] for row in followed.rows(subscribe)]

    two, zwei, last = times
    assert at(f"SUBSCRIBE told AS OF {two} UP TO {two + 1}") in (
        [(1, 1, "one"), (1, 2, "two")],
        [(1, 2, "two"), (1, 1, "one")],
    )
    assert sorted(followed.rows(f"SUBSCRIBE told AS OF {first} UP TO {zwei + 1}")) == [
        (first, 1, 1, "one"),
        (two, 1, 2, "two"),
        (zwei, -1, 2, "two"),
        (zwei, 1, 2, "zwei"),
    ]
    assert sorted(at(f"SUBSCRIBE told WITH (SNAPSHOT = false) AS OF {two} UP TO {last + 1}")) == [
        (-1, 1, "one"),
        (-1, 2, "two"),
        (1, 2, "zwei"),
    ]
    assert sorted(
        at(f"SUBSCRIBE told ENVELOPE UPSERT (KEY (id)) WITH (SNAPSHOT = false) AS OF {two} UP TO {last + 1}")
    ) == [
        ("delete", 1, None),
        ("upsert", 2, "zwei"),
    ]
    assert sorted(
        at(f"SUBSCRIBE told ENVELOPE DEBEZIUM (KEY (id)) WITH (SNAPSHOT = false) AS OF {two} UP TO {last + 1}")
    ) == [
        ("delete", 1, "one", None),
        ("upsert", 2, "two", "zwei"),
    ]
    with pytest.raises(errors.InvalidParameterValue, match="is no longer held"):
        followed.run(f"SUBSCRIBE told AS OF {first - 100000} UP TO {last}")
    assert at(f"SUBSCRIBE told AS OF AT LEAST {first - 100000} UP TO {first + 1}") == [(1, 1, "one")]
    with pytest.raises(errors.InvalidParameterValue, match="is not held"):
        followed.run(f"SUBSCRIBE (SELECT id FROM told UNION ALL SELECT key FROM kv) AS OF {two - 2000} UP TO {last}")
    followed.run("ALTER TABLE told RESET (RETAIN HISTORY)")


def test_without_a_snapshot(followed: Database) -> None:
    followed.run("TRUNCATE kv; INSERT INTO kv VALUES (1, 1)")
    connection = followed.connect(autocommit=False)
    rows = begun(connection, "SUBSCRIBE kv WITH (SNAPSHOT = false, PROGRESS)")
    assert all(row[1] for row in rows)
    followed.run("INSERT INTO kv VALUES (2, 2)")
    assert changes(connection) == [(1, 2, 2)]
    connection.rollback()


def test_a_transaction_that_was_open_at_the_start_comes_whole(followed: Database) -> None:
    followed.run("TRUNCATE kv")
    first = followed.connect(autocommit=False)
    begun(first, "SUBSCRIBE (SELECT count(*) FROM kv) WITH (PROGRESS)")
    writer = followed.connect(autocommit=False)
    writer.execute("INSERT INTO kv VALUES (1, 1)")
    reader = followed.connect(autocommit=False)
    # Capture is there already: a first subscription would wait for the writer.
    rows = begun(reader, "SUBSCRIBE kv WITH (PROGRESS)")
    assert all(row[1] for row in rows)
    writer.execute("INSERT INTO kv VALUES (2, 2)")
    writer.execute("UPDATE kv SET value = 3 WHERE key = 1")
    followed.run("INSERT INTO kv VALUES (9, 9)")
    assert changes(reader) == [(1, 9, 9)]
    writer.commit()
    found: list[tuple[Any, ...]] = []
    while not found:
        found = [row for row in reader.execute("FETCH ALL c").fetchall() if not row[1]]
    assert sorted(row[2:] for row in found) == [(1, 1, 3), (1, 2, 2)]
    assert len({row[0] for row in found}) == 1
    reader.rollback()
    first.rollback()


def test_what_is_followed_is_captured_no_longer_than_that(followed: Database, eventually: Eventually) -> None:
    followed.run("CREATE TABLE passing (id int)")
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'passing'::regclass"
    assert followed.value(triggers) == 0
    connection = followed.connect(autocommit=False)
    begun(connection, "SUBSCRIBE (SELECT count(*) FROM passing) WITH (PROGRESS)")
    assert followed.value(triggers) > 0
    connection.close()
    eventually(lambda: followed.value(triggers) == 0)


QUERIES = (
    "SELECT grp, count(*) AS n, sum(val) AS total FROM moved GROUP BY grp",
    "SELECT a.id, b.id AS other FROM moved a JOIN moved b ON a.grp = b.grp AND a.val < b.val",
    "SELECT DISTINCT val FROM moved WHERE grp <> 2",
)


@pytest.mark.parametrize("query", QUERIES)
def test_folded_stream_equals_the_query_at_every_closed_timestamp(
    followed: Database, query: str, eventually: Eventually
) -> None:
    """The oracle knows nothing of capture: it reads a log in which each change notes its transaction."""
    followed.run("DROP TABLE IF EXISTS moved, log")
    followed.run("CREATE TABLE moved (id int, grp int, val int)")
    followed.run("CREATE TABLE log (xid xid8 DEFAULT pg_current_xact_id(), w int, id int, grp int, val int)")
    followed.run("ALTER TABLE moved SET (RETAIN HISTORY FOR '1h')")
    eventually(lambda: followed.value("SELECT bool_and(held_from IS NOT NULL) FROM pgtrickle.history_status()"))
    chance = random.Random(QUERIES.index(query))
    stop = threading.Event()

    def change(seed: int) -> None:
        mine = random.Random(seed)
        with psycopg.connect(followed.server.dsn(followed.name)) as connection:
            while not stop.is_set():
                for _ in range(mine.randint(1, 3)):
                    row = (mine.randint(1, 9), mine.randint(1, 3), mine.randint(1, 4))
                    if mine.random() < 0.6:
                        connection.execute("INSERT INTO moved VALUES (%s, %s, %s)", row)
                        connection.execute("INSERT INTO log (w, id, grp, val) VALUES (1, %s, %s, %s)", row)
                    else:
                        connection.execute(
                            "WITH gone AS (DELETE FROM moved WHERE id = %s RETURNING id, grp, val)"
                            " INSERT INTO log (w, id, grp, val) SELECT -1, * FROM gone",
                            row[:1],
                        )
                if mine.random() < 0.8:
                    connection.commit()
                else:
                    connection.rollback()
                stop.wait(mine.random() * 0.05)

    writers = [threading.Thread(target=change, args=(chance.random(),)) for _ in range(3)]
    for writer in writers:
        writer.start()
    states: list[tuple[int, Counter[Any]]] = []
    try:
        with psycopg.connect(followed.server.dsn(followed.name)) as connection:
            folded = Folded()
            connection.execute(f"DECLARE c CURSOR FOR SUBSCRIBE ({query}) WITH (PROGRESS)")
            while len(states) < 12:
                for row in connection.execute("FETCH ALL c"):
                    if folded.take(row) and (not states or folded.rows != states[-1][1]):
                        states.append((folded.closed, folded.rows.copy()))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    at = (
        "WITH at AS (SELECT snapshot FROM pgtrickle.pgt_timeline WHERE mz_timestamp < %s"
        " ORDER BY mz_timestamp DESC LIMIT 1),"
        " net AS (SELECT id, grp, val, sum(w)::int AS n FROM log, at WHERE pg_visible_in_snapshot(xid, at.snapshot)"
        " GROUP BY id, grp, val), moved AS (SELECT id, grp, val FROM net, generate_series(1, net.n))"
    )
    for closed, rows in states:
        assert Counter(followed.rows(f"{at} {query}", closed)) == rows, f"at {closed}"
    followed.run("ALTER TABLE moved RESET (RETAIN HISTORY)")
