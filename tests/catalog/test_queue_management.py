"""Creating, dropping and configuring queues."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from tests.catalog.conftest import Queue

DEFAULTS = {
    "ticker_max_count": 500,
    "ticker_max_lag": timedelta(seconds=3),
    "ticker_idle_period": timedelta(minutes=1),
    "ticker_paused": False,
    "rotation_period": timedelta(hours=2),
    "external_ticker": False,
    "max_retries": 5,
}


def test_create_is_repeatable_and_defaults_are_set(queue: Queue) -> None:
    assert queue.value("SELECT pgque.create_queue(%s)", queue.name) == 0
    (row,) = queue.rows(
        f"SELECT {', '.join('queue_' + name for name in DEFAULTS)}, queue_ntables, queue_cur_table "
        "FROM pgque.queue WHERE queue_name = %s",
        queue.name,
    )
    assert row == (*DEFAULTS.values(), 3, 0)


def test_events_have_the_columns_of_the_template(queue: Queue) -> None:
    prefix = queue.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", queue.name)
    columns = (
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert queue.rows(columns, f"{prefix}_2") == queue.rows(columns, "pgque.event_template")
    indexed = "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass"
    assert [queue.value(indexed, f"{prefix}_{number}") for number in range(3)] == [1, 1, 1]


def test_names_of_any_characters_up_to_57_bytes(queue: Queue) -> None:
    for name in ("a", "x" * 57, "ä" * 28, "quote \" and ' and ; drop", "%s %I %1$s $1", "Größe", "$begun$ $$ \\' E'\\"):
        assert queue.value("SELECT pgque.create_queue(%s)", name) == 1
        assert queue.value("SELECT pgque.subscribe(%s, %s)", name, "consumer " + name) == 1
        other = Queue(queue.connection, name)
        other.send("x")
        other.tick()
        rows = queue.rows("SELECT payload FROM pgque.receive(%s, %s)", name, "consumer " + name)
        assert rows == [("x",)]
        assert queue.value("SELECT pgque.drop_queue(%s, true)", name) == 1
    for name in ("x" * 58, "ä" * 29):
        assert "57" in str(queue.fails("SELECT pgque.create_queue(%s)", name))
    for name in ("", None):
        assert queue.fails("SELECT pgque.create_queue(%s::text)", name).sqlstate == "P0001"


def test_the_longest_name_has_a_channel(queue: Queue) -> None:
    name = "n" * 57
    queue.value("SELECT pgque.create_queue(%s)", name)
    queue.connection.execute(f'LISTEN "pgque_{name}"')
    other = Queue(queue.connection, name)
    other.send("x")
    tick = other.tick()
    assert [(n.channel, n.payload) for n in queue.connection.notifies(timeout=30, stop_after=1)] == [
        (f"pgque_{name}", str(tick))
    ]


def test_drop_needs_force_while_there_are_consumers(queue: Queue) -> None:
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    prefix = queue.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", queue.name)
    for call in ("drop_queue(%s)", "drop_queue(%s, false)"):
        assert "consumers" in str(queue.fails(f"SELECT pgque.{call}", queue.name))
    queue.send("x")
    queue.tick()
    batch = queue.value("SELECT pgque.next_batch(%s, 'c')", queue.name)
    queue.value("SELECT pgque.batch_retry(%s, 0)", batch)
    assert queue.value("SELECT pgque.drop_queue(%s, true)", queue.name) == 1
    assert queue.rows("SELECT relname FROM pg_class WHERE relname LIKE %s", f"{prefix.split('.')[1]}\\_%") == []
    assert queue.rows("SELECT relname FROM pg_class WHERE relname = %s", prefix.split(".")[1]) == []
    assert queue.value("SELECT pgque.create_queue(%s)", queue.name) == 1
    assert queue.value("SELECT pgque.drop_queue(%s)", queue.name) == 1
    assert queue.fails("SELECT pgque.drop_queue(%s)", queue.name).sqlstate == "P0001"


@pytest.mark.parametrize(
    ("param", "value", "stored"),
    [
        ("ticker_max_count", "7", 7),
        ("ticker_max_lag", "5 seconds", timedelta(seconds=5)),
        ("ticker_idle_period", "2 minutes", timedelta(minutes=2)),
        ("ticker_paused", "true", True),
        ("rotation_period", "1 hour", timedelta(hours=1)),
        ("external_ticker", "true", True),
        ("max_retries", "0", 0),
    ],
)
def test_parameters_are_set_and_null_gives_the_default(queue: Queue, param: str, value: str, stored: object) -> None:
    read = f"SELECT queue_{param} FROM pgque.queue WHERE queue_name = %s"
    assert queue.value("SELECT pgque.set_queue_config(%s, %s, %s)", queue.name, param, value) == 1
    assert queue.value(read, queue.name) == stored
    assert queue.value("SELECT pgque.set_queue_config(%s, %s, NULL)", queue.name, param) == 1
    assert queue.value(read, queue.name) == DEFAULTS[param]


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_retries", "-1"),
        ("ticker_max_count", "0"),
        ("ticker_max_lag", "0"),
        ("ticker_idle_period", "-1 second"),
        ("rotation_period", "0"),
        ("queue_max_retries", "1"),
        ("name", "x"),
        ("max_retries = 1, queue_name", "x"),
    ],
)
def test_parameters_out_of_range_or_unknown(queue: Queue, param: str, value: str) -> None:
    assert queue.fails("SELECT pgque.set_queue_config(%s, %s, %s)", queue.name, param, value).sqlstate == "P0001"


def test_configuration_of_an_unknown_queue(queue: Queue) -> None:
    for value in ("1", None):
        assert queue.fails("SELECT pgque.set_queue_config('nope', 'max_retries', %s)", value).sqlstate == "P0001"


@pytest.mark.parametrize("statement", ["SELECT pgque.create_queue(%s)", "SELECT pgque.drop_queue(%s)"])
def test_an_older_snapshot_does_not_bring_back_a_queue(queue: Queue, queue_database: str, statement: str) -> None:
    queue.value("SELECT pgque.create_queue('untouched')")
    with psycopg.connect(queue_database) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM pgque.queue")
        queue.value("SELECT pgque.drop_queue(%s)", queue.name)
        queue.value("SELECT pgque.create_queue(%s)", queue.name)
        with pytest.raises(psycopg.errors.SerializationFailure):
            other.execute(statement, ["untouched" if "drop" in statement else "late"])
    assert queue.send("x") == [1]
    queue.value("SELECT pgque.drop_queue('untouched')")


def test_many_create_and_drop_at_once(queue: Queue, queue_database: str) -> None:
    def work(number: int) -> list[int]:
        with psycopg.connect(queue_database, autocommit=True) as connection:
            results = []
            for call in ("create_queue('same')", f"create_queue('own {number}')", f"drop_queue('own {number}')"):
                row = connection.execute(f"SELECT pgque.{call}").fetchone()
                assert row is not None
                results.append(row[0])
            return results

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert sorted(first for first, _, _ in results) == [0, 0, 0, 1]
    assert [rest for _, *rest in results] == [[1, 1]] * 4
    assert queue.rows("SELECT queue_name FROM pgque.queue WHERE queue_name LIKE 'own%%'") == []
