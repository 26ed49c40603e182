"""Cooperative consumers: subconsumers that share the cursor of one consumer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.catalog.conftest import Queue


def receive(queue: Queue, worker: str, *, dead: str | None = None, limit: int = 100) -> list[tuple[int, str]]:
    """Batch and payload of each message that a worker of consumer `team` gets."""
    rows = queue.rows(
        "SELECT batch_id, payload FROM pgque.receive_coop(%s, 'team', %s, %s, %s::interval)",
        *(queue.name, worker, limit, dead),
    )
    return [(int(batch), payload) for batch, payload in rows]


def subscriptions(queue: Queue) -> dict[str, tuple[str, int | None]]:
    """Role and batch of each subscription to a queue."""
    rows = queue.rows(
        "SELECT co_name, sub_role, sub_batch FROM pgque.subscription JOIN pgque.consumer ON co_id = sub_consumer "
        "JOIN pgque.queue ON queue_id = sub_queue WHERE queue_name = %s ORDER BY co_name",
        queue.name,
    )
    return {name: (role, batch) for name, role, batch in rows}


def test_register_returns_one_for_new_and_zero_for_known(queue: Queue) -> None:
    register = "SELECT pgque.register_subconsumer(%s, 'team', 'a')"
    assert queue.value(register, queue.name) == 1
    assert queue.value(register, queue.name) == 0
    assert (
        queue.value(
            "SELECT pgque.subscribe_subconsumer(queue => %s, consumer => 'team', subconsumer => 'b')", queue.name
        )
        == 1
    )
    assert subscriptions(queue) == {
        "team": ("coop_main", None),
        "team.a": ("coop_member", None),
        "team.b": ("coop_member", None),
    }


def test_register_in_an_unknown_queue_fails(queue: Queue) -> None:
    assert "Event queue not created yet" in str(
        queue.fails("SELECT pgque.register_subconsumer('nowhere', 'team', 'a')")
    )


def test_a_normal_consumer_is_converted_only_on_request_and_without_a_batch(queue: Queue) -> None:
    queue.value("SELECT pgque.subscribe(%s, 'team')", queue.name)
    refused = queue.fails("SELECT pgque.register_subconsumer(%s, 'team', 'a')", queue.name)
    assert "is a normal consumer" in str(refused)
    assert refused.sqlstate == "55000"
    assert "is a normal consumer" in str(queue.fails("SELECT pgque.receive_coop(%s, 'team', 'a')", queue.name))
    queue.send("x")
    queue.tick()
    batch = queue.value("SELECT pgque.next_batch(%s, 'team')", queue.name)
    convert = "SELECT pgque.register_subconsumer(%s, 'team', 'a', convert_normal => true)"
    assert "has an active batch" in str(queue.fails(convert, queue.name))
    queue.value("SELECT pgque.ack(%s)", batch)
    assert queue.value(convert, queue.name) == 1
    assert subscriptions(queue) == {"team": ("coop_main", None), "team.a": ("coop_member", None)}


def test_the_name_of_a_subconsumer_must_be_free(queue: Queue) -> None:
    queue.value("SELECT pgque.subscribe(%s, 'team.a')", queue.name)
    clash = queue.fails("SELECT pgque.register_subconsumer(%s, 'team', 'a')", queue.name)
    assert clash.sqlstate == "42710"
    queue.value("SELECT pgque.register_subconsumer(%s, 'team', 'b')", queue.name)
    nested = queue.fails("SELECT pgque.register_subconsumer(%s, 'team.b', 'c')", queue.name)
    assert "cannot have subconsumers" in str(nested)


def test_members_get_different_batches_and_each_event_once(queue: Queue) -> None:
    for worker in "ab":
        queue.value("SELECT pgque.register_subconsumer(%s, 'team', %s)", queue.name, worker)
    queue.send("1", "2")
    queue.tick()
    queue.send("3")
    queue.tick()
    first, second = receive(queue, "a"), receive(queue, "b")
    assert [payload for _, payload in first] == ["1", "2"]
    assert [payload for _, payload in second] == ["3"]
    assert receive(queue, "a") == first, "a batch is given again until it is finished"
    for batch in (first[0][0], second[0][0]):
        assert queue.value("SELECT pgque.ack(%s)", batch) == 1
    assert receive(queue, "a") == receive(queue, "b") == []
    assert subscriptions(queue)["team.a"] == ("coop_member", None)


def test_receive_registers_consumer_and_member(queue: Queue) -> None:
    assert receive(queue, "cold") == []
    assert subscriptions(queue) == {"team": ("coop_main", None), "team.cold": ("coop_member", None)}
    queue.send("x")
    queue.tick()
    assert [payload for _, payload in receive(queue, "cold")] == ["x"]


def test_an_empty_batch_is_finished_at_once(queue: Queue) -> None:
    receive(queue, "a")
    queue.tick()
    assert receive(queue, "a") == []
    assert subscriptions(queue)["team.a"] == ("coop_member", None)
    assert queue.value("SELECT pgque.next_batch(%s, 'team', 'a')", queue.name) is None


def test_max_return_limits_the_rows_and_must_be_positive(queue: Queue) -> None:
    receive(queue, "a")
    queue.send("1", "2", "3")
    queue.tick()
    assert [payload for _, payload in receive(queue, "a", limit=2)] == ["1", "2"]
    for limit in (0, -1, None):
        assert "max_return must be >= 1" in str(
            queue.fails("SELECT * FROM pgque.receive_coop(%s, 'team', 'a', %s)", queue.name, limit)
        )


def test_a_stale_batch_is_taken_over_and_the_old_token_is_worth_nothing(queue: Queue) -> None:
    receive(queue, "dead")
    queue.send("1")
    queue.tick()
    [(old, _)] = receive(queue, "dead")
    assert receive(queue, "heir", dead="1 hour") == [], "it was active a moment ago"
    [(new, payload)] = receive(queue, "heir", dead="0 seconds")
    assert payload == "1"
    assert new != old
    assert subscriptions(queue)["team.dead"] == ("coop_member", None)
    # The worker returns.
    assert queue.value("SELECT pgque.ack(%s)", old) == 0
    message = "ROW(%s::bigint, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::pgque.message"
    assert "batch not found" in str(queue.fails(f"SELECT pgque.nack(%s, {message})", old, 1))
    assert receive(queue, "dead") == []
    assert queue.value("SELECT pgque.ack(%s)", new) == 1
    assert receive(queue, "dead", dead="0 seconds") == []


@pytest.mark.parametrize("moved", [False, True])
def test_what_the_dead_worker_wanted_to_retry_comes_no_third_time(queue: Queue, moved: bool) -> None:
    """The heir gets the whole batch, so a retry that waits is dropped, and one that has been moved is not repeated."""
    nack = (
        "SELECT pgque.nack(m.batch_id, m, interval '0') FROM pgque.receive_coop(%s, 'team', %s) m WHERE payload = '2'"
    )
    receive(queue, "dead")
    queue.send("1", "2")
    queue.tick()
    assert queue.value(nack, queue.name, "dead") == 1
    if moved:
        assert queue.value("SELECT pgque.maint_retry_events()") == 1
        queue.tick()
    rows = receive(queue, "heir", dead="0 seconds")
    assert [payload for _, payload in rows] == ["1", "2"]
    assert queue.value(nack, queue.name, "heir") == (0 if moved else 1)
    assert queue.value("SELECT pgque.ack(%s)", rows[0][0]) == 1
    again = []
    for _ in range(3):
        queue.value("SELECT pgque.maint_retry_events()")
        queue.tick()
        rows = receive(queue, "heir")
        again += [payload for _, payload in rows]
        for batch in {batch for batch, _ in rows}:
            queue.value("SELECT pgque.ack(%s)", batch)
    assert again == ["2"]


def test_a_sign_of_life_prevents_the_takeover(queue: Queue) -> None:
    receive(queue, "slow")
    queue.send("1")
    queue.tick()
    batch = receive(queue, "slow")
    queue.connection.execute(
        "UPDATE pgque.subscription SET sub_active = now() - interval '1 hour' WHERE sub_batch = %s", [batch[0][0]]
    )
    assert queue.value("SELECT pgque.touch_subconsumer(%s, 'team', 'slow')", queue.name) == 1
    assert receive(queue, "heir", dead="1 minute") == []
    assert receive(queue, "slow") == batch
    assert queue.value("SELECT pgque.touch_subconsumer(%s, 'team', 'nobody')", queue.name) == 0
    assert "team.nobody" not in subscriptions(queue)


def test_next_batch_custom_gives_ticks_and_respects_its_limits(queue: Queue) -> None:
    queue.value("SELECT pgque.register_subconsumer(%s, 'team', 'a')", queue.name)
    before = queue.value("SELECT last_tick FROM pgque.get_consumer_info(%s, 'team')", queue.name)
    queue.send("1")
    after = queue.tick()
    custom = "SELECT * FROM pgque.next_batch_custom(%s, 'team', 'a', %s::interval, %s::int, %s::interval)"
    for limits in (("1 hour", None, None), (None, 1_000_000, None), (None, None, "1 hour")):
        assert queue.rows(custom, queue.name, *limits) == [(None, None, None)]
    cursor = queue.connection.execute(custom, [queue.name, None, 1, None])
    assert [column.name for column in cursor.description or ()] == ["batch_id", "prev_tick_id", "next_tick_id"]
    row = cursor.fetchone()
    assert row is not None
    assert row[1:] == (before, after)
    assert queue.value("SELECT pgque.next_batch(%s, 'team', 'a')", queue.name) == row[0]
    assert queue.value("SELECT last_tick FROM pgque.get_consumer_info(%s, 'team')", queue.name) == after


def test_a_retried_event_comes_back_to_the_group(queue: Queue) -> None:
    receive(queue, "a")
    queue.send("1", "2")
    queue.tick()
    batch = receive(queue, "a")[0][0]
    for _ in range(2):
        queue.rows(
            "SELECT pgque.nack(m.batch_id, m, interval '0') FROM pgque.receive_coop(%s, 'team', 'a') m "
            "WHERE payload = '2'",
            queue.name,
        )
    assert queue.value("SELECT pgque.ack(%s)", batch) == 1
    queue.value("SELECT pgque.maint_retry_events()")
    queue.tick()
    assert [payload for _, payload in receive(queue, "b")] == ["2"]


def test_unregister_refuses_a_batch_or_retries_its_events(queue: Queue) -> None:
    queue.value("SELECT pgque.set_queue_config(%s, 'max_retries', '1')", queue.name)
    receive(queue, "a")
    queue.send("1", "2")
    queue.tick()
    receive(queue, "a")
    refused = queue.fails("SELECT pgque.unregister_subconsumer(%s, 'team', 'a')", queue.name)
    assert "has active batch" in str(refused)
    assert "batch_handling" in str(queue.fails("SELECT pgque.unregister_subconsumer(%s, 'team', 'a', 2)", queue.name))
    assert queue.value("SELECT pgque.unsubscribe_subconsumer(%s, 'team', 'a', batch_handling => 1)", queue.name) == 1
    assert queue.value("SELECT pgque.unregister_subconsumer(%s, 'team', 'a', 1)", queue.name) == 0
    assert subscriptions(queue) == {"team": ("normal", None)}
    retries = (
        "SELECT ev_data, ev_retry, ev_retry_after > now() FROM pgque.retry_queue "
        "JOIN pgque.queue ON queue_id = ev_queue WHERE queue_name = %s ORDER BY 1"
    )
    assert queue.rows(retries, queue.name) == [("1", 1, True), ("2", 1, True)]
    # What has had its retries is dead, for the consumer, which outlives its members.
    queue.connection.execute("UPDATE pgque.retry_queue SET ev_retry_after = now()")
    queue.value("SELECT pgque.maint_retry_events()")
    queue.value("SELECT pgque.register_subconsumer(%s, 'team', 'b', true)", queue.name)
    queue.tick()
    assert [payload for _, payload in receive(queue, "b")] == ["1", "2"]
    assert queue.value("SELECT pgque.unregister_subconsumer(%s, 'team', 'b', 1)", queue.name) == 1
    assert queue.rows(retries, queue.name) == []
    dead = (
        "SELECT ev_data, ev_retry, co_name FROM pgque.dlq_inspect(%s) JOIN pgque.consumer ON co_id = dl_consumer_id "
        "ORDER BY 1"
    )
    assert queue.rows(dead, queue.name) == [("1", 1, "team"), ("2", 1, "team")]


def test_the_ordinary_functions_point_to_the_cooperative_ones(queue: Queue) -> None:
    queue.value("SELECT pgque.register_subconsumer(%s, 'team', 'a')", queue.name)
    for consumer in ("team", "team.a"):
        for call in (
            "SELECT pgque.next_batch(%s, %s)",
            "SELECT * FROM pgque.next_batch_info(%s, %s)",
            "SELECT * FROM pgque.next_batch_custom(%s, %s, NULL, NULL, NULL)",
            "SELECT * FROM pgque.receive(%s, %s)",
        ):
            assert "receive_coop()" in str(queue.fails(call, queue.name, consumer))
    assert "unregister_subconsumer" in str(queue.fails("SELECT pgque.unregister_consumer(%s, 'team')", queue.name))
    queue.value("SELECT pgque.unregister_subconsumer(%s, 'team', 'a')", queue.name)
    assert queue.value("SELECT pgque.next_batch(%s, 'team')", queue.name) is None
    assert queue.value("SELECT pgque.unregister_consumer(%s, 'team')", queue.name) == 1


def test_a_group_reads_past_normal_consumers_of_the_same_queue(queue: Queue) -> None:
    queue.value("SELECT pgque.subscribe(%s, 'other')", queue.name)
    receive(queue, "a")
    queue.send("1")
    queue.tick()
    [(batch, _)] = receive(queue, "a")
    queue.value("SELECT pgque.ack(%s)", batch)
    assert queue.rows("SELECT payload FROM pgque.receive(%s, 'other')", queue.name) == [("1",)]


def test_sixteen_workers_share_the_events_while_some_die(queue: Queue, queue_database: str) -> None:
    """Every event is finished exactly once; workers that die in the middle of a batch are replaced."""
    receive(queue, "worker 0")
    expected = Counter[str]()
    for tick in range(40):
        payloads = [f"{tick}/{n}" for n in range(5)]
        queue.send(*payloads)
        queue.tick()
        expected.update(payloads)
    finished = Counter[str]()
    lock = threading.Lock()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with psycopg.connect(queue_database, autocommit=True) as connection:
                while True:
                    rows: list[Any] = connection.execute(
                        "SELECT batch_id, payload FROM pgque.receive_coop(%s, 'team', %s, 100, %s)",
                        [queue.name, f"worker {number}", "1 hour" if number < 4 else None],
                    ).fetchall()
                    if not rows or number >= 12:  # the last four take a batch and are never seen again
                        return
                    row = connection.execute("SELECT pgque.ack(%s)", [rows[0][0]]).fetchone()
                    assert row == (1,)
                    with lock:
                        finished.update(payload for _, payload in rows)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=[number]) for number in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    held = {name: batch for name, (_, batch) in subscriptions(queue).items() if batch is not None}
    assert set(held) <= {f"team.worker {number}" for number in range(12, 16)}
    while rows := receive(queue, "worker 0", dead="0 seconds"):
        finished.update(payload for _, payload in rows)
        queue.value("SELECT pgque.ack(%s)", rows[0][0])
    assert finished == expected


def test_a_batch_taken_in_a_transaction_that_dies_goes_to_the_next(queue: Queue, queue_database: str) -> None:
    receive(queue, "a")
    queue.send("1")
    queue.tick()
    with psycopg.connect(queue_database) as doomed:
        taken = doomed.execute("SELECT payload FROM pgque.receive_coop(%s, 'team', 'a')", [queue.name]).fetchall()
        assert taken == [("1",)]
        queue.value("SELECT pg_terminate_backend(%s, 10000)", doomed.info.backend_pid)
        doomed.close()
    assert [payload for _, payload in receive(queue, "b")] == ["1"]


def test_two_workers_that_start_cold_found_one_group(queue: Queue, queue_database: str) -> None:
    with psycopg.connect(queue_database) as first, psycopg.connect(queue_database, autocommit=True) as second:
        first.execute("SELECT * FROM pgque.receive_coop(%s, 'team', 'a')", [queue.name])
        outcome: list[Any] = []

        def start() -> None:
            try:
                outcome.append(
                    second.execute("SELECT pgque.register_subconsumer(%s, 'team', 'b')", [queue.name]).fetchone()
                )
            except psycopg.Error as error:
                outcome.append(error)

        worker = threading.Thread(target=start)
        worker.start()
        waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        deadline = time.monotonic() + 90
        while not queue.value(waits, second.info.backend_pid) and time.monotonic() < deadline:
            pass
        first.commit()
        worker.join()
    assert outcome == [(1,)]
    assert set(subscriptions(queue)) == {"team", "team.a", "team.b"}


@pytest.mark.parametrize("names", [("", "a"), ("team", ""), ("team", None)])
def test_names_must_not_be_empty(queue: Queue, names: tuple[str, str | None]) -> None:
    assert "must not be empty" in str(queue.fails("SELECT pgque.register_subconsumer(%s, %s, %s)", queue.name, *names))


def test_a_worker_gets_the_first_events_behind_quiet_times(queue: Queue) -> None:
    assert receive(queue, "a") == []
    for _ in range(5):
        queue.tick()
    queue.send("late")
    queue.tick()
    ((batch, payload),) = receive(queue, "a")
    assert payload == "late"
    assert subscriptions(queue)["team.a"] == ("coop_member", batch)
    queue.value("SELECT pgque.ack(%s)", batch)
    assert receive(queue, "b") == []
    assert subscriptions(queue)["team.b"] == ("coop_member", None)


def test_a_call_passes_over_a_thousand_quiet_ticks_at_most(queue: Queue) -> None:
    assert receive(queue, "a") == []
    for _ in range(1001):
        queue.tick()
    queue.send("late")
    queue.tick()
    assert receive(queue, "a") == []
    assert [payload for _, payload in receive(queue, "a")] == ["late"]
