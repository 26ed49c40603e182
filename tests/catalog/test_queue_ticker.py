"""The ticker: when a tick is due, forced and external ticks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.catalog.conftest import Queue


def age(queue: Queue, interval: str) -> None:
    """Make every tick of a queue older."""
    queue.connection.execute(
        "UPDATE pgque.tick SET tick_time = tick_time - %s::interval "
        "WHERE tick_queue = (SELECT queue_id FROM pgque.queue WHERE queue_name = %s)",
        [interval, queue.name],
    )


def configure(queue: Queue, **parameters: str) -> None:
    for name, value in parameters.items():
        queue.value("SELECT pgque.set_queue_config(%s, %s, %s)", queue.name, name, value)


def ticker(queue: Queue) -> int | None:
    value = queue.value("SELECT pgque.ticker(%s)", queue.name)
    return None if value is None else int(value)


def test_count_or_lag_make_a_tick_due(queue: Queue) -> None:
    configure(queue, ticker_max_count="3", ticker_max_lag="1 hour")
    queue.send("1", "2")
    assert ticker(queue) is None
    queue.send("3")
    assert ticker(queue) == 2
    queue.send("4")
    assert ticker(queue) is None
    age(queue, "2 hours")
    assert ticker(queue) == 3


def test_a_clock_ticks_earlier_than_the_default_asks_and_keeps_to_every_other_value(queue: Queue) -> None:
    early = "SELECT pgque._tick_early(%s)"
    queue.send("1")
    assert ticker(queue) is None, "by hand the default is 3 seconds"
    assert queue.value(early, queue.name) == 1
    configure(queue, ticker_max_lag="2 seconds")
    queue.send("2")
    assert queue.value(early, queue.name) == 0
    age(queue, "2 seconds")
    assert queue.value(early, queue.name) == 1
    queue.value("SELECT pgque.set_queue_config(%s, 'ticker_max_lag', NULL)", queue.name)
    queue.send("3")
    age(queue, "1 second")
    assert queue.value("SELECT pgque._tick_early()") >= 1
    assert queue.value("SELECT ev_new FROM pgque.get_queue_info(%s)", queue.name) == 0


def test_idle_queues_tick_at_growing_intervals(queue: Queue) -> None:
    ticks = 0
    for _ in range(100):  # a second each
        age(queue, "1 second")
        ticks += ticker(queue) is not None
    assert 4 <= ticks <= 7
    configure(queue, ticker_idle_period="2 seconds")
    age(queue, "2 seconds")
    assert ticker(queue) is not None


def test_ticks_go_on_where_the_clock_was_set_back(queue: Queue) -> None:
    configure(queue, ticker_max_lag="30 seconds", ticker_idle_period="1 minute", rotation_period="2 hours")
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    queue.send("nacked")
    queue.tick()
    nacked = "SELECT pgque.nack(m.batch_id, m, '1 minute') FROM pgque.receive(%s, 'c') AS m"
    assert queue.value(nacked, queue.name) == 1
    batch = queue.value("SELECT current_batch FROM pgque.get_consumer_info(%s, 'c')", queue.name)
    queue.value("SELECT pgque.ack(%s)", batch)
    # As the stored times are where an hour ago it was an hour later.
    age(queue, "-1 hour")
    of_queue = "(SELECT queue_id FROM pgque.queue WHERE queue_name = %s)"
    for table, column, id_ in (
        ("queue", "queue_switch_time", "queue_id"),
        ("subscription", "sub_active", "sub_queue"),
        ("retry_queue", "ev_retry_after", "ev_queue"),
    ):
        queue.connection.execute(
            f"UPDATE pgque.{table} SET {column} = {column} + interval '1 hour' WHERE {id_} = {of_queue}", [queue.name]
        )
    queue.send("sent")
    made = [queue.value("SELECT pgque.ticker()")]
    age(queue, "30 seconds")
    made.append(queue.value("SELECT pgque.ticker()"))
    assert made == [0, 1]
    assert queue.rows("SELECT payload FROM pgque.receive(%s, 'c')", queue.name) == [("sent",)]
    ((retry, switched, active, ticked),) = queue.rows(
        "SELECT r.ev_retry_after - now(), q.queue_switch_time <= clock_timestamp(), s.sub_active <= clock_timestamp(),"
        " (SELECT max(tick_time) FROM pgque.tick WHERE tick_queue = q.queue_id) <= clock_timestamp()"
        " FROM pgque.queue q JOIN pgque.retry_queue r ON r.ev_queue = q.queue_id"
        " JOIN pgque.subscription s ON s.sub_queue = q.queue_id WHERE q.queue_name = %s",
        queue.name,
    )
    assert retry <= timedelta(minutes=2) and switched and active and ticked


def test_ticker_of_all_queues_counts_ticks(queue: Queue) -> None:
    queue.value("SELECT pgque.ticker()")
    other = Queue(queue.connection, f"{queue.name} other")
    other.value("SELECT pgque.create_queue(%s)", other.name)
    queue.send("x"), other.send("x")
    age(queue, "3 seconds"), age(other, "3 seconds")
    assert queue.value("SELECT pgque.ticker()") >= 2
    assert queue.value("SELECT last_tick_id FROM pgque.get_queue_info(%s)", queue.name) == 3
    assert queue.value("SELECT last_tick_id FROM pgque.get_queue_info(%s)", other.name) == 2


def test_force_next_tick_makes_the_next_ticker_tick(queue: Queue) -> None:
    configure(queue, ticker_max_lag="1 hour", ticker_max_count="50")
    counter = "SELECT ev_new FROM pgque.get_queue_info(%s)"
    assert queue.value("SELECT pgque.force_next_tick(%s)", queue.name) == 1
    assert queue.value(counter, queue.name) == 50 * 2 + 1000
    assert ticker(queue) == 2
    assert queue.value("SELECT pgque.force_tick(%s)", queue.name) == 2
    assert ticker(queue) == 3
    assert queue.value(counter, queue.name) == 0
    for _ in range(3):
        queue.value("SELECT pgque.force_next_tick(%s)", queue.name)
    assert queue.value("SELECT count(*) FROM pgque.forced_tick") == 1
    assert [ticker(queue), ticker(queue)] == [4, None]


@pytest.mark.parametrize("function", ["force_next_tick", "force_tick"])
def test_force_tick_where_there_is_no_ticker(queue: Queue, function: str) -> None:
    assert queue.fails(f"SELECT pgque.{function}('nope')").sqlstate == "P0001"
    for parameter in ("ticker_paused", "external_ticker"):
        configure(queue, **{parameter: "true"})
        assert "queue not found or ticks not allowed" in str(queue.fails(f"SELECT pgque.{function}(%s)", queue.name))
        configure(queue, **{parameter: "false"})


def test_paused_and_external_queues_are_not_ticked(queue: Queue) -> None:
    queue.send("x")
    assert "no such queue" in str(queue.fails("SELECT pgque.ticker('nope')"))
    for parameter, message in (
        ("ticker_paused", "Ticker has been paused for this queue"),
        ("external_ticker", "This queue has external tick source."),
    ):
        configure(queue, **{parameter: "true"})
        age(queue, "1 hour")
        queue.value("SELECT pgque.ticker()")
        assert queue.value("SELECT last_tick_id FROM pgque.get_queue_info(%s)", queue.name) == 1
        assert message in str(queue.fails("SELECT pgque.ticker(%s)", queue.name))
        configure(queue, **{parameter: "false"})
    assert ticker(queue) == 2


def test_external_ticks_are_monotonic_and_make_batches(queue: Queue) -> None:
    external = "SELECT pgque.ticker(%s, %s, %s::timestamptz, %s)"
    assert queue.fails(external, queue.name, 10, "2020-01-01", 5).sqlstate == "P0001"  # not configured
    configure(queue, external_ticker="true")
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    queue.send("a")
    assert queue.value(external, queue.name, 10, "2020-01-01", 5) == 10
    assert queue.fails(external, queue.name, 10, "2020-01-02", 6).sqlstate == "P0001"
    assert queue.fails(external, queue.name, 9, "2020-01-02", 6).sqlstate == "P0001"
    assert queue.fails(external, queue.name, 11, "2020-01-02", 4).sqlstate == "P0001"
    queue.send("b")
    assert queue.value(external, queue.name, 20, "2020-01-03", 5) == 20
    assert queue.fails(external, "nope", 21, "2020-01-03", 5).sqlstate == "P0001"
    got = []
    for _ in range(2):
        (row,) = queue.rows(
            "SELECT batch_id, cur_tick_id, cur_tick_time::text FROM pgque.next_batch_info(%s, 'c')", queue.name
        )
        got.append((row[1], row[2][:10], queue.value("SELECT ev_data FROM pgque.get_batch_events(%s)", row[0])))
        queue.value("SELECT pgque.finish_batch(%s)", row[0])
    assert got == [(10, "2020-01-01", "a"), (20, "2020-01-03", "b")]


def test_listeners_hear_of_ticks_with_events_only(queue: Queue) -> None:
    queue.connection.execute(f'LISTEN "pgque_{queue.name}"')
    age(queue, "1 hour")
    assert ticker(queue) == 2  # idle
    queue.send("x")
    age(queue, "3 seconds")
    assert ticker(queue) == 3
    assert [notice.payload for notice in queue.connection.notifies(timeout=30, stop_after=1)] == ["3"]


def test_information_about_queues_and_consumers(queue: Queue) -> None:
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    queue.send("x", "y")
    (row,) = queue.rows("SELECT * FROM pgque.get_queue_info(%s)", queue.name)
    assert row[:3] == (queue.name, 3, 0) and row[5:8] == (False, False, 500)
    assert row[12:] == (2, 1) and row[10].total_seconds() > 0
    age(queue, "3 seconds")
    ticker(queue)
    (row,) = queue.rows("SELECT * FROM pgque.get_queue_info() WHERE queue_name = %s", queue.name)
    assert row[12:] == (0, 2) and row[11] > 0
    own = (
        "SELECT queue_name, consumer_name, lag > '0', last_seen > '0', last_tick, current_batch, next_tick,"
        " pending_events FROM "
    )
    (info,) = queue.rows(own + "pgque.get_consumer_info(%s, 'c')", queue.name)
    assert info == (queue.name, "c", True, True, 1, None, None, 2)
    batch = queue.value("SELECT pgque.next_batch(%s, 'c')", queue.name)
    (info,) = queue.rows(own + "pgque.get_consumer_info(%s)", queue.name)
    assert info == (queue.name, "c", True, True, 1, batch, 2, 2)
    everywhere = queue.rows("SELECT queue_name FROM pgque.get_consumer_info(NULL, 'c')")
    assert (queue.name,) in everywhere
    assert queue.rows("SELECT * FROM pgque.get_consumer_info()") != []
    assert queue.rows("SELECT * FROM pgque.get_consumer_info('nope')") == []
    assert queue.rows("SELECT * FROM pgque.get_queue_info('nope')") == []
