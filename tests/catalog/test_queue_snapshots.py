"""An event is delivered exactly once to each consumer, whatever transactions were open at a tick."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Thread

import psycopg
import pytest

from tests.catalog.conftest import Connection, Queue

Open = Callable[[], Connection]


@pytest.fixture
def sender(queue_database: str) -> Iterator[Open]:
    """Opens connections that are not in autocommit."""
    opened: list[Connection] = []

    def connect() -> Connection:
        opened.append(psycopg.connect(queue_database))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def send(connection: Connection, queue: Queue, payload: str) -> None:
    connection.execute("SELECT pgque.send(%s, %s)", [queue.name, payload])


def drain(queue: Queue, consumer: str = "c") -> list[list[str]]:
    """The payloads of every batch up to the last tick, acknowledged."""
    batches = []
    while (batch := queue.value("SELECT pgque.next_batch(%s, %s)", queue.name, consumer)) is not None:
        batches.append([row[0] for row in queue.rows("SELECT ev_data FROM pgque.get_batch_events(%s)", batch)])
        assert queue.value("SELECT pgque.finish_batch(%s)", batch) == 1
    return batches


@pytest.fixture
def consumed(queue: Queue) -> Queue:
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    queue.value("SELECT pgque.set_queue_config(%s, 'ticker_max_lag', '1 millisecond')", queue.name)
    return queue


def test_transaction_open_across_ticks_is_delivered_once_after_it_commits(consumed: Queue, sender: Open) -> None:
    slow = sender()
    send(slow, consumed, "early")
    batches = []
    for number in range(4):
        consumed.send(f"between {number}")
        consumed.tick()
        batches += drain(consumed)
        send(slow, consumed, f"slow {number}")
    assert batches == [[f"between {number}"] for number in range(4)]
    slow.commit()
    consumed.tick()
    assert drain(consumed) == [["early", "slow 0", "slow 1", "slow 2", "slow 3"]]
    consumed.tick()
    assert drain(consumed) == [[]]


def test_transaction_that_is_aborted_is_never_delivered(consumed: Queue, sender: Open) -> None:
    slow = sender()
    send(slow, consumed, "lost")
    consumed.tick()
    slow.rollback()
    consumed.send("kept")
    consumed.tick()
    assert drain(consumed) == [[], ["kept"]]


def test_subtransactions_belong_to_their_transaction(consumed: Queue, sender: Open) -> None:
    slow = sender()
    for number in range(70):  # more than a snapshot lists one by one
        slow.execute("SAVEPOINT s")
        send(slow, consumed, str(number))
        slow.execute("RELEASE s" if number % 2 else "ROLLBACK TO s")
        if number == 35:
            consumed.tick()
    slow.commit()
    consumed.tick()
    assert drain(consumed) == [[], [str(number) for number in range(70) if number % 2]]


def test_transaction_that_began_before_and_sent_after_a_tick(consumed: Queue, sender: Open) -> None:
    slow = sender()
    slow.execute("SELECT pg_current_xact_id()")
    consumed.send("a")
    consumed.tick()
    send(slow, consumed, "late")
    slow.commit()
    consumed.tick()
    assert drain(consumed) == [["a"], ["late"]]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_sender_with_an_old_snapshot(consumed: Queue, sender: Open, level: str) -> None:
    slow = sender()
    slow.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    slow.execute("SELECT 1 FROM pgque.queue")
    for _ in range(2):
        consumed.tick()
    send(slow, consumed, "old")
    consumed.tick()
    slow.commit()
    consumed.tick()
    assert [batch for batch in drain(consumed) if batch] == [["old"]]


def test_a_late_commit_alone_makes_the_next_tick_due(consumed: Queue, sender: Open) -> None:
    slow = sender()
    send(slow, consumed, "late")
    assert consumed.value("SELECT pgque.ticker(%s)", consumed.name) is not None
    assert consumed.value("SELECT pgque.ticker(%s)", consumed.name) is None
    with psycopg.connect(consumed.connection.info.dsn, password=consumed.connection.info.password) as listener:
        listener.autocommit = True
        listener.execute(f'LISTEN "pgque_{consumed.name}"')
        slow.commit()
        tick = consumed.value("SELECT pgque.ticker(%s)", consumed.name)
        assert tick is not None
        assert [notice.payload for notice in listener.notifies(timeout=30, stop_after=1)] == [str(tick)]
    assert consumed.value("SELECT pgque.ticker(%s)", consumed.name) is None
    assert drain(consumed) == [[], ["late"]]


def test_events_of_a_ticks_own_transaction_come_once(consumed: Queue, sender: Open) -> None:
    own, other = sender(), sender()
    send(own, consumed, "before")
    other.execute("SELECT pg_current_xact_id()")
    other.commit()  # a later transaction has ended: a plain snapshot would take this one as finished
    own.execute("SELECT pgque.force_next_tick(%s)", [consumed.name])
    own.execute("SELECT pgque.ticker(%s)", [consumed.name])
    send(own, consumed, "after")
    own.commit()
    consumed.tick()
    assert drain(consumed) == [[], ["before", "after"]]


def test_queue_subscription_and_events_in_one_transaction(queue: Queue, sender: Open) -> None:
    own = sender()
    own.execute("SELECT pgque.create_queue(%s)", [name := f"{queue.name} b"])
    own.execute("SELECT pgque.subscribe(%s, 'c')", [name])
    own.execute("SELECT pgque.send(%s, 'first')", [name])
    own.commit()
    both = Queue(queue.connection, name)
    both.tick()
    assert drain(both) == [["first"]]


def test_prepared_transaction_is_delivered_after_it_commits(consumed: Queue, sender: Open) -> None:
    slow = sender()
    send(slow, consumed, "prepared")
    slow.execute("PREPARE TRANSACTION 'queue'")
    consumed.tick()
    consumed.connection.execute("COMMIT PREPARED 'queue'")
    consumed.tick()
    assert drain(consumed) == [[], ["prepared"]]


def test_two_tickers_at_once_make_growing_snapshots(consumed: Queue, sender: Open) -> None:
    first, second = sender(), sender()
    first.execute("SELECT pgque.force_next_tick(%s)", [consumed.name])
    assert first.execute("SELECT pgque.ticker(%s)", [consumed.name]).fetchone() == (2,)
    consumed.send("while the tick is not committed")
    # ticker() leaves the queue to the other one; ticker(queue) waits for it and then takes its snapshot.
    ids = consumed.rows(
        "SELECT tick_id FROM pgque.tick JOIN pgque.queue ON queue_id = tick_queue WHERE queue_name = %s", consumed.name
    )
    consumed.value("SELECT pgque.ticker()")
    assert (
        consumed.rows(
            "SELECT tick_id FROM pgque.tick JOIN pgque.queue ON queue_id = tick_queue WHERE queue_name = %s",
            consumed.name,
        )
        == ids
    )
    second.autocommit = True
    waiting = Thread(target=lambda: second.execute("SELECT pgque.ticker(%s)", [consumed.name]))
    waiting.start()
    while not consumed.value(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = %s)",
        second.info.backend_pid,
    ):
        assert waiting.is_alive()
    consumed.send("while the second waits")
    first.commit()
    waiting.join()
    assert drain(consumed) == [[], ["while the tick is not committed", "while the second waits"]]


def test_ticker_whose_snapshot_is_older_than_the_last_tick_fails(consumed: Queue, sender: Open) -> None:
    old = sender()
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT 1")
    old.execute("SELECT pgque.force_next_tick(%s)", [consumed.name])
    consumed.send("x")
    consumed.tick()
    with pytest.raises(psycopg.errors.SerializationFailure):
        old.execute("SELECT pgque.ticker(%s)", [consumed.name])
    old.rollback()
    consumed.tick()
    assert drain(consumed) == [["x"], []]


@pytest.mark.parametrize("seed", range(3))
def test_random_interleavings_deliver_every_committed_event_once(consumed: Queue, sender: Open, seed: int) -> None:
    """Transactions begin, send, save points, commit and abort between ticks, rotations and consumers' batches."""
    chance = random.Random(seed)
    consumed.value("SELECT pgque.set_queue_config(%s, 'rotation_period', '1 microsecond')", consumed.name)
    consumed.value("SELECT pgque.subscribe(%s, 'd')", consumed.name)
    senders = [sender() for _ in range(4)]
    open_events: dict[int, list[str]] = {number: [] for number in range(4)}
    committed: list[str] = []
    got: dict[str, list[str]] = {"c": [], "d": []}
    rotations = 0
    for step in range(150):
        number = chance.randrange(4)
        action = chance.choices(
            ["send", "subsend", "commit", "abort", "tick", "c", "d", "rotate"], [6, 2, 2, 1, 4, 2, 1, 2]
        )[0]
        if action == "send":
            send(senders[number], consumed, str(step))
            open_events[number].append(str(step))
        elif action == "subsend":
            senders[number].execute("SAVEPOINT s")
            send(senders[number], consumed, str(step))
            senders[number].execute("ROLLBACK TO s" if (lost := chance.random() < 0.5) else "RELEASE s")
            open_events[number] += [] if lost else [str(step)]
        elif action in ("commit", "abort"):
            if action == "commit":
                senders[number].commit()
                committed += open_events[number]
            else:
                senders[number].rollback()
            open_events[number] = []
        elif action == "tick":
            consumed.tick()
        elif action == "rotate":
            rotations += consumed.value("SELECT pgque.maint_rotate_tables_step1(%s)", consumed.name)
            consumed.value("SELECT pgque.maint_rotate_tables_step2()")
        else:
            got[action] += [payload for batch in drain(consumed, action) for payload in batch]
    for number in range(4):
        senders[number].commit()
        committed += open_events[number]
    consumed.tick()
    for consumer, payloads in got.items():
        payloads += [payload for batch in drain(consumed, consumer) for payload in batch]
        assert Counter(payloads) == Counter(committed)
    assert rotations > 0


def test_what_gathered_while_the_ticker_slept_comes_in_portions(consumed: Queue, sender: Open) -> None:
    """Portions of 20 times ticker_max_count, with transactions whole, late ones included, and each event once."""
    consumed.value("SELECT pgque.set_queue_config(%s, 'ticker_max_count', '1')", consumed.name)
    late, still_open = sender(), sender()
    send(late, consumed, "late")
    consumed.tick()
    send(still_open, consumed, "open")
    for number in range(50):
        consumed.send(f"{number} a", f"{number} b")
        if number == 25:
            late.commit()
    consumed.send(*[f"one transaction {number}" for number in range(100)])
    consumed.value("SELECT pgque.set_queue_config(%s, 'ticker_paused', 'true')", consumed.name)
    consumed.value("SELECT pgque.set_queue_config(%s, 'ticker_paused', 'false')", consumed.name)
    last = consumed.value("SELECT pgque.ticker(%s)", consumed.name)
    assert last == consumed.value("SELECT last_tick_id FROM pgque.get_queue_info(%s)", consumed.name)
    first, *batches = drain(consumed)
    assert first == []
    everything = [f"{number} {letter}" for number in range(50) for letter in "ab"]
    everything += [f"one transaction {number}" for number in range(100)]
    assert Counter(payload for batch in batches for payload in batch) == Counter(["late", *everything])
    assert [len(batch) for batch in batches] == [21, 20, 20, 20, 20, 100]
    still_open.commit()
    consumed.tick()
    assert drain(consumed) == [["open"]]
    sequence = consumed.rows(
        "SELECT tick_event_seq FROM pgque.tick JOIN pgque.queue ON queue_id = tick_queue WHERE queue_name = %s"
        " ORDER BY tick_id",
        consumed.name,
    )
    assert sequence == sorted(sequence)
