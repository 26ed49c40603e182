"""What queues say about themselves: information, statistics, metrics, notifications."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tests.catalog.conftest import Queue

MINUTE = timedelta(minutes=1)


def named(queue: Queue, statement: str, *args: Any) -> list[dict[str, Any]]:
    """The rows of a statement by their columns' names."""
    cursor = queue.connection.execute(statement, args)
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def one(queue: Queue, statement: str, *args: Any) -> dict[str, Any]:
    """The only row of a statement."""
    (row,) = named(queue, statement, *args)
    return row


def send(queue: Queue, *payloads: str) -> None:
    """Send events one by one: their ids have no gaps."""
    for payload in payloads:
        queue.value("SELECT pgque.send(%s, %s)", queue.name, payload)


def columns(queue: Queue, call: str) -> list[tuple[str, str]]:
    """The result columns of a function: name and type."""
    return queue.rows(
        "SELECT name, format_type(type, NULL) FROM pg_proc, unnest(proargnames, proallargtypes, proargmodes) "
        "WITH ORDINALITY AS a (name, type, mode, n) WHERE oid = %s::regprocedure AND mode IN ('o', 't') ORDER BY n",
        call,
    )


def age(queue: Queue, table: str, column: str, by: str, condition: str) -> None:
    """Make something look older."""
    queue.connection.execute(f"UPDATE pgque.{table} SET {column} = {column} - interval '{by}' WHERE {condition}")


@pytest.fixture
def two_consumers(queue: Queue) -> Queue:
    """Three events, one tick; consumer `quick` has finished them, `slow` is at work on them."""
    for consumer in ("quick", "slow"):
        queue.value("SELECT pgque.subscribe(%s, %s)", queue.name, consumer)
    send(queue, "1", "2", "3")
    queue.value("SELECT pgque._tick_early(%s)", queue.name)
    queue.value("SELECT pgque.ack(pgque.next_batch(%s, 'quick'))", queue.name)
    queue.value("SELECT pgque.next_batch(%s, 'slow')", queue.name)
    return queue


def test_columns_are_those_of_the_reference(queue: Queue) -> None:
    info = [
        ("queue_name", "text"),
        ("queue_ntables", "integer"),
        ("queue_cur_table", "integer"),
        ("queue_rotation_period", "interval"),
        ("queue_switch_time", "timestamp with time zone"),
        ("queue_external_ticker", "boolean"),
        ("queue_ticker_paused", "boolean"),
        ("queue_ticker_max_count", "integer"),
        ("queue_ticker_max_lag", "interval"),
        ("queue_ticker_idle_period", "interval"),
        ("ticker_lag", "interval"),
        ("ev_per_sec", "double precision"),
        ("ev_new", "bigint"),
        ("last_tick_id", "bigint"),
    ]
    consumer = [
        ("queue_name", "text"),
        ("consumer_name", "text"),
        ("lag", "interval"),
        ("last_seen", "interval"),
        ("last_tick", "bigint"),
        ("current_batch", "bigint"),
        ("next_tick", "bigint"),
        ("pending_events", "bigint"),
    ]
    batch = [
        ("queue_name", "text"),
        ("consumer_name", "text"),
        ("batch_start", "timestamp with time zone"),
        ("batch_end", "timestamp with time zone"),
        ("prev_tick_id", "bigint"),
        ("tick_id", "bigint"),
        ("lag", "interval"),
        ("seq_start", "bigint"),
        ("seq_end", "bigint"),
    ]
    stats = [
        ("queue_name", "text"),
        ("queue_id", "integer"),
        ("depth", "bigint"),
        ("oldest_msg_age", "interval"),
        ("consumers", "integer"),
        ("events_per_sec", "numeric"),
        ("cur_table", "integer"),
        ("rotation_age", "interval"),
        ("rotation_period", "interval"),
        ("ticker_paused", "boolean"),
        ("last_tick_time", "timestamp with time zone"),
        ("last_tick_id", "bigint"),
        ("dlq_count", "bigint"),
    ]
    per_consumer = [
        ("queue_name", "text"),
        ("consumer_name", "text"),
        ("lag", "interval"),
        ("pending_events", "bigint"),
        ("last_batch_start", "timestamp with time zone"),
        ("batch_active", "boolean"),
        ("batch_id", "bigint"),
    ]
    expected = {
        "get_queue_info()": info,
        "get_queue_info(text)": info,
        "get_consumer_info()": consumer,
        "get_consumer_info(text)": consumer,
        "get_consumer_info(text,text)": consumer,
        "get_batch_info(bigint)": batch,
        "queue_stats()": stats,
        "consumer_stats()": per_consumer,
        "otel_metrics()": [
            ("metric_name", "text"),
            ("metric_type", "text"),
            ("metric_value", "numeric"),
            ("labels", "jsonb"),
        ],
        "stuck_consumers(interval)": [
            ("queue_name", "text"),
            ("consumer_name", "text"),
            ("lag", "interval"),
            ("last_active", "timestamp with time zone"),
        ],
        "in_flight(text)": [
            ("consumer_name", "text"),
            ("batch_id", "bigint"),
            ("batch_age", "interval"),
            ("estimated_events", "bigint"),
        ],
        "throughput(text,interval,interval)": [
            ("bucket_start", "timestamp with time zone"),
            ("events", "bigint"),
            ("events_per_sec", "numeric"),
        ],
        "error_rate(text,interval,interval)": [
            ("bucket_start", "timestamp with time zone"),
            ("retries", "bigint"),
            ("dead_letters", "bigint"),
        ],
        "status()": [("component", "text"), ("status", "text"), ("detail", "text")],
    }
    assert {call: columns(queue, f"pgque.{call}") for call in expected} == expected
    assert columns(queue, "pgque.queue_health()")[:3] == [
        ("queue_name", "text"),
        ("check_name", "text"),
        ("status", "text"),
    ]


def test_queue_info(two_consumers: Queue) -> None:
    queue = two_consumers
    send(queue, "4", "5")
    row = one(queue, "SELECT * FROM pgque.get_queue_info(%s)", queue.name)
    assert timedelta(0) <= row.pop("ticker_lag") < MINUTE
    assert row.pop("ev_per_sec") > 0
    assert datetime.now(UTC) - row.pop("queue_switch_time") < MINUTE
    for setting in ("ticker_max_count", "ticker_max_lag", "ticker_idle_period", "rotation_period"):
        queue_setting = queue.value(f"SELECT queue_{setting} FROM pgque.queue WHERE queue_name = %s", queue.name)
        assert row.pop(f"queue_{setting}") == queue_setting
    assert row == {
        "queue_name": queue.name,
        "queue_ntables": 3,
        "queue_cur_table": 0,
        "queue_external_ticker": False,
        "queue_ticker_paused": False,
        "ev_new": 2,
        "last_tick_id": 2,
    }
    assert queue.name in {r["queue_name"] for r in named(queue, "SELECT * FROM pgque.get_queue_info()")}
    assert named(queue, "SELECT * FROM pgque.get_queue_info('nowhere')") == []


def test_consumer_info(two_consumers: Queue) -> None:
    queue = two_consumers
    send(queue, "4")
    queue.value("SELECT pgque._tick_early(%s)", queue.name)
    age(queue, "tick", "tick_time", "1 hour", "tick_id = 1 AND tick_queue = (SELECT max(queue_id) FROM pgque.queue)")
    quick, slow = named(queue, "SELECT * FROM pgque.get_consumer_info(%s)", queue.name)
    assert slow == one(queue, "SELECT * FROM pgque.get_consumer_info(%s, 'slow')", queue.name) | {
        key: slow[key] for key in ("lag", "last_seen")
    }
    for row in (quick, slow):
        assert row["queue_name"] == queue.name
        assert timedelta(0) <= row["last_seen"] < MINUTE
    keys = ("consumer_name", "last_tick", "current_batch", "next_tick", "pending_events")
    batch = queue.value("SELECT pgque.next_batch(%s, 'slow')", queue.name)
    assert [tuple(row[key] for key in keys) for row in (quick, slow)] == [
        ("quick", 2, None, None, 1),
        ("slow", 1, batch, 2, 4),
    ]
    assert quick["lag"] < MINUTE < timedelta(hours=1) <= slow["lag"] < timedelta(hours=1) + MINUTE
    everywhere = named(queue, "SELECT * FROM pgque.get_consumer_info(NULL, 'slow')")
    assert queue.name in {row["queue_name"] for row in everywhere}
    assert {row["consumer_name"] for row in everywhere} == {"slow"}
    assert len(named(queue, "SELECT * FROM pgque.get_consumer_info(%s, NULL)", queue.name)) == 2
    assert len(named(queue, "SELECT * FROM pgque.get_consumer_info()")) >= 2


def test_batch_info(two_consumers: Queue) -> None:
    queue = two_consumers
    batch = queue.value("SELECT pgque.next_batch(%s, 'slow')", queue.name)
    row = one(queue, "SELECT * FROM pgque.get_batch_info(%s)", batch)
    start, end, lag = (row.pop(key) for key in ("batch_start", "batch_end", "lag"))
    assert start < end
    assert timedelta(0) <= lag < MINUTE
    assert row == {
        "queue_name": queue.name,
        "consumer_name": "slow",
        "prev_tick_id": 1,
        "tick_id": 2,
        "seq_start": 0,
        "seq_end": 3,
    }
    queue.value("SELECT pgque.ack(%s)", batch)
    assert set(one(queue, "SELECT * FROM pgque.get_batch_info(%s)", batch).values()) == {None}


def test_queue_stats(two_consumers: Queue) -> None:
    queue = two_consumers
    send(queue, "4", "5")
    row = one(queue, "SELECT * FROM pgque.queue_stats() WHERE queue_name = %s", queue.name)
    assert timedelta(0) < row.pop("oldest_msg_age") < MINUTE
    assert timedelta(0) < row.pop("rotation_age") < MINUTE
    assert row.pop("events_per_sec") > 0
    assert datetime.now(UTC) - row.pop("last_tick_time") < MINUTE
    assert row.pop("rotation_period") == timedelta(hours=2)
    row.pop("queue_id")
    assert row == {
        "queue_name": queue.name,
        "depth": 5,
        "consumers": 2,
        "cur_table": 0,
        "ticker_paused": False,
        "last_tick_id": 2,
        "dlq_count": 0,
    }
    queue.value("SELECT pgque._tick_early(%s)", queue.name)
    for consumer, batches in (("slow", 2), ("quick", 1)):
        for _ in range(batches):
            queue.value("SELECT pgque.ack(pgque.next_batch(%s, %s))", queue.name, consumer)
    row = one(queue, "SELECT * FROM pgque.queue_stats() WHERE queue_name = %s", queue.name)
    assert (row["depth"], row["oldest_msg_age"]) == (0, None)


def test_subconsumers_are_no_consumers_of_their_own_in_the_statistics(queue: Queue) -> None:
    for worker in "ab":
        queue.value("SELECT pgque.register_subconsumer(%s, 'team', %s)", queue.name, worker)
    send(queue, "1")
    queue.value("SELECT pgque._tick_early(%s)", queue.name)
    queue.value("SELECT pgque.next_batch(%s, 'team', 'a')", queue.name)
    row = one(queue, "SELECT consumers, depth FROM pgque.queue_stats() WHERE queue_name = %s", queue.name)
    assert row == {"consumers": 1, "depth": 1}, "what a member has not finished counts"
    rows = named(queue, "SELECT * FROM pgque.consumer_stats() WHERE queue_name = %s", queue.name)
    assert [(r["consumer_name"], r["batch_active"], r["pending_events"]) for r in rows] == [
        ("team", False, 0),
        ("team.a", True, 1),
        ("team.b", False, None),
    ]


def test_consumer_stats(two_consumers: Queue) -> None:
    queue = two_consumers
    batch = queue.value("SELECT pgque.next_batch(%s, 'slow')", queue.name)
    rows = named(queue, "SELECT * FROM pgque.consumer_stats() WHERE queue_name = %s", queue.name)
    for row in rows:
        assert timedelta(0) <= row.pop("lag") < MINUTE
        assert datetime.now(UTC) - row.pop("last_batch_start") < MINUTE
        assert row.pop("queue_name") == queue.name
    assert rows == [
        {"consumer_name": "quick", "pending_events": 0, "batch_active": False, "batch_id": None},
        {"consumer_name": "slow", "pending_events": 3, "batch_active": True, "batch_id": batch},
    ]


def test_queue_health(queue: Queue) -> None:
    def health() -> dict[str, str]:
        rows = queue.rows("SELECT check_name, status FROM pgque.queue_health() WHERE queue_name = %s", queue.name)
        return dict(rows)

    mine = f"queue_name = '{queue.name}'"
    ticks = f"tick_queue = (SELECT queue_id FROM pgque.queue WHERE {mine})"
    assert health() == {"ticker_running": "warning", "rotation": "ok", "dlq": "ok"}
    details = dict(queue.rows("SELECT check_name, detail FROM pgque.queue_health() WHERE queue_name = %s", queue.name))
    assert details["ticker_running"].startswith("the clock is not running, last tick ")
    age(queue, "tick", "tick_time", "3 minutes", ticks)
    age(queue, "queue", "queue_switch_time", "5 hours", mine)
    assert health() == {"ticker_running": "warning", "rotation": "warning", "dlq": "ok"}
    age(queue, "tick", "tick_time", "3 minutes", ticks)
    age(queue, "queue", "queue_switch_time", "5 hours", mine)
    assert health() == {"ticker_running": "critical", "rotation": "critical", "dlq": "ok"}
    queue.value("SELECT pgque.pause_queue(%s)", queue.name)
    queue.connection.execute(
        "INSERT INTO pgque.consumer (co_name) VALUES ('c') ON CONFLICT DO NOTHING; INSERT INTO pgque.dead_letter "
        "(dl_queue_id, dl_consumer_id, ev_id, ev_time) SELECT queue_id, co_id, 1, now() "
        f"FROM pgque.queue, pgque.consumer WHERE {mine} AND co_name = 'c'"
    )
    assert health() == {"ticker_running": "warning", "rotation": "critical", "dlq": "warning"}
    details = dict(queue.rows("SELECT check_name, detail FROM pgque.queue_health() WHERE queue_name = %s", queue.name))
    assert details["ticker_running"] == "ticker is paused"
    assert details["dlq"] == "1 dead letters"


def test_otel_metrics(two_consumers: Queue) -> None:
    queue = two_consumers
    rows = queue.rows(
        "SELECT metric_name, metric_type, metric_value, labels FROM pgque.otel_metrics() WHERE labels ->> 'queue' = %s",
        queue.name,
    )
    of_queue = {name: (kind, value) for name, kind, value, labels in rows if labels == {"queue": queue.name}}
    assert set(of_queue) == {
        f"pgque.queue.{name}"
        for name in (
            *("depth", "oldest_message_age", "consumers", "events", "events_per_second", "ticker_lag"),
            *("dead_letters", "retries"),
        )
    }
    assert of_queue["pgque.queue.depth"] == ("gauge", 3)
    assert of_queue["pgque.queue.consumers"] == ("gauge", 2)
    assert of_queue["pgque.queue.events"] == ("counter", 3)
    assert of_queue["pgque.queue.dead_letters"] == of_queue["pgque.queue.retries"] == ("gauge", 0)
    assert 0 <= of_queue["pgque.queue.ticker_lag"][1] < 60
    of_consumers = {(labels["consumer"], name): value for name, _, value, labels in rows if "consumer" in labels}
    assert {key: value for key, value in of_consumers.items() if key[1] != "pgque.consumer.lag"} == {
        ("quick", "pgque.consumer.pending_events"): 0,
        ("quick", "pgque.consumer.batch_active"): 0,
        ("slow", "pgque.consumer.pending_events"): 3,
        ("slow", "pgque.consumer.batch_active"): 1,
    }
    assert 0 <= of_consumers["slow", "pgque.consumer.lag"] < 60


def test_stuck_consumers(two_consumers: Queue) -> None:
    queue = two_consumers
    mine = f"tick_queue = (SELECT queue_id FROM pgque.queue WHERE queue_name = '{queue.name}')"
    stuck = "SELECT queue_name, consumer_name FROM pgque.stuck_consumers({}) WHERE queue_name = %s"
    assert queue.rows(stuck.format(""), queue.name) == []
    age(queue, "tick", "tick_time", "50 minutes", f"{mine} AND tick_id = 1")
    assert queue.rows(stuck.format(""), queue.name) == []
    assert queue.rows(stuck.format("'30 minutes'"), queue.name) == [(queue.name, "slow")]
    age(queue, "tick", "tick_time", "50 minutes", f"{mine} AND tick_id = 1")
    assert queue.rows(stuck.format(""), queue.name) == [(queue.name, "slow")]


def test_in_flight(two_consumers: Queue) -> None:
    queue = two_consumers
    batch = queue.value("SELECT pgque.next_batch(%s, 'slow')", queue.name)
    row = one(queue, "SELECT * FROM pgque.in_flight(%s)", queue.name)
    assert timedelta(0) <= row.pop("batch_age") < MINUTE
    assert row == {"consumer_name": "slow", "batch_id": batch, "estimated_events": 3}
    queue.value("SELECT pgque.ack(%s)", batch)
    assert named(queue, "SELECT * FROM pgque.in_flight(%s)", queue.name) == []


def test_throughput_by_buckets(queue: Queue) -> None:
    for number in (4, 6):
        send(queue, *map(str, range(number)))
        queue.value("SELECT pgque._tick_early(%s)", queue.name)
        if number == 4:
            age(
                queue,
                "tick",
                "tick_time",
                "30 minutes",
                f"tick_queue = (SELECT queue_id FROM pgque.queue WHERE queue_name = '{queue.name}')",
            )
    rows = named(queue, "SELECT * FROM pgque.throughput(%s, '1 hour', '10 minutes')", queue.name)
    assert len(rows) == 7
    assert {later["bucket_start"] - row["bucket_start"] for row, later in pairwise(rows)} == {10 * MINUTE}
    assert rows[-1]["bucket_start"].minute % 10 == 0
    assert [row["events"] for row in rows if row["events"]] == [4, 6]
    rates = [row["events_per_sec"] for row in rows if row["events"]]
    assert rates == [Decimal("0.006667"), Decimal("0.010000")]
    assert "queue not found: nowhere" in str(
        queue.fails("SELECT * FROM pgque.throughput('nowhere', '1 hour', '1 minute')")
    )
    for period, bucket in (("0", "1 minute"), ("1 hour", "0"), (None, "1 minute"), ("1 hour", "-1 minute")):
        error = queue.fails("SELECT * FROM pgque.throughput(%s, %s, %s)", queue.name, period, bucket)
        assert "must be positive" in str(error)


def test_error_rate_counts_retries_and_dead_letters(queue: Queue) -> None:
    queue.value("SELECT pgque.set_queue_config(%s, 'max_retries', '1')", queue.name)
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    rates = "SELECT sum(retries), sum(dead_letters) FROM pgque.error_rate(%s, '1 hour', '10 minutes')"
    nack = "SELECT sum(pgque.nack(m.batch_id, m, '0')) FROM pgque.receive(%s, 'c') m WHERE payload <> 'good'"
    send(queue, "good", "bad", "worse")
    queue.tick()
    assert queue.rows(rates, queue.name) == [(0, 0)]
    assert queue.value(nack, queue.name) == 2
    assert queue.rows(rates, queue.name) == [(2, 0)], "they wait"
    waiting = (
        "SELECT metric_value FROM pgque.otel_metrics() "
        "WHERE metric_name = 'pgque.queue.retries' AND labels ->> 'queue' = %s"
    )
    assert queue.value(waiting, queue.name) == 2
    queue.value("SELECT pgque.maint_retry_events()")
    queue.tick()
    assert queue.rows(rates, queue.name) == [(2, 0)], "they have been moved, while the batch is open"
    assert queue.value(waiting, queue.name) == 0
    queue.value("SELECT pgque.ack(pgque.next_batch(%s, 'c'))", queue.name)
    queue.value("SELECT pgque.maint_retry_events()")
    queue.tick()
    assert queue.rows(rates, queue.name) == [(2, 0)], "they are given again"
    assert queue.value(nack, queue.name) == 2
    assert queue.rows(rates, queue.name) == [(2, 2)]
    assert "queue not found" in str(queue.fails("SELECT * FROM pgque.error_rate('nowhere', '1 hour', '1 minute')"))


def test_a_tick_with_events_notifies(queue: Queue, queue_database: str) -> None:
    """On channel pgque_<queue>, when the tick has events, and not else."""
    with psycopg.connect(queue_database, autocommit=True) as listener:
        listener.execute(f'LISTEN "pgque_{queue.name}"')
        queue.connection.execute(
            "UPDATE pgque.queue SET queue_ticker_idle_period = '1 microsecond' WHERE queue_name = %s", [queue.name]
        )
        queue.value("SELECT pgque.set_queue_config(%s, 'ticker_max_lag', '1 millisecond')", queue.name)
        empty = queue.value("SELECT pgque.ticker(%s)", queue.name)
        assert empty is not None
        send(queue, "x")
        tick = queue.value("SELECT pgque.ticker(%s)", queue.name)
        heard = [(n.channel, n.payload) for n in listener.notifies(timeout=60, stop_after=1)]
    assert heard == [(f"pgque_{queue.name}", str(tick))]
