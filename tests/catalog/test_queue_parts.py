"""Oversized batches in parts: `max_batch_events`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.catalog.conftest import Queue

LIMIT = 10


@pytest.fixture
def cut(queue: Queue) -> Queue:
    """A queue with parts of ten events, and a consumer."""
    queue.value("SELECT pgque.set_queue_config(%s, 'max_batch_events', %s)", queue.name, str(LIMIT))
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    return queue


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def next_batch(queue: Queue, consumer: str = "c") -> int | None:
    value = queue.value("SELECT pgque.next_batch(%s, %s)", queue.name, consumer)
    return None if value is None else int(value)


def events(queue: Queue, batch: int) -> list[str]:
    return [row[0] for row in queue.rows("SELECT ev_data FROM pgque.get_batch_events(%s)", batch)]


def drain(queue: Queue, consumer: str = "c") -> list[list[str]]:
    """The events of each batch up to the last one, each received and acknowledged."""
    batches = []
    while rows := queue.rows("SELECT batch_id, payload FROM pgque.receive(%s, %s, 1000000)", queue.name, consumer):
        batches.append([payload for _, payload in rows])
        assert {batch for batch, _ in rows} == {rows[0][0]}
        assert queue.value("SELECT pgque.ack(%s)", rows[0][0]) == 1
    return batches


def parts(queue: Queue) -> int:
    """How many subscriptions are in the middle of a batch."""
    statement = (
        "SELECT count(*) FROM pgque.batch_part JOIN pgque.subscription USING (sub_id)"
        " JOIN pgque.queue ON queue_id = sub_queue WHERE queue_name = %s"
    )
    return int(queue.value(statement, queue.name))


def standing(queue: Queue, consumer: str = "c") -> tuple[Any, ...]:
    (row,) = queue.rows(
        "SELECT last_tick, next_tick, current_batch FROM pgque.get_consumer_info(%s, %s)", queue.name, consumer
    )
    return row


def test_a_batch_of_more_events_is_handed_out_in_parts(cut: Queue) -> None:
    cut.send(*numbers(1, 25))
    cut.tick()
    assert drain(cut) == [numbers(1, 10), numbers(11, 20), numbers(21, 25)]
    assert parts(cut) == 0


@pytest.mark.parametrize("count", [1, 9, 10, 11, 20, 21])
def test_exactly_once_whatever_the_number(cut: Queue, count: int) -> None:
    cut.send(*numbers(1, count))
    cut.tick()
    handed = drain(cut)
    assert [event for part in handed for event in part] == numbers(1, count)
    assert [len(part) for part in handed] == [LIMIT] * (count // LIMIT) + [count % LIMIT] * (count % LIMIT > 0)


def test_several_transactions_and_gaps_between_ids(cut: Queue) -> None:
    """Whoever reads the parts gets what, and in the order in which, the whole batch would be read."""
    cut.value("SELECT pgque.subscribe(%s, 'whole')", cut.name)
    for number in range(8):
        with cut.connection.transaction(force_rollback=number % 3 == 1):
            cut.send(*[f"{number}-{n}" for n in range(7 * number)])
    cut.value("SELECT pgque.force_next_tick(%s)", cut.name)
    cut.send("last")
    cut.tick()
    handed = drain(cut)
    cut.value("SELECT pgque.set_queue_config(%s, 'max_batch_events', NULL)", cut.name)
    (whole,) = drain(cut, "whole")
    assert [event for part in handed for event in part] == whole
    assert [len(part) for part in handed[:-1]] == [LIMIT] * (len(handed) - 1)


def test_the_low_level_functions_see_the_part(cut: Queue) -> None:
    ids = cut.send(*numbers(1, 25))
    tick = cut.tick()
    first = next_batch(cut)
    assert first is not None
    assert next_batch(cut) == first, "a part is given again until it is finished"
    assert events(cut, first) == numbers(1, 10)
    info = "SELECT prev_tick_id, tick_id, seq_end - seq_start FROM pgque.get_batch_info(%s)"
    assert cut.rows(info, first) == [(tick - 1, tick, LIMIT)]
    with cut.connection.transaction():
        rows = cut.rows("SELECT ev_data FROM pgque.get_batch_cursor(%s, 'part', 4)", first)
        rows += [(row[5],) for row in cut.rows("FETCH ALL FROM part")]
    assert [data for (data,) in rows] == numbers(1, 10)
    assert cut.value("SELECT pgque.finish_batch(%s)", first) == 1
    assert cut.value("SELECT pgque.finish_batch(%s)", first) == 0
    pending = "SELECT pending_events FROM pgque.get_consumer_info(%s, 'c')"
    assert cut.value(pending, cut.name) == cut.value(
        "SELECT tick_event_seq - %s FROM pgque.tick JOIN pgque.queue ON queue_id = tick_queue"
        " WHERE queue_name = %s ORDER BY tick_id DESC LIMIT 1",
        *(ids[9], cut.name),
    )
    second = next_batch(cut)
    assert second is not None and second != first
    assert cut.rows("SELECT estimated_events FROM pgque.in_flight(%s)", cut.name) == [(LIMIT,)]
    assert events(cut, second) == numbers(11, 20)
    assert "not found" in str(cut.fails("SELECT pgque.event_retry(%s, %s, 0)", second, ids[0]))


def test_filters_hold_for_what_lies_between_the_ticks(cut: Queue) -> None:
    custom = "SELECT batch_id FROM pgque.next_batch_custom(%s, 'c', %s::interval, %s, %s::interval)"
    cut.send(*numbers(1, 25))
    cut.tick()
    assert cut.value(custom, cut.name, None, 1_000_000, None) is None
    assert cut.value(custom, cut.name, "1 hour", None, None) is None
    first = cut.value(custom, cut.name, "0", 20, None)
    cut.value("SELECT pgque.finish_batch(%s)", first)
    cut.send(*numbers(26, 27))
    cut.tick()
    # The rest belongs to the same tick, whatever is asked for now; only its age still counts.
    assert cut.value(custom, cut.name, "1 hour", None, None) is None
    second = cut.value(custom, cut.name, None, 1_000_000, None)
    assert events(cut, second) == numbers(11, 20)
    cut.value("SELECT pgque.finish_batch(%s)", second)
    assert drain(cut) == [numbers(21, 25), numbers(26, 27)]


def test_retries_of_a_part_come_later_and_once(cut: Queue) -> None:
    cut.send(*numbers(1, 25))
    cut.tick()
    nack = "SELECT pgque.nack(m.batch_id, m, '0') FROM pgque.receive(%s, 'c') m WHERE payload = ANY (%s)"
    assert cut.rows(nack, cut.name, ["3", "7", "15"]) == [(1,), (1,)], "15 is in a later part"
    assert cut.value("SELECT pgque.maint_retry_events()") == 2
    cut.tick()
    assert cut.rows(nack, cut.name, ["3"]) == [(0,)]
    assert drain(cut) == [numbers(1, 10), numbers(11, 20), numbers(21, 25), ["3", "7"]]


def test_batch_retry_and_dead_letters_concern_the_part(cut: Queue) -> None:
    cut.value("SELECT pgque.set_queue_config(%s, 'max_retries', '1')", cut.name)
    cut.send(*numbers(1, 15))
    cut.tick()
    first = next_batch(cut)
    assert cut.value("SELECT pgque.batch_retry(%s, 0)", first) == LIMIT
    cut.value("SELECT pgque.finish_batch(%s)", first)
    assert drain(cut) == [numbers(11, 15)]
    cut.value("SELECT pgque.maint_retry_events()")
    cut.tick()
    assert len(cut.rows("SELECT pgque.nack(m.batch_id, m) FROM pgque.receive(%s, 'c') m", cut.name)) == LIMIT
    assert drain(cut) == [numbers(1, 10)]
    dead = cut.rows("SELECT ev_data FROM pgque.dlq_inspect(%s) ORDER BY ev_id", cut.name)
    assert [data for (data,) in dead] == numbers(1, 10)


def test_what_is_rolled_back_has_not_happened(cut: Queue) -> None:
    cut.send(*numbers(1, 25))
    cut.tick()
    for part in (numbers(1, 10), numbers(11, 20), numbers(21, 25)):
        for _ in range(2):
            with cut.connection.transaction(force_rollback=True):
                batch = next_batch(cut)
                assert batch is not None and events(cut, batch) == part
                cut.value("SELECT pgque.finish_batch(%s)", batch)
        cut.value("SELECT pgque.finish_batch(%s)", next_batch(cut))
    assert next_batch(cut) is None


def test_a_session_that_has_seen_an_older_part_gets_the_next(cut: Queue, queue_database: str) -> None:
    """Of two sessions of a consumer, one waits while the other takes a part and closes it."""
    cut.send(*numbers(1, 30))
    cut.tick()
    for expected in (numbers(11, 20), numbers(21, 30)):
        with (
            psycopg.connect(queue_database) as first,
            psycopg.connect(queue_database, autocommit=True) as second,
            ThreadPoolExecutor(1) as pool,
        ):
            row = first.execute("SELECT pgque.finish_batch(pgque.next_batch(%s, 'c'))", [cut.name]).fetchone()
            assert row == (1,)
            waiting = pool.submit(
                lambda second=second: second.execute("SELECT pgque.next_batch(%s, 'c')", [cut.name]).fetchone()
            )
            waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            while not cut.value(waits, second.info.backend_pid):
                assert not waiting.done()
            first.commit()
            (batch,) = waiting.result()
        assert events(cut, batch) == expected
        if expected[-1] == "30":
            cut.value("SELECT pgque.finish_batch(%s)", batch)
        else:  # as if the next of the two had not taken it
            cut.connection.execute(
                "UPDATE pgque.batch_part SET upto_id = NULL WHERE sub_id ="
                " (SELECT sub_id FROM pgque.subscription WHERE sub_batch = %s)",
                [batch],
            )
            cut.connection.execute("UPDATE pgque.subscription SET sub_batch = NULL WHERE sub_batch = %s", [batch])
    assert drain(cut) == []


def test_rotation_waits_for_the_last_part_and_ticks_go_on(cut: Queue) -> None:
    cut.value("SELECT pgque.set_queue_config(%s, 'rotation_period', '1 microsecond')", cut.name)

    def rotate() -> int:
        switched = int(cut.value("SELECT pgque.maint_rotate_tables_step1(%s)", cut.name))
        cut.value("SELECT pgque.maint_rotate_tables_step2()")
        return switched

    cut.send(*numbers(1, 25))
    cut.tick()
    for part in (numbers(1, 10), numbers(11, 20), numbers(21, 25)):
        batch = next_batch(cut)
        for _ in range(4):
            rotate()
            cut.tick()
        assert batch is not None and events(cut, batch) == part
        assert rotate() == 0, "the table has events that are still to come"
        cut.value("SELECT pgque.finish_batch(%s)", batch)
    assert drain(cut) == []
    assert [rotate() for _ in range(3)] == [1, 1, 1]


def test_a_consumer_that_is_moved_begins_anew(cut: Queue) -> None:
    start = standing(cut)[0]
    cut.send(*numbers(1, 25))
    cut.tick()
    cut.value("SELECT pgque.finish_batch(%s)", next_batch(cut))
    assert cut.value("SELECT pgque.register_consumer_at(%s, 'c', %s)", cut.name, start) == 0
    assert drain(cut) == [numbers(1, 10), numbers(11, 20), numbers(21, 25)]


def test_the_limit_may_change_between_parts(cut: Queue) -> None:
    cut.send(*numbers(1, 50))
    cut.tick()
    cut.value("SELECT pgque.finish_batch(%s)", next_batch(cut))
    cut.value("SELECT pgque.set_queue_config(%s, 'max_batch_events', '15')", cut.name)
    batch = next_batch(cut)
    assert batch is not None and events(cut, batch) == numbers(11, 25)
    cut.value("SELECT pgque.finish_batch(%s)", batch)
    cut.value("SELECT pgque.set_queue_config(%s, 'max_batch_events', NULL)", cut.name)
    assert drain(cut) == [numbers(26, 50)]
    for wrong in ("0", "-1"):
        refused = cut.fails("SELECT pgque.set_queue_config(%s, 'max_batch_events', %s)", cut.name, wrong)
        assert "max_batch_events must be positive" in str(refused)


def test_members_of_a_group_share_the_parts(cut: Queue) -> None:
    take = "SELECT batch_id, payload FROM pgque.receive_coop(%s, 'team', %s, 1000, %s::interval)"

    def receive(worker: str, dead: str | None = None) -> tuple[int | None, list[str]]:
        rows = cut.rows(take, cut.name, worker, dead)
        return (rows[0][0] if rows else None), [payload for _, payload in rows]

    for worker in "abc":
        receive(worker)
    cut.send(*numbers(1, 35))
    cut.tick()
    cut.send("after")
    cut.tick()
    first, second = receive("a"), receive("b")
    assert (first[1], second[1]) == (numbers(1, 10), numbers(11, 20))
    assert receive("a") == first
    assert cut.value("SELECT pgque.ack(%s)", second[0]) == 1
    third = receive("c")
    assert third[1] == numbers(21, 30)
    heir = receive("b", "0 seconds")  # of a's part: the eldest
    assert heir[1] == numbers(1, 10) and heir[0] != first[0]
    assert cut.value("SELECT pgque.ack(%s)", first[0]) == 0
    rest = receive("a")
    assert rest[1] == numbers(31, 35)
    # Who leaves gives back what it has, and that alone.
    cut.value("SELECT pgque.unregister_subconsumer(%s, 'team', 'c', 1)", cut.name)
    retries = "SELECT count(*) FROM pgque.retry_queue JOIN pgque.queue ON queue_id = ev_queue WHERE queue_name = %s"
    assert cut.value(retries, cut.name) == LIMIT
    for batch in (heir[0], rest[0]):
        assert cut.value("SELECT pgque.ack(%s)", batch) == 1
    last = receive("a")
    assert last[1] == ["after"]
    assert cut.value("SELECT pgque.ack(%s)", last[0]) == 1
    assert parts(cut) == 0


def test_a_group_that_becomes_a_normal_consumer_goes_on_in_the_middle(cut: Queue) -> None:
    cut.value("SELECT pgque.register_subconsumer(%s, 'team', 'a')", cut.name)
    cut.send(*numbers(1, 25))
    cut.tick()
    batch = cut.value("SELECT pgque.next_batch(%s, 'team', 'a')", cut.name)
    cut.value("SELECT pgque.finish_batch(%s)", batch)
    cut.value("SELECT pgque.unregister_subconsumer(%s, 'team', 'a')", cut.name)
    batch = next_batch(cut, "team")
    assert batch is not None and events(cut, batch) == numbers(11, 20)
    cut.value("SELECT pgque.finish_batch(%s)", batch)
    cut.value("SELECT pgque.register_subconsumer(%s, 'team', 'b', true)", cut.name)
    batch = cut.value("SELECT pgque.next_batch(%s, 'team', 'b')", cut.name)
    assert events(cut, batch) == numbers(21, 25)


def test_a_part_is_found_by_the_index_of_ids(cut: Queue) -> None:
    """However many events there are, reading a part takes what the part has."""
    cut.value("SELECT pgque.set_queue_config(%s, 'ticker_max_count', '100000')", cut.name)
    cut.send(*numbers(1, 20_000))
    cut.tick()
    cut.value("SELECT pgque.set_queue_config(%s, 'max_batch_events', '100')", cut.name)
    for _ in range(3):
        batch = next_batch(cut)
        assert len(cut.rows("SELECT * FROM pgque.get_batch_events(%s)", batch)) == 100
        cut.value("SELECT pgque.finish_batch(%s)", batch)
    batch = next_batch(cut)
    with cut.connection.transaction():
        cut.connection.execute("SET LOCAL enable_seqscan = off")
        query = cut.value("SELECT pgque._batch_query(pgque._batch(%s), 'ev_id')", batch)
        lines = [line for (line,) in cut.rows(f"EXPLAIN (ANALYZE, BUFFERS, COSTS off) {query}")]
    assert any("id_idx" in line for line in lines), lines
    removed = sum(int(line.rpartition(":")[2]) for line in lines if "Rows Removed" in line)
    assert removed < 5000, lines
