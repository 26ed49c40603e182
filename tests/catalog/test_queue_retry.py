"""Retries and dead letters: the server's own copy of an event, once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from tests.catalog.conftest import Queue

MESSAGE = "row({}, NULL, 'forged', 'forged', 99, NULL, 'f', 'f', 'f', 'f')::pgque.message"


@pytest.fixture
def subscribed(queue: Queue) -> Queue:
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    return queue


def take(queue: Queue, consumer: str = "c") -> tuple[int, dict[str, tuple[int, int | None]]]:
    """The next batch: its id, and id and retry count of each payload."""
    queue.tick()
    rows = queue.rows("SELECT batch_id, payload, msg_id, retry_count FROM pgque.receive(%s, %s)", queue.name, consumer)
    batch = queue.value("SELECT current_batch FROM pgque.get_consumer_info(%s, %s)", queue.name, consumer)
    return batch, {payload: (event, retry) for _, payload, event, retry in rows}


def nack(queue: Queue, batch: int, event: int, after: str = "0", reason: str | None = None) -> int:
    return int(
        queue.value(f"SELECT pgque.nack(%s, {MESSAGE.format('%s')}, %s::interval, %s)", batch, event, after, reason)
    )


def ack(queue: Queue, batch: int) -> int:
    return int(queue.value("SELECT pgque.ack(%s)", batch))


def dead(queue: Queue) -> list[tuple[object, ...]]:
    return queue.rows("SELECT ev_id, ev_retry, ev_type, ev_data, dl_reason FROM pgque.dlq_inspect(%s)", queue.name)


def test_nacked_message_comes_again_as_the_queue_has_it(subscribed: Queue) -> None:
    event = subscribed.value("SELECT pgque.insert_event(%s, 't', 'x', '1', '2', '3', '4')", subscribed.name)
    subscribed.send("y")
    batch, _ = take(subscribed)
    (before,) = subscribed.rows("SELECT ev_time FROM pgque.get_batch_events(%s) WHERE ev_id = %s", batch, event)
    assert nack(subscribed, batch, event) == 1
    assert ack(subscribed, batch) == 1
    assert take(subscribed)[1] == {}  # not before it has been moved
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 1
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 0
    subscribed.tick()
    (row,) = subscribed.rows(
        "SELECT msg_id, type, payload, retry_count, created_at, extra1, extra2, extra3, extra4"
        " FROM pgque.receive(%s, 'c')",
        subscribed.name,
    )
    assert row == (event, "t", "x", 1, before[0], "1", "2", "3", "4")


def test_retry_belongs_to_the_consumer_that_asked(subscribed: Queue) -> None:
    subscribed.value("SELECT pgque.subscribe(%s, 'other')", subscribed.name)
    subscribed.send("x")
    batch, messages = take(subscribed)
    nack(subscribed, batch, messages["x"][0])
    ack(subscribed, batch)
    subscribed.value("SELECT pgque.maint_retry_events()")
    other, messages = take(subscribed, "other")
    assert messages == {"x": (1, None)}
    ack(subscribed, other)
    assert take(subscribed, "other")[1] == {}
    assert take(subscribed)[1] == {"x": (1, 1)}


def test_default_delay_is_a_minute(subscribed: Queue) -> None:
    subscribed.send("x")
    batch, messages = take(subscribed)
    assert subscribed.value(f"SELECT pgque.nack(%s, {MESSAGE.format(messages['x'][0])})", batch) == 1
    delay = subscribed.value("SELECT ev_retry_after - now() FROM pgque.retry_queue WHERE ev_id = %s", messages["x"][0])
    assert timedelta(seconds=30) < delay <= timedelta(seconds=60)
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 0


def test_nack_twice_queues_once(subscribed: Queue) -> None:
    subscribed.send("x")
    batch, messages = take(subscribed)
    assert [nack(subscribed, batch, messages["x"][0]) for _ in range(2)] == [1, 0]
    # Also when the first has been moved back already, while the batch is still open.
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 1
    assert nack(subscribed, batch, messages["x"][0]) == 0
    ack(subscribed, batch)
    subscribed.value("SELECT pgque.maint_retry_events()")
    batch, messages = take(subscribed)
    assert messages == {"x": (1, 1)}
    assert nack(subscribed, batch, messages["x"][0]) == 1  # that is another delivery
    ack(subscribed, batch)
    subscribed.value("SELECT pgque.maint_retry_events()")
    batch, messages = take(subscribed)
    assert messages == {"x": (1, 2)}
    ack(subscribed, batch)
    assert take(subscribed)[1] == {}
    assert subscribed.rows("SELECT FROM pgque.retry_queue WHERE ev_id = 1 AND ev_retry_after = 'infinity'") == []


@pytest.mark.parametrize("event", [None, 999999])
def test_nack_of_a_message_that_is_not_in_the_batch(subscribed: Queue, event: int | None) -> None:
    subscribed.send("x")
    batch, _ = take(subscribed)
    failure = subscribed.fails(f"SELECT pgque.nack(%s, {MESSAGE.format('%s')})", batch, event)
    shown = "<NULL>" if event is None else event
    assert str(failure).startswith(f"msg_id {shown} not found in batch {batch}\n")
    assert ack(subscribed, batch) == 1  # a failed nack leaves the batch as it was


def test_nack_of_a_message_of_another_batch(subscribed: Queue) -> None:
    subscribed.send("x")
    first, messages = take(subscribed)
    ack(subscribed, first)
    subscribed.send("y")
    second, _ = take(subscribed)
    failure = subscribed.fails(f"SELECT pgque.nack(%s, {MESSAGE.format(messages['x'][0])})", second)
    assert f"msg_id {messages['x'][0]} not found in batch {second}" in str(failure)
    assert "batch not found" in str(subscribed.fails(f"SELECT pgque.nack(%s, {MESSAGE.format(1)})", first))


def test_message_is_dead_after_max_retries(subscribed: Queue) -> None:
    subscribed.value("SELECT pgque.set_queue_config(%s, 'max_retries', '2')", subscribed.name)
    subscribed.send("x")
    counts = []
    for _ in range(3):
        batch, messages = take(subscribed)
        event, count = messages["x"]
        counts.append(count)
        assert nack(subscribed, batch, event, reason="no luck") == 1
        if len(counts) == 3:
            assert nack(subscribed, batch, event) == 0
        ack(subscribed, batch)
        subscribed.value("SELECT pgque.maint_retry_events()")
    assert counts == [None, 1, 2]
    assert dead(subscribed) == [(1, 2, "default", "x", "no luck")]
    assert take(subscribed)[1] == {}


def test_without_retries_a_message_is_dead_at_once_for_each_consumer(subscribed: Queue) -> None:
    subscribed.value("SELECT pgque.subscribe(%s, 'd')", subscribed.name)
    subscribed.value("SELECT pgque.set_queue_config(%s, 'max_retries', '0')", subscribed.name)
    subscribed.send("x")
    for consumer in ("c", "d"):
        batch, messages = take(subscribed, consumer)
        assert nack(subscribed, batch, messages["x"][0], reason=consumer) == 1
        ack(subscribed, batch)
    assert [row[-1] for row in dead(subscribed)] == ["d", "c"]


def test_event_retry_in_both_forms(subscribed: Queue) -> None:
    subscribed.send("a", "b")
    batch, messages = take(subscribed)
    seconds, at = "SELECT pgque.event_retry(%s, %s, 0)", "SELECT pgque.event_retry(%s, %s, now())"
    assert [subscribed.value(seconds, batch, messages["a"][0]) for _ in range(2)] == [1, 0]
    assert [subscribed.value(at, batch, messages["b"][0]) for _ in range(2)] == [1, 0]
    assert "event not found" in str(subscribed.fails(seconds, batch, 999))
    assert "batch not found" in str(subscribed.fails(at, -1, 1))
    ack(subscribed, batch)
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 2
    assert take(subscribed)[1] == {"a": (1, 1), "b": (2, 1)}


def test_a_retry_that_would_never_be_due_is_refused(subscribed: Queue) -> None:
    event = subscribed.send("x")[0]
    batch, _ = take(subscribed)
    statement = "SELECT pgque.event_retry(%s, %s, 'infinity'::timestamptz)"
    assert "retry time must not be infinity" in str(subscribed.fails(statement, batch, event))
    if subscribed.connection.info.server_version >= 170000:  # intervals have an infinity
        statement = f"SELECT pgque.nack(%s, {MESSAGE.format('%s')}, 'infinity')"
        assert "retry time must not be infinity" in str(subscribed.fails(statement, batch, event))


def test_batch_retry_gives_everything_again(subscribed: Queue) -> None:
    subscribed.send("a", "b", "c")
    batch, messages = take(subscribed)
    nack(subscribed, batch, messages["b"][0])
    assert subscribed.value("SELECT pgque.batch_retry(%s, 0)", batch) == 2
    assert subscribed.value("SELECT pgque.batch_retry(%s, 0)", batch) == 0
    ack(subscribed, batch)
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 3
    assert take(subscribed)[1] == {"a": (1, 1), "b": (2, 1), "c": (3, 1)}


def test_unregistering_forgets_the_consumers_retries(subscribed: Queue) -> None:
    subscribed.send("x")
    batch, messages = take(subscribed)
    nack(subscribed, batch, messages["x"][0])
    assert subscribed.value("SELECT pgque.unsubscribe(%s, 'c')", subscribed.name) == 1
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 0
    assert ack(subscribed, batch) == 0


def kill(queue: Queue, *payloads: str) -> list[int]:
    """Dead letters of these payloads; their ids."""
    queue.value("SELECT pgque.set_queue_config(%s, 'max_retries', '0')", queue.name)
    queue.send(*payloads)
    batch, messages = take(queue)
    for event, _ in messages.values():
        nack(queue, batch, event)
    ack(queue, batch)
    return sorted(row[0] for row in queue.rows("SELECT dl_id FROM pgque.dlq_inspect(%s)", queue.name))


def test_replay_sends_once_more(subscribed: Queue) -> None:
    (letter,) = kill(subscribed, "x")
    event = subscribed.value("SELECT pgque.dlq_replay(%s)", letter)
    assert dead(subscribed) == []
    assert "not found" in str(subscribed.fails("SELECT pgque.dlq_replay(%s)", letter))
    assert take(subscribed)[1] == {"x": (event, None)}


def test_two_sessions_replay_one_dead_letter(subscribed: Queue, queue_database: str) -> None:
    (letter,) = kill(subscribed, "x")

    def replay(_: int) -> bool:
        with psycopg.connect(queue_database, autocommit=True) as connection:
            try:
                connection.execute("SELECT pgque.dlq_replay(%s)", [letter])
            except psycopg.errors.RaiseException:
                return False
            return True

    with ThreadPoolExecutor(4) as pool:
        assert Counter(pool.map(replay, range(4))) == {True: 1, False: 3}
    assert list(take(subscribed)[1]) == ["x"]


def test_replay_all_leaves_out_what_others_replay(subscribed: Queue, queue_database: str) -> None:
    first, *_ = kill(subscribed, "a", "b", "c")
    with psycopg.connect(queue_database) as other:
        other.execute("SELECT pgque.dlq_replay(%s)", [first])
        result = subscribed.rows("SELECT replayed, failed, first_error FROM pgque.dlq_replay_all(%s)", subscribed.name)
        assert result == [(2, 0, None)]
        other.commit()
    assert sorted(take(subscribed)[1]) == ["a", "b", "c"]
    assert subscribed.rows("SELECT * FROM pgque.dlq_replay_all(%s)", subscribed.name) == [(0, 0, None)]


def test_replay_all_isolates_failures(subscribed: Queue) -> None:
    letters = kill(subscribed, "good", "bad", "fine")
    prefix = subscribed.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", subscribed.name)
    subscribed.connection.execute(f"ALTER TABLE {prefix}_0 ADD CONSTRAINT no_bad CHECK (ev_data <> 'bad') NOT VALID")
    notices: list[str] = []
    subscribed.connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    ((replayed, failed, error),) = subscribed.rows("SELECT * FROM pgque.dlq_replay_all(%s)", subscribed.name)
    assert (replayed, failed) == (2, 1)
    assert str(letters[1]) in error and "no_bad" in error
    assert len(notices) == 1 and "no_bad" in notices[0]
    assert [row[3] for row in dead(subscribed)] == ["bad"]


def test_inspect_is_newest_first_and_limited(subscribed: Queue) -> None:
    letters = kill(subscribed, "a", "b", "c")
    rows = subscribed.rows("SELECT dl_id FROM pgque.dlq_inspect(%s, limit_count => 2)", subscribed.name)
    assert [row[0] for row in rows] == letters[::-1][:2]


def test_purge_deletes_what_is_old(subscribed: Queue) -> None:
    letters = kill(subscribed, "a", "b")
    subscribed.connection.execute(
        "UPDATE pgque.dead_letter SET dl_time = now() - interval '31 days' WHERE dl_id = %s", [letters[0]]
    )
    assert subscribed.value("SELECT pgque.dlq_purge(%s)", subscribed.name) == 1
    assert subscribed.value("SELECT pgque.dlq_purge(%s, '0 seconds')", subscribed.name) == 1
    assert dead(subscribed) == []


def test_event_dead_takes_what_it_is_given(subscribed: Queue) -> None:
    subscribed.send("x")
    batch, _ = take(subscribed)
    call = "SELECT pgque.event_dead(%s, 7, 'why', now(), '5'::xid8, 3, 't', 'd', ev_extra2 => 'e')"
    assert [subscribed.value(call, batch) for _ in range(2)] == [1, 0]
    (row,) = subscribed.rows("SELECT * FROM pgque.dlq_inspect(%s)", subscribed.name)
    assert row[4:6] == ("why", 7) and row[7:] == ("5", 3, "t", "d", None, "e", None, None)
    assert "batch not found" in str(subscribed.fails(call, -1))


def test_dropping_the_queue_removes_its_dead_letters(subscribed: Queue) -> None:
    (letter,) = kill(subscribed, "x")
    subscribed.value("SELECT pgque.drop_queue(%s, true)", subscribed.name)
    assert subscribed.rows("SELECT FROM pgque.dead_letter WHERE dl_id = %s", letter) == []


def test_a_broken_queue_does_not_stop_the_retries_of_others(subscribed: Queue) -> None:
    other = Queue(subscribed.connection, f"{subscribed.name} other")
    other.value("SELECT pgque.create_queue(%s)", other.name)
    other.value("SELECT pgque.subscribe(%s, 'c')", other.name)
    for queue in (subscribed, other):
        queue.send("x")
        batch, messages = take(queue)
        nack(queue, batch, messages["x"][0])
        ack(queue, batch)
    prefix = subscribed.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", subscribed.name)
    subscribed.connection.execute(f"ALTER TABLE {prefix}_0 ADD CONSTRAINT broken CHECK (false) NOT VALID")
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 1
    assert take(other)[1] == {"x": (1, 1)}
    subscribed.connection.execute(f"ALTER TABLE {prefix}_0 DROP CONSTRAINT broken")
    assert subscribed.value("SELECT pgque.maint_retry_events()") == 1
    assert take(subscribed)[1] == {"x": (1, 1)}
