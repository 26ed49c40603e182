"""Registers under several sessions at once: nothing is lost, nothing is counted twice, nobody deadlocks."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest

from tests.catalog.conftest import Connection

_numbers = count(1)

Open = Callable[[], Connection]


@pytest.fixture
def connections(register_database: str) -> Iterator[Open]:
    """Connections of this test."""
    opened: list[Connection] = []

    def connect() -> Connection:
        opened.append(psycopg.connect(register_database, autocommit=True))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def create(connections: Open, kind: str = "balance") -> tuple[Connection, str]:
    """A new register over `item`, with the resource `n`."""
    connection, name = connections(), f"concurrent_{next(_numbers)}"
    connection.execute(
        f"SELECT accum.register_create('{name}', '{{\"item\": \"int\"}}', '{{\"n\": \"int\"}}', kind := '{kind}')"
    )
    return connection, name


def value(connection: Connection, statement: str, *args: Any) -> Any:
    """The one value of a statement."""
    row = connection.execute(statement, args).fetchone()
    assert row is not None
    return row[0]


def lines(recorder: str, *movements: tuple[int, int]) -> str:
    """Movements of a document: items and numbers."""
    return json.dumps([{"recorder": recorder, "period": "2026-04-18", "item": item, "n": n} for item, n in movements])


def together(works: list[Callable[[], None]]) -> None:
    """Do it all at once. Raises the first error."""
    start = threading.Barrier(len(works))

    def begin(work: Callable[[], None]) -> None:
        start.wait(30)
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(begin, work) for work in works]:
            done.result(120)


def wrong(connection: Connection, name: str) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT * FROM accum.register_verify(%s) WHERE status <> 'OK'", [name]).fetchall()


def test_sixteen_writers_on_one_cell_in_every_snapshot(connections: Open) -> None:
    """A reader compares the cache with the movements in one snapshot each time, while sixteen sessions write."""
    connection, name = create(connections)
    finished = threading.Event()
    compared: list[tuple[int, int]] = []

    def writer(number: int) -> Callable[[], None]:
        session = connections()

        def write() -> None:
            for turn in range(12):
                session.execute(
                    "SELECT accum.register_post(%s, %s::jsonb)", [name, lines(f"{number}", (1, turn), (1, 1))]
                )

        return write

    def reader() -> None:
        session = connections()
        while not finished.is_set():
            row = session.execute(
                f"SELECT coalesce((SELECT n FROM accum.{name}_balance_cache), 0), "
                f"coalesce((SELECT sum(n) FROM accum.{name}_totals_month), 0), "
                f"(SELECT coalesce(sum(n), 0) FROM accum.{name}_movements)"
            ).fetchone()
            assert row is not None and row[0] == row[1] == row[2]
            compared.append(row[:2])

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(reader)
        together([writer(number) for number in range(16)])
        finished.set()
        reading.result(60)
    total = 16 * sum(turn + 1 for turn in range(12))
    assert value(connection, f"SELECT (accum.{name}_balance()->>'n')::int") == total
    assert value(connection, f"SELECT version FROM accum.{name}_balance_cache") == 16 * 12
    assert len(compared) > 1 and wrong(connection, name) == []


def test_a_register_is_created_and_dropped_once(connections: Open) -> None:
    name = f"once_{next(_numbers)}"
    everybody = [connections() for _ in range(4)]

    def outcomes(statement: str) -> list[str | None]:
        found: list[str | None] = []

        def attempt(connection: Connection) -> None:
            try:
                connection.execute(statement.encode())
                found.append(None)
            except psycopg.Error as error:
                found.append(error.diag.message_primary)

        together([partial(attempt, connection) for connection in everybody])
        return sorted(found, key=str)

    created = outcomes(f'SELECT accum.register_create(\'{name}\', \'{{"item": "int"}}\', \'{{"n": "int"}}\')')
    assert created == [None, *[f'register "{name}" already exists'] * 3]
    altered = outcomes(f"SELECT accum.register_alter('{name}', '{{\"a\": \"int\"}}')")
    assert altered == [None, *[f'register "{name}" has a column "a" already'] * 3]
    dropped = outcomes(f"SELECT accum.register_drop('{name}')")
    assert dropped == [None, *[f'register "{name}" does not exist'] * 3]


@pytest.mark.parametrize("kind", ["balance", "turnover"])
def test_batches_over_the_same_cells_in_any_order_do_not_deadlock(connections: Open, kind: str) -> None:
    connection, name = create(connections, kind)
    picks = random.Random(5)

    def worker(number: int) -> Callable[[], None]:
        session = connections()
        batches = [[(item, 1) for item in picks.sample(range(40), 20)] for _ in range(10)]

        def work() -> None:
            for turn, batch in enumerate(batches):
                if turn % 2:
                    session.execute(
                        "SELECT accum.register_repost(%s, %s, %s::jsonb)",
                        [name, f"{number}", lines(f"{number}", *batch)],
                    )
                else:
                    session.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, lines(f"{number}", *batch)])

        return work

    together([worker(number) for number in range(6)])
    # What the last turn, a repost, has left of each worker: twenty movements of 1.
    assert value(connection, f"SELECT sum(n) FROM accum.{name}_movements") == 6 * 20
    assert wrong(connection, name) == []


def test_reposts_of_one_document_at_once_leave_one_of_them(connections: Open) -> None:
    connection, name = create(connections)
    connection.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, lines("doc", (1, 1), (2, 1))])

    def worker(number: int) -> Callable[[], None]:
        session = connections()

        def work() -> None:
            for _ in range(5):
                session.execute(
                    "SELECT accum.register_repost(%s, 'doc', %s::jsonb)", [name, lines("doc", (1, number), (number, 1))]
                )

        return work

    together([worker(number) for number in range(2, 8)])
    left = connection.execute(f"SELECT item, n FROM accum.{name}_movements ORDER BY item").fetchall()
    assert len(left) == 2 and left[0] == (1, left[1][0]) and left[1][1] == 1
    assert value(connection, f"SELECT count(*) FROM accum.{name}_movements_audit") == 2 * 6 * 5
    assert wrong(connection, name) == []


def test_posting_taking_back_and_replacing_one_document_at_once(connections: Open) -> None:
    connection, name = create(connections)
    calls = (
        "SELECT accum.register_post(%(name)s, %(lines)s::jsonb)",
        "SELECT accum.register_repost(%(name)s, 'doc', %(lines)s::jsonb)",
        "SELECT accum.register_unpost(%(name)s, 'doc')",
    )

    def worker(number: int) -> Callable[[], None]:
        session = connections()

        def work() -> None:
            for turn in range(8):
                arguments = {"name": name, "lines": lines("doc", (turn % 3, 1), (number, 2))}
                session.execute(calls[(number + turn) % 3], arguments)

        return work

    together([worker(number) for number in range(6)])
    assert wrong(connection, name) == []
    connection.execute("SELECT accum.register_unpost(%s, 'doc')", [name])
    assert value(connection, f"SELECT accum.{name}_balance()") == {"n": 0}
    posted = value(connection, f"SELECT count(DISTINCT id) FROM accum.{name}_movements_audit")
    assert posted == value(connection, f"SELECT count(*) FROM accum.{name}_movements_audit") > 0


def test_repeatable_read_fails_rather_than_lose_an_update(connections: Open) -> None:
    connection, name = create(connections)
    connection.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, lines("a", (1, 1))])
    late = connections()
    late.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert value(late, f"SELECT (accum.{name}_balance()->>'n')::int") == 1
    connection.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, lines("b", (1, 1))])
    with pytest.raises(psycopg.errors.SerializationFailure):
        late.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, lines("c", (1, 1))])
    late.execute("ROLLBACK")
    assert value(connection, f"SELECT accum.{name}_balance()") == {"n": 2}
    assert wrong(connection, name) == []


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(
    ("high_write", "change", "done"),
    [
        (True, "register_alter('{}', high_write := false)", True),
        (True, "register_alter('{}', add_resources := '{{\"m\": \"int\"}}')", True),
        (False, "register_detach_partitions('{}', '2100-01-01'::date)", True),
        (False, "register_drop('{}')", False),
    ],
)
def test_tables_are_not_taken_apart_by_who_does_not_see_all(
    connections: Open, isolation: str, high_write: bool, change: str, done: bool
) -> None:
    connection, name = create(connections)
    connection.execute(f"SELECT accum.register_alter('{name}', high_write := {high_write})")
    late = connections()
    late.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    assert value(late, f"SELECT accum.{name}_balance()") == {"n": 0}
    connection.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, lines("a", (1, 5))])
    with pytest.raises(psycopg.errors.ActiveSqlTransaction):
        late.execute("SELECT accum." + change.format(name))
    late.execute("ROLLBACK")
    if done:
        connection.execute("SELECT accum." + change.format(name))
    assert value(connection, f"SELECT (accum.{name}_balance() ->> 'n')::int") == 5
    assert wrong(connection, name) == []
