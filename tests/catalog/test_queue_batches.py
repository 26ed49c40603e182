"""Consumers and their batches: subscribe, next_batch, receive, ack."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.catalog.conftest import Queue


@pytest.fixture
def subscribed(queue: Queue) -> Queue:
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    return queue


def receive(queue: Queue, limit: int = 100, consumer: str = "c") -> list[str]:
    return [p for (p,) in queue.rows("SELECT payload FROM pgque.receive(%s, %s, %s)", queue.name, consumer, limit)]


def next_batch(queue: Queue, consumer: str = "c") -> int | None:
    value = queue.value("SELECT pgque.next_batch(%s, %s)", queue.name, consumer)
    return None if value is None else int(value)


def test_register_and_unregister(queue: Queue) -> None:
    assert [queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name) for _ in range(2)] == [1, 0]
    assert [queue.value("SELECT pgque.register_consumer(%s, 'd')", queue.name) for _ in range(2)] == [1, 0]
    assert [queue.value("SELECT pgque.unsubscribe(%s, 'c')", queue.name) for _ in range(2)] == [1, 0]
    assert [queue.value("SELECT pgque.unregister_consumer(%s, 'd')", queue.name) for _ in range(2)] == [1, 0]
    assert "Event queue not created yet" in str(queue.fails("SELECT pgque.subscribe('nope', 'c')"))
    assert queue.fails("SELECT pgque.subscribe(%s, NULL)", queue.name).sqlstate == "P0001"


def test_many_register_the_same_consumer_at_once(queue: Queue, queue_database: str) -> None:
    def register(_: int) -> int:
        with psycopg.connect(queue_database, autocommit=True) as connection:
            row = connection.execute("SELECT pgque.subscribe(%s, 'same')", [queue.name]).fetchone()
            assert row is not None
            return int(row[0])

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(register, range(4))) == [0, 0, 0, 1]


def test_a_new_consumer_begins_at_the_last_tick(queue: Queue) -> None:
    queue.send("before")
    queue.tick()
    queue.send("pending")
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    queue.send("after")
    assert receive(queue) == []
    queue.tick()
    assert receive(queue) == ["pending", "after"]


def test_register_at_a_tick(queue: Queue) -> None:
    ticks = []
    for payload in ("a", "b", "c"):
        queue.send(payload)
        ticks.append(queue.tick())
    assert queue.value("SELECT pgque.register_consumer_at(%s, 'c', %s)", queue.name, ticks[0]) == 1
    assert receive(queue) == ["b"]
    failure = queue.fails("SELECT pgque.register_consumer_at(%s, 'd', 999)", queue.name)
    assert "tick not found: 999" in str(failure)
    # A consumer that is known is moved. A batch that it has is worth nothing then.
    batch = next_batch(queue)
    move = "SELECT pgque.register_consumer_at(%s, 'c', %s)"
    assert queue.value(move, queue.name, ticks[1]) == 0
    assert queue.value("SELECT pgque.ack(%s)", batch) == 0
    assert receive(queue) == ["c"]
    assert queue.value(move, queue.name, ticks[0]) == 0
    assert receive(queue) == ["b"]


def test_a_consumer_that_is_being_given_a_batch_is_moved_afterwards(subscribed: Queue, queue_database: str) -> None:
    start = subscribed.value("SELECT last_tick FROM pgque.get_consumer_info(%s, 'c')", subscribed.name)
    for payload in ("a", "b"):
        subscribed.send(payload)
        subscribed.tick()
    subscribed.value("SELECT pgque.ack(%s)", next_batch(subscribed))
    with psycopg.connect(queue_database) as reader, psycopg.connect(queue_database, autocommit=True) as mover:
        given = reader.execute("SELECT batch_id, payload FROM pgque.receive(%s, 'c')", [subscribed.name]).fetchall()

        def move() -> None:
            mover.execute("SELECT pgque.register_consumer_at(%s, 'c', %s)", [subscribed.name, start])

        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(move)
            waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            while not subscribed.value(waits, mover.info.backend_pid):
                assert not moving.done()
            reader.commit()
            moving.result()
    assert [payload for _, payload in given] == ["b"]
    assert subscribed.value("SELECT pgque.ack(%s)", given[0][0]) == 0
    assert receive(subscribed) == ["a"]


def test_messages_have_every_field(subscribed: Queue) -> None:
    event = subscribed.value("SELECT pgque.insert_event(%s, 't', 'd', 'a', 'b', NULL, 'e')", subscribed.name)
    subscribed.tick()
    batch = next_batch(subscribed)
    (row,) = subscribed.rows("SELECT *, created_at <= now() FROM pgque.receive(%s, 'c')", subscribed.name)
    assert (*row[:5], *row[6:]) == (event, batch, "t", "d", None, "a", "b", None, "e", True)
    (event_row,) = subscribed.rows("SELECT * FROM pgque.get_batch_events(%s)", batch)
    assert (event_row[0], *event_row[3:]) == (event, None, "t", "d", "a", "b", None, "e")
    assert event_row[1] == row[5]
    assert subscribed.value("SELECT pg_typeof(ev_txid)::text FROM pgque.get_batch_events(%s)", batch) == "bigint"


def test_a_batch_is_given_again_until_it_is_acknowledged(subscribed: Queue) -> None:
    subscribed.send("a", "b", "c")
    subscribed.tick()
    assert receive(subscribed) == receive(subscribed) == ["a", "b", "c"]
    batch = next_batch(subscribed)
    assert next_batch(subscribed) == batch
    assert subscribed.value("SELECT pgque.ack(%s)", batch) == 1
    assert subscribed.value("SELECT pgque.ack(%s)", batch) == 0
    assert receive(subscribed) == []
    assert next_batch(subscribed) is None


def test_finish_batch_of_an_unknown_batch_warns(subscribed: Queue) -> None:
    notices: list[str] = []
    subscribed.connection.add_notice_handler(
        lambda notice: notices.append(f"{notice.severity}: {notice.message_primary}")
    )
    assert subscribed.value("SELECT pgque.finish_batch(-1)") == 0
    assert subscribed.value("SELECT pgque.finish_batch(NULL)") == 0
    assert notices[0].startswith("WARNING: ") and len(notices) == 2


def test_max_return_limits_rows_not_the_batch(subscribed: Queue) -> None:
    subscribed.send(*"abcde")
    subscribed.tick()
    assert receive(subscribed, 2) == ["a", "b"]
    assert subscribed.value("SELECT count(*) FROM pgque.receive(%s, 'c')", subscribed.name) == 5
    subscribed.value("SELECT pgque.ack(%s)", next_batch(subscribed))
    assert receive(subscribed) == []
    for limit in (0, -1):
        failure = subscribed.fails("SELECT pgque.receive(%s, 'c', %s)", subscribed.name, limit)
        assert "max_return must be >= 1" in str(failure)
    subscribed.send(*[str(number) for number in range(150)])
    subscribed.tick()
    assert len(subscribed.rows("SELECT * FROM pgque.receive(queue => %s, consumer => 'c')", subscribed.name)) == 100


def test_a_long_quiet_time_is_passed_over_in_one_step(subscribed: Queue) -> None:
    subscribed.tick()
    empty = subscribed.value("SELECT pgque.next_batch(%s, 'c')", subscribed.name)
    assert (
        subscribed.value(
            "WITH idle AS (INSERT INTO pgque.tick"
            " SELECT tick_queue, tick_id + n, tick_time, tick_snapshot, tick_event_seq"
            " FROM (SELECT t.* FROM pgque.tick t JOIN pgque.queue ON queue_id = tick_queue WHERE queue_name = %s"
            "       ORDER BY tick_id DESC LIMIT 1) AS t, generate_series(1, 50) AS n RETURNING 1)"
            " SELECT count(*) FROM idle",
            subscribed.name,
        )
        == 50
    )
    subscribed.send("at last")
    tick = subscribed.tick()
    ((batch, payload),) = subscribed.rows("SELECT batch_id, payload FROM pgque.receive(%s, 'c')", subscribed.name)
    assert (batch, payload) == (empty + 1, "at last")
    state = "SELECT current_batch, last_tick, next_tick FROM pgque.get_consumer_info(%s, 'c')"
    assert subscribed.rows(state, subscribed.name) == [(batch, tick - 1, tick)]
    assert subscribed.rows("SELECT batch_id, payload FROM pgque.receive(%s, 'c')", subscribed.name) == [
        (batch, payload)
    ]
    assert subscribed.value("SELECT pgque.ack(%s)", empty) == 0, "whoever still has the empty batch closes nothing"
    assert subscribed.value("SELECT pgque.ack(%s)", batch) == 1


def test_an_empty_window_is_finished_at_once(subscribed: Queue) -> None:
    subscribed.tick()
    assert receive(subscribed) == []
    assert next_batch(subscribed) is None
    current = "SELECT current_batch, next_tick, last_tick FROM pgque.get_consumer_info(%s, 'c')"
    last = subscribed.value("SELECT last_tick_id FROM pgque.get_queue_info(%s)", subscribed.name)
    assert subscribed.rows(current, subscribed.name) == [(None, None, last)]
    subscribed.tick()
    subscribed.send("x")
    subscribed.tick()
    assert receive(subscribed) == ["x"]
    subscribed.value("SELECT pgque.ack(%s)", next_batch(subscribed))
    assert next_batch(subscribed) is None


def test_an_empty_batch_that_was_handed_out_is_finished_by_receive(subscribed: Queue) -> None:
    subscribed.tick()
    empty = next_batch(subscribed)
    assert empty is not None
    assert receive(subscribed) == []
    assert subscribed.value("SELECT pgque.ack(%s)", empty) == 0
    assert next_batch(subscribed) is None


def test_unknown_queue_and_unknown_consumer(queue: Queue) -> None:
    for call in (
        "next_batch(%s, 'c')",
        "next_batch_info(%s, 'c')",
        "next_batch_custom(%s, 'c', NULL, NULL, NULL)",
        "receive(%s, 'c')",
    ):
        for name in ("nope", queue.name):
            assert f"Not subscriber to queue: {name}/c" in str(queue.fails(f"SELECT pgque.{call}", name))
    for call in ("get_batch_events(-1)", "get_batch_cursor(-1, 'x', 1)"):
        assert "batch not found" in str(queue.fails(f"SELECT pgque.{call}"))


def test_next_batch_info_and_get_batch_info(subscribed: Queue) -> None:
    subscribed.send("a", "b")
    (empty,) = subscribed.rows("SELECT * FROM pgque.next_batch_info(%s, 'c')", subscribed.name)
    assert empty == (None,) * 7
    subscribed.tick()
    (info,) = subscribed.rows(
        "SELECT batch_id, cur_tick_id, prev_tick_id, cur_tick_time > prev_tick_time, cur_tick_event_seq,"
        " prev_tick_event_seq FROM pgque.next_batch_info(%s, 'c')",
        subscribed.name,
    )
    assert info == (next_batch(subscribed), 2, 1, True, 2 + 2000, 0)
    (batch_info,) = subscribed.rows(
        "SELECT queue_name, consumer_name, batch_start < batch_end, prev_tick_id, tick_id, lag > '0', seq_start,"
        " seq_end FROM pgque.get_batch_info(%s)",
        info[0],
    )
    assert batch_info == (subscribed.name, "c", True, 1, 2, True, 0, 2002)


def test_custom_batches_wait_for_count_interval_and_lag(subscribed: Queue) -> None:
    def custom(lag: str | None, count: int | None, interval: str | None) -> tuple[int, int] | None:
        with subscribed.connection.transaction(force_rollback=True):
            (row,) = subscribed.rows(
                "SELECT prev_tick_id, cur_tick_id"
                " FROM pgque.next_batch_custom(%s, 'c', %s::interval, %s, %s::interval)",
                *(subscribed.name, lag, count, interval),
            )
            return None if row == (None, None) else row

    for _ in range(2, 5):  # ticks 2 to 4, ten events and one minute apart
        subscribed.send(*"0123456789")
        subscribed.tick()
    subscribed.connection.execute(
        "UPDATE pgque.tick SET tick_time = now() - interval '1 hour' + tick_id * interval '1 minute', "
        "tick_event_seq = 10 * (tick_id - 1) "
        "WHERE tick_queue = (SELECT queue_id FROM pgque.queue WHERE queue_name = %s)",
        [subscribed.name],
    )
    assert custom(None, None, None) == (1, 2)
    assert custom(None, 11, None) == (1, 3)
    assert custom(None, 30, None) == (1, 4)
    assert custom(None, 31, None) is None
    assert custom(None, None, "61 seconds") == (1, 3)
    assert custom(None, 5, "3 minutes") == (1, 4)
    assert custom("57 minutes", None, None) == (1, 2)
    assert custom("59 minutes", None, None) is None
    assert custom("50 minutes", 20, "10 seconds") == (1, 3)


def test_find_tick_helper(subscribed: Queue) -> None:
    subscribed.send("a")
    subscribed.tick()
    identity = subscribed.value("SELECT queue_id FROM pgque.queue WHERE queue_name = %s", subscribed.name)
    helper = "SELECT next_tick_id, next_tick_seq FROM pgque.find_tick_helper(%s, %s, '-infinity', 0, %s, NULL)"
    assert subscribed.rows(helper, identity, 1, None) == [(2, 2001)]
    assert subscribed.rows(helper, identity, 1, 5000) == [(None, None)]


def test_cursor_over_a_batch(subscribed: Queue) -> None:
    subscribed.send(*"abcde")
    subscribed.tick()
    batch = next_batch(subscribed)
    with subscribed.connection.transaction():
        first = subscribed.rows("SELECT ev_data FROM pgque.get_batch_cursor(%s, 'my cursor', 2)", batch)
        assert first == [("a",), ("b",)]
        rest = [row[5] for row in subscribed.rows('FETCH ALL FROM "my cursor"')]
        assert rest == ["c", "d", "e"]
        some = subscribed.rows(
            "SELECT ev_data FROM pgque.get_batch_cursor(%s, 'odd', 9, %s)", batch, "ev_data IN ('b', 'd')"
        )
        assert some == [("b",), ("d",)]


def test_two_consumers_are_independent(subscribed: Queue) -> None:
    subscribed.value("SELECT pgque.subscribe(%s, 'd')", subscribed.name)
    subscribed.send("a")
    subscribed.tick()
    assert receive(subscribed) == ["a"]
    subscribed.value("SELECT pgque.ack(%s)", next_batch(subscribed))
    assert receive(subscribed, consumer="d") == ["a"]


def test_two_sessions_of_one_consumer_get_one_batch(subscribed: Queue, queue_database: str) -> None:
    subscribed.send("a")
    subscribed.tick()

    def claim(_: int) -> int:
        with psycopg.connect(queue_database, autocommit=True) as connection:
            row = connection.execute("SELECT pgque.next_batch(%s, 'c')", [subscribed.name]).fetchone()
            assert row is not None
            return int(row[0])

    with ThreadPoolExecutor(4) as pool:
        batches = set(pool.map(claim, range(4)))
    assert batches == {next_batch(subscribed)}


@pytest.mark.parametrize("closed", [False, True])
def test_a_session_that_waits_for_another_gets_what_is_then_due(
    subscribed: Queue, queue_database: str, closed: bool
) -> None:
    """Both take the next batch at the same time; the second looks again, once the first has it, or is done with it."""
    for payload in ("a", "b"):
        subscribed.send(payload)
        subscribed.tick()
    take = "SELECT batch_id, payload FROM pgque.receive(%s, 'c')"
    with (
        psycopg.connect(queue_database) as first,
        psycopg.connect(queue_database, autocommit=True) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        ((batch, payload),) = first.execute(take, [subscribed.name]).fetchall()
        assert payload == "a"
        if closed:
            first.execute("SELECT pgque.ack(%s)", [batch])
        waiting = pool.submit(lambda: second.execute(take, [subscribed.name]).fetchall())
        waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        while not subscribed.value(waits, second.info.backend_pid):
            assert not waiting.done()
        first.commit()
        ((other, payload),) = waiting.result()
    assert (payload, other == batch) == (("b", False) if closed else ("a", True))
    assert subscribed.value("SELECT pgque.ack(%s)", other) == 1
    assert receive(subscribed) == ([] if closed else ["b"])


def test_a_batch_rolled_back_is_given_again(subscribed: Queue) -> None:
    subscribed.send("a")
    subscribed.tick()
    with subscribed.connection.transaction(force_rollback=True):
        assert receive(subscribed) == ["a"]
        subscribed.value("SELECT pgque.ack(%s)", next_batch(subscribed))
    assert receive(subscribed) == ["a"]


def test_a_batch_is_read_by_index(subscribed: Queue) -> None:
    """However many events there are, those of a batch are found by their transactions."""
    subscribed.send(*[str(number) for number in range(3000)])
    subscribed.tick()
    subscribed.value("SELECT pgque.ack(%s)", next_batch(subscribed))
    subscribed.send("x")
    subscribed.tick()
    batch = next_batch(subscribed)
    with subscribed.connection.transaction():
        subscribed.connection.execute("SET LOCAL enable_seqscan = off")
        query = subscribed.value("SELECT pgque._batch_query(pgque._batch(%s), 'ev_id')", batch)
        (plan,) = subscribed.rows(f"EXPLAIN (FORMAT JSON) {query}")[0]
    assert "event" in str(plan) and "txid_idx" in str(plan)


def test_a_batch_leaves_the_indexes_of_subscriptions_as_they_are(subscribed: Queue) -> None:
    """Its updates are HOT: what a consumer does many times a second makes no entries for dead rows."""
    done = (
        "SELECT pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c)"
        " FROM (VALUES ('pgque.subscription'::regclass)) AS t (c)"
    )
    for payload in ("x", "y"):
        subscribed.send(payload)
        subscribed.tick()
    with subscribed.connection.transaction():
        assert receive(subscribed) == ["x"]
        subscribed.value("SELECT pgque.ack(%s)", next_batch(subscribed))
        assert receive(subscribed) == ["y"]
        subscribed.value("SELECT pgque.ack(%s)", next_batch(subscribed))
        assert subscribed.rows(done) == [(4, 4)]


@pytest.mark.parametrize("holder", [None, "0", ""])
def test_a_batch_is_finished_whatever_a_session_has_got_before(
    subscribed: Queue, queue_database: str, holder: str | None
) -> None:
    """A setting of the session says where a batch is looked for first; it may say another subscription, or none."""
    subscribed.value("SELECT pgque.subscribe(%s, 'd')", subscribed.name)
    with psycopg.connect(queue_database, autocommit=True) as other:
        for payload, session in (("x", subscribed.connection), ("y", other)):
            subscribed.send(payload)
            subscribed.tick()
            assert receive(subscribed) == receive(subscribed, consumer="d") == [payload]
            if holder is not None:
                session.execute("SELECT set_config('pgque.holder', %s, false)", [holder])
            for batch in (next_batch(subscribed), next_batch(subscribed, "d")):
                for closed in (1, 0):
                    assert session.execute("SELECT pgque.ack(%s)", [batch]).fetchone() == (closed,)
