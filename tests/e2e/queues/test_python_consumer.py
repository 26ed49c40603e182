"""`headwater.queues`: consumers and producers in Python, against a server, through the wire."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from headwater.queues import AsyncBatch, AsyncProducer, Batch, BatchLost, Consumer, Event, Producer, consumer
from tests.e2e.conftest import Database, Headwater
from tests.e2e.queues.queue_crews import DONE, Crew

Eventually = Callable[..., Any]
PROGRAM = Path(__file__).with_name("consumer_program.py")
SECONDS = 60.0
FLAVOURS = pytest.mark.parametrize("flavour", ["sync", "async"])


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@dataclass
class Line:
    product: int
    amount: Decimal


@dataclass
class Order:
    at: datetime
    lines: list[Line]


def make(database: Database, queue: str, *consumers: str) -> str:
    """A queue with consumers; returns the connection string."""
    database.run("SELECT pgque.set_tick_period_ms(20)")
    database.run("SELECT pgque.create_queue(%s)", queue)
    for name in consumers:
        database.run("SELECT pgque.subscribe(%s, %s)", queue, name)
    return database.server.dsn(database.name)


def send(database: Database, queue: str, *payloads: object, type: str = "default") -> list[int]:
    return Producer(database.connection, queue).send_batch(payloads, type)


def open_batches(database: Database) -> int:
    return int(database.value("SELECT count(current_batch) FROM pgque.get_consumer_info()"))


def stopped_after(events: int, flavour: str, worker: Consumer) -> list[Event]:
    """What the consumer gives; it is stopped in the loop when it has given so many events."""
    given: list[Event] = []

    def take(batch: Batch | AsyncBatch) -> None:
        given.extend(batch)
        if len(given) >= events:
            worker.stop()

    async def take_all() -> None:
        async for batch in worker:
            take(batch)

    if flavour == "async":
        asyncio.run(asyncio.wait_for(take_all(), SECONDS))
    else:
        for batch in worker:
            take(batch)
    return given


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`consumer_program.py`, from when it is about to connect; killed in the end, if it is still there."""
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[3])}
    command = [sys.executable, PROGRAM, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)


@contextmanager
def running(work: Callable[[], object], worker: Consumer) -> Iterator[None]:
    """Something that a thread does until the consumer is stopped."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert errors == []


# ---------------------------------------------------------------------------------------------------------------------
# Batches


@FLAVOURS
def test_batches_come_in_order_and_are_acknowledged_by_asking_for_more(live_db: Database, flavour: str) -> None:
    dsn = make(live_db, "Orders", "billing")
    first = send(live_db, "Orders", *("a", "b"), type="created")
    live_db.run("SELECT pgque.force_next_tick('Orders'), pgque.ticker('Orders')")
    second = send(live_db, "Orders", "c")
    given = stopped_after(3, flavour, consumer(dsn, "Orders", "billing"))
    assert [(e.id, e.type, e.payload) for e in given] == [
        (first[0], "created", "a"),
        (first[1], "created", "b"),
        (second[0], "default", "c"),
    ]
    assert all(e.retries == 0 and e.created_at.tzinfo is not None and e.extra1 is None for e in given)
    assert open_batches(live_db) == 0


def test_consumer_past_the_server(live_db: Database) -> None:
    make(live_db, "orders", "billing")
    send(live_db, "orders", "a")
    past = consumer(live_db.server.direct_dsn(live_db.name), "orders", "billing")
    assert [e.payload for e in stopped_after(1, "sync", past)] == ["a"]


@FLAVOURS
def test_consumer_registers_itself(live_db: Database, flavour: str, eventually: Eventually) -> None:
    dsn = make(live_db, "orders")
    worker = consumer(dsn, "orders", "new")

    def late() -> None:
        eventually(lambda: live_db.rows("SELECT * FROM pgque.get_consumer_info('orders', 'new')"))
        send(live_db, "orders", "sent afterwards")

    sender = threading.Thread(target=late)
    sender.start()
    assert [e.payload for e in stopped_after(1, flavour, worker)] == ["sent afterwards"]
    sender.join()


def test_batch_left_by_break_comes_again_unless_acknowledged(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    send(live_db, "orders", "a")
    for batch in consumer(dsn, "orders", "billing"):
        assert [e.payload for e in batch] == ["a"]
        break
    for again in consumer(dsn, "orders", "billing"):
        assert [e.payload for e in again] == ["a"]
        with pytest.raises(ValueError, match="only a member"):
            again.touch()
        again.ack()
        break
    send(live_db, "orders", "b")
    assert [e.payload for e in stopped_after(1, "sync", consumer(dsn, "orders", "billing"))] == ["b"]


def test_asynchronous_batch_that_is_left_comes_again(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    send(live_db, "orders", "a")

    async def leave() -> None:
        async with aclosing(aiter(consumer(dsn, "orders", "billing"))) as batches:
            batch = await anext(batches)
        assert [e.payload for e in batch] == ["a"]
        assert batch.connection.closed and not batch.finished

    asyncio.run(asyncio.wait_for(leave(), SECONDS))
    assert [e.payload for e in stopped_after(1, "async", consumer(dsn, "orders", "billing"))] == ["a"]


def test_what_is_done_for_a_batch_is_committed_with_it_or_undone_with_it(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run("CREATE TABLE handled (payload text)")
    send(live_db, "orders", "a", "b")
    worker = consumer(dsn, "orders", "billing")
    failures = 2
    finished = []
    for batch in worker:
        try:
            with batch.transaction() as connection:
                for event in batch:
                    connection.execute("INSERT INTO handled VALUES (%s)", [event.payload])
                if failures:
                    failures -= 1
                    raise RuntimeError("in the middle")
                worker.stop()
        except RuntimeError:
            assert batch.undone
            assert live_db.rows("SELECT * FROM handled") == []
        finished.append(batch.finished)
    assert finished == [False, False, True]
    assert live_db.rows("SELECT payload FROM handled ORDER BY 1") == [("a",), ("b",)]
    assert open_batches(live_db) == 0


def test_asynchronous_batch_is_processed_in_its_transaction(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run("CREATE TABLE handled (payload text)")
    send(live_db, "orders", "a", "b")
    worker = consumer(dsn, "orders", "billing")

    async def work() -> list[bool]:
        finished = []
        async for batch in worker:
            try:
                async with batch.transaction() as connection:
                    for event in batch:
                        await connection.execute("INSERT INTO handled VALUES (%s)", [event.payload])
                    if not finished:
                        raise RuntimeError("in the middle")
                    worker.stop()
            except RuntimeError:
                assert batch.undone
            finished.append(batch.finished)
        return finished

    assert asyncio.run(asyncio.wait_for(work(), SECONDS)) == [False, True]
    assert live_db.rows("SELECT payload FROM handled ORDER BY 1") == [("a",), ("b",)]


def test_batch_that_somebody_else_has_finished_is_lost(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run("CREATE TABLE handled (payload text)")
    send(live_db, "orders", "a")
    worker = consumer(dsn, "orders", "billing")
    for batch in worker:
        with batch.transaction() as connection:
            connection.execute("INSERT INTO handled VALUES ('undone')")
            assert live_db.value("SELECT pgque.ack(%s)", batch.id) == 1
        assert (batch.finished, batch.undone) == (False, True)
        with pytest.raises(BatchLost, match=f"batch {batch.id} has been finished"):
            batch.ack()
        worker.stop()
    assert live_db.rows("SELECT * FROM handled") == []


FAILS = "DO $$ BEGIN RAISE EXCEPTION 'try again' USING ERRCODE = '40001'; END $$"


def test_batch_whose_transaction_others_have_stopped_comes_again(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    send(live_db, "orders", "a")
    worker = consumer(dsn, "orders", "billing")
    finished = []
    for batch in worker:
        with batch.transaction() as connection:
            if not finished:
                connection.execute(FAILS)
            worker.stop()
        finished.append(batch.finished)
    assert finished == [False, True]

    calls: list[int] = []
    worker = consumer(dsn, "orders", "billing")

    @worker.on("default")
    def handle(event: Event, connection: psycopg.Connection[Any]) -> None:
        calls.append(event.retries)
        if len(calls) == 1:
            connection.execute(FAILS)
        worker.stop()

    send(live_db, "orders", "b")
    worker.run()
    assert calls == [0, 0]  # given again, and not counted as refused


@FLAVOURS
def test_event_of_a_batch_that_has_been_taken_over_cannot_be_refused(live_db: Database, flavour: str) -> None:
    dsn = make(live_db, "orders")
    live_db.run("SELECT pgque.subscribe_subconsumer('orders', 'group', 'one')")
    send(live_db, "orders", "a")
    worker = consumer(dsn, "orders", "group", member="one")

    def take_over() -> None:
        rows = live_db.rows("SELECT payload FROM pgque.receive_coop('orders', 'group', 'two', 9, '0 seconds')")
        assert rows == [("a",)]
        worker.stop()
        raise ValueError("too late")

    if flavour == "sync":

        @worker.on("default")
        def handle(event: Event, connection: psycopg.Connection[Any]) -> None:
            take_over()

        worker.run()
    else:

        @worker.on("default")
        async def handle_async(event: Event, connection: psycopg.AsyncConnection[Any]) -> None:
            take_over()

        asyncio.run(asyncio.wait_for(worker.run_async(), SECONDS))
    assert live_db.rows("SELECT * FROM pgque.retry_queue") == []
    assert live_db.value("SELECT current_batch IS NULL FROM pgque.get_consumer_info('orders', 'group.one')")


def test_event_of_another_batch_is_not_refused(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing", "shipping")
    send(live_db, "orders", "a")
    (other,) = stopped_after(1, "sync", consumer(dsn, "orders", "shipping"))
    for batch in consumer(dsn, "orders", "billing"):
        with pytest.raises(ValueError, match=f"event {other.id} is not one of batch {batch.id}"):
            batch.nack(other)
        break


def test_refused_event_comes_again_after_its_delay_and_is_dead_in_the_end(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run("SELECT pgque.set_queue_config('orders', 'max_retries', '2')")
    (refused, _) = send(live_db, "orders", "bad", "good")
    worker = consumer(dsn, "orders", "billing", retry_after=timedelta(seconds=0.1))
    seen: list[tuple[str | None, int]] = []
    for batch in worker:
        with batch.transaction():
            for event in batch:
                seen.append((event.payload, event.retries))
                if event.payload == "bad":
                    after = timedelta(seconds=0.5) if event.retries == 0 else None
                    batch.nack(event, after=after, reason=f"no luck, {event.retries} times")
                    if event.retries == 2:
                        worker.stop()
    assert seen == [("bad", 0), ("good", 0), ("bad", 1), ("bad", 2)]
    dead = live_db.rows("SELECT ev_id, ev_retry, dl_reason FROM pgque.dlq_inspect('orders')")
    assert dead == [(refused, 2, "no luck, 2 times")]


def test_events_are_read_into_types(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    order = Order(datetime.fromisoformat("2026-04-18T14:30:00+02:00"), [Line(42, Decimal("0.10000000000000000001"))])
    send(live_db, "orders", order, "not JSON", {"at": "tomorrow", "lines": []})
    good, no_json, no_order = stopped_after(3, "sync", consumer(dsn, "orders", "billing"))
    assert good.decode(Order) == order
    assert good.json()["lines"][0]["product"] == 42
    with pytest.raises(msgspec.DecodeError):
        no_json.json()
    with pytest.raises(msgspec.ValidationError, match=r"Invalid RFC3339.*at"):
        no_order.decode(Order)


# ---------------------------------------------------------------------------------------------------------------------
# Waiting and stopping


def test_events_are_delivered_by_notification(live_db: Database, record_property: Callable[..., None]) -> None:
    """The interval for polling is far longer than the test may take."""
    dsn = make(live_db, "orders", "billing")
    worker = consumer(dsn, "orders", "billing", poll_interval=10 * SECONDS)
    arrived: list[float] = []
    there = threading.Event()

    def work() -> None:
        for batch in worker:
            arrived.extend(time.monotonic() for _ in batch)
            there.set()

    delays = []
    with running(work, worker):
        for number in range(20):
            there.clear()
            began = time.monotonic()
            send(live_db, "orders", str(number))
            assert there.wait(SECONDS)
            delays.append(arrived[-1] - began)
            time.sleep(0.01 * (number % 5))  # anywhere between two ticks
    assert len(arrived) == 20
    record_property("latency", f"{statistics.median(delays) * 1000:.0f} ms")


@FLAVOURS
def test_without_notifications_the_queue_is_asked_from_time_to_time(live_db: Database, flavour: str) -> None:
    dsn = make(live_db, "orders", "billing")
    worker = consumer(dsn, "orders", "billing", poll_interval=0.3)
    unheard: list[str | None] = []

    async def work() -> None:
        async for batch in worker:
            unheard.extend(e.payload for e in batch)
            await batch.connection.execute("UNLISTEN *")
            send(live_db, "orders", "second") if len(unheard) == 1 else worker.stop()

    send(live_db, "orders", "first")
    if flavour == "async":
        asyncio.run(asyncio.wait_for(work(), SECONDS))
    else:
        for batch in worker:
            unheard.extend(e.payload for e in batch)
            batch.connection.execute("UNLISTEN *")
            send(live_db, "orders", "second") if len(unheard) == 1 else worker.stop()
    assert unheard == ["first", "second"]


@FLAVOURS
@pytest.mark.parametrize("member", [None, "one"])
@pytest.mark.one_in(2)
def test_ticks_without_events_are_passed_over_at_once(live_db: Database, flavour: str, member: str | None) -> None:
    """As after a quiet night: the interval for polling is far longer than the test may take."""
    dsn = make(live_db, "orders")
    worker = consumer(dsn, "orders", "billing", member=member, poll_interval=10 * SECONDS)
    if member is None:
        live_db.run("SELECT pgque.subscribe('orders', 'billing')")
    else:
        live_db.run("SELECT pgque.subscribe_subconsumer('orders', 'billing', %s)", member)
    for _ in range(9):
        live_db.run("SELECT pgque.force_next_tick('orders')")
        live_db.run("SELECT pgque.ticker('orders')")
    send(live_db, "orders", "in the morning")
    time.sleep(0.5)  # its tick is made, and announced, before anybody listens
    assert [e.payload for e in stopped_after(1, flavour, worker)] == ["in the morning"]
    assert open_batches(live_db) == 0


@FLAVOURS
def test_stop_ends_a_consumer_that_waits(live_db: Database, flavour: str, eventually: Eventually) -> None:
    dsn = make(live_db, "orders")
    worker = consumer(dsn, "orders", "idle", poll_interval=10 * SECONDS)
    elsewhere = live_db.connect(dbname="postgres")
    connections = f"SELECT FROM pg_stat_activity WHERE datname = '{live_db.name}' AND query LIKE '%pgque.next_batch(%'"
    with running(lambda: stopped_after(1, flavour, worker), worker):
        eventually(lambda: elsewhere.execute(connections).fetchall(), what="a consumer that waits")
    eventually(lambda: not elsewhere.execute(connections).fetchall(), what="a closed connection")


def test_sigterm_in_the_middle_of_a_batch_lets_it_be_finished(live_db: Database, eventually: Eventually) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run(DONE)
    send(live_db, "orders", *map(str, range(500)))  # one statement, so one batch, for a second
    with program(dsn, "orders", "billing") as process:
        eventually(lambda: open_batches(live_db) == 1)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(SECONDS) == 0
    assert live_db.value("SELECT count(*) FROM done") == 500
    assert open_batches(live_db) == 0


def test_signals_are_given_back_and_those_of_the_program_are_left_alone(live_db: Database) -> None:
    dsn = make(live_db, "orders", "one", "two")
    one, two = consumer(dsn, "orders", "one"), consumer(dsn, "orders", "two")
    send(live_db, "orders", "a")

    async def work(worker: Consumer) -> None:
        async for _ in worker:
            if worker is two:
                os.kill(os.getpid(), signal.SIGTERM)

    async def both() -> None:
        await asyncio.gather(work(one), work(two))

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    asyncio.run(asyncio.wait_for(both(), SECONDS))
    assert one.stopped and two.stopped
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    caught: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        send(live_db, "orders", "b")
        third = consumer(dsn, "orders", "one")
        for _ in third:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not third.stopped
            third.stop()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert caught == [signal.SIGTERM]


# ---------------------------------------------------------------------------------------------------------------------
# Faults


def test_killed_consumer_loses_nothing_and_repeats_nothing(live_db: Database, eventually: Eventually) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run(DONE)
    crew = Crew(lambda: dsn, "orders")
    rng = random.Random(21)
    with crew:
        crew.produce("p", 60, seed=21)
        crew.produce("q", 60, seed=22)
        killed_in_the_middle = 0
        for _ in range(6):
            with program(dsn, "orders", "billing") as process:
                eventually(lambda: open_batches(live_db) == 1, what="a batch")
                time.sleep(rng.uniform(0, 0.2))
                process.send_signal(signal.SIGKILL)
                process.wait(SECONDS)
            killed_in_the_middle += open_batches(live_db)
        crew.all_sent()
        with program(dsn, "orders", "billing"):
            eventually(lambda: crew.arrived(live_db.connection, "billing"))
    crew.check(live_db.connection, "billing")
    assert killed_in_the_middle > 0


@FLAVOURS
@pytest.mark.parametrize("moment", ["before", "within", "at the end"])
@pytest.mark.one_in(2)
def test_connection_lost_around_a_transaction_gives_the_batch_again(
    live_db: Database, flavour: str, moment: str
) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run("CREATE TABLE handled (payload text)")
    send(live_db, "orders", "a")
    worker = consumer(dsn, "orders", "billing")
    outcomes: list[bool] = []
    insert = "INSERT INTO handled VALUES (%s)"

    def cut(batch: Batch | AsyncBatch, now: str) -> bool:
        """Close the connection, the first time, at the moment to be tested."""
        if outcomes or now != moment:
            return False
        live_db.run("SELECT pg_terminate_backend(%s, 60000)", batch.connection.info.backend_pid)
        return True

    async def work() -> None:
        async for batch in worker:
            cut(batch, "before")
            async with batch.transaction() as connection:
                await connection.execute(insert, [batch.events[0].payload])
                if cut(batch, "within"):
                    await connection.execute(insert, ["never"])
                cut(batch, "at the end")
            outcomes.append(batch.finished)
            if batch.finished:
                worker.stop()

    if flavour == "async":
        asyncio.run(asyncio.wait_for(work(), SECONDS))
    else:
        for batch in worker:
            cut(batch, "before")
            with batch.transaction() as connection:
                connection.execute(insert, [batch.events[0].payload])
                if cut(batch, "within"):
                    connection.execute(insert, ["never"])
                cut(batch, "at the end")
            outcomes.append(batch.finished)
            if batch.finished:
                worker.stop()
    assert outcomes == [False, True]
    assert live_db.rows("SELECT * FROM handled") == [("a",)]


def test_acknowledgement_is_made_on_the_next_connection(live_db: Database) -> None:
    """The program is done with the batch; only to acknowledge it there was no connection any more."""
    dsn = make(live_db, "orders", "billing")
    send(live_db, "orders", "a")
    worker = consumer(dsn, "orders", "billing")
    given = []
    for batch in worker:
        given += [e.payload for e in batch]
        if len(given) == 1:
            live_db.run("SELECT pg_terminate_backend(%s, 60000)", batch.connection.info.backend_pid)
            send(live_db, "orders", "b")
        else:
            worker.stop()
    assert given == ["a", "b"]
    assert open_batches(live_db) == 0


@pytest.fixture
def server_on_a_port(tmp_path: Path) -> Iterator[Headwater]:
    """A server of the test's own, which has the same port each time it is started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Headwater(tmp_path / "data", "--port", str(port)).start()
    yield server
    server.stop()


def test_killed_server_loses_nothing_and_repeats_nothing(server_on_a_port: Headwater, eventually: Eventually) -> None:
    """The consumer goes on by itself, whenever its connection is lost."""
    database = Database(server_on_a_port, "postgres")
    dsn = make(database, "orders", "billing")
    database.run(DONE)
    with Crew(lambda: dsn, "orders") as crew, program(dsn, "orders", "billing") as process:
        crew.produce("p", 100, seed=24)
        for _ in range(2):
            eventually(lambda at=database: open_batches(at) == 1, what="a batch")
            database.close()
            server_on_a_port.kill()
            server_on_a_port.start()
            database = Database(server_on_a_port, "postgres")
        crew.all_sent()
        eventually(lambda: crew.arrived(database.connection, "billing"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        crew.check(database.connection, "billing")
    database.close()


def test_asynchronous_consumer_survives_a_restart_of_the_server(
    server_on_a_port: Headwater, eventually: Eventually
) -> None:
    database = Database(server_on_a_port, "postgres")
    worker = consumer(make(database, "orders", "billing"), "orders", "billing")
    handled: list[str | None] = []

    async def work() -> None:
        async for batch in worker:
            handled.extend(e.payload for e in batch)

    with running(lambda: asyncio.run(work()), worker):
        send(database, "orders", "before")
        eventually(lambda: handled == ["before"])
        database.close()
        server_on_a_port.kill()
        server_on_a_port.start()
        database = Database(server_on_a_port, "postgres")
        send(database, "orders", "after")
        eventually(lambda: "after" in handled)
    database.close()
    assert handled == ["before", "after"]


def test_errors_that_no_new_connection_mends_are_raised(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    with pytest.raises(psycopg.OperationalError):
        next(iter(consumer("host=127.0.0.1 port=1 connect_timeout=5", "orders", "billing")))
    with pytest.raises(psycopg.errors.RaiseException, match="Event queue not created yet"):
        next(iter(consumer(dsn, "nowhere", "billing")))
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="normal consumer"):
        next(iter(consumer(dsn, "orders", "billing", member="one")))
    assert "password" not in repr(consumer(dsn, "orders", "billing"))
    with pytest.raises(ValueError, match="say member"):
        consumer(dsn, "orders", "billing", dead_interval=timedelta(minutes=1))


# ---------------------------------------------------------------------------------------------------------------------
# Members


def stop_with_a_batch(database: Database, crew: Crew, process: subprocess.Popen[str], eventually: Eventually) -> None:
    """Stop member `one` for good, at a moment when it has a batch. There is more to do until then."""
    tries = count(1)
    batch = "SELECT current_batch FROM pgque.get_consumer_info('orders', 'group.one')"

    def has_one() -> bool:
        process.send_signal(signal.SIGSTOP)
        first = database.value(batch)
        time.sleep(0.1)  # what it has sent before has been carried out
        if first is not None and database.value(batch) == first:
            return True
        process.send_signal(signal.SIGCONT)
        crew.produce(f"more {next(tries)}", 5, seed=29)
        return False

    eventually(has_one, what="a batch of the member")
    process.kill()


def test_members_share_the_events_and_one_takes_over_what_the_other_leaves(
    live_db: Database, eventually: Eventually
) -> None:
    dsn = make(live_db, "orders")
    for member in ("one", "two"):
        live_db.run("SELECT pgque.subscribe_subconsumer('orders', 'group', %s)", member)
    live_db.run(DONE)
    crew = Crew(lambda: dsn, "orders")
    both = "SELECT count(DISTINCT worker) FROM done"
    with crew, program(dsn, "orders", "group", "one", "1") as one, program(dsn, "orders", "group", "two", "1"):
        crew.produce("p", 100, seed=23)
        eventually(lambda: live_db.value(both) == 2, what="work for both")
        stop_with_a_batch(live_db, crew, one, eventually)
        crew.all_sent()
        eventually(lambda: crew.arrived(live_db.connection, "group"))
    crew.check(live_db.connection, "group")


@pytest.mark.long
def test_sign_of_life_keeps_a_batch(live_db: Database, eventually: Eventually) -> None:
    dsn = make(live_db, "orders")
    live_db.run("CREATE TABLE handled (member text)")
    interval = timedelta(seconds=6)  # more than a busy machine stands still
    one, two = (
        consumer(dsn, "orders", "group", member=member, dead_interval=interval, poll_interval=0.1)
        for member in ("one", "two")
    )
    live_db.run("SELECT pgque.subscribe_subconsumer('orders', 'group', 'one')")
    send(live_db, "orders", "a")
    taken_over: list[int] = []

    def take_over() -> None:
        for batch in two:
            taken_over.append(batch.id)

    for batch in one:
        with running(take_over, two):
            for _ in range(20):
                time.sleep(interval.total_seconds() * 1.5 / 20)
                batch.touch()
            assert taken_over == []
            with batch.transaction() as connection:
                connection.execute("INSERT INTO handled VALUES ('one')")
                eventually(lambda: taken_over, what="a take-over")
        assert batch.undone
        one.stop()
    assert taken_over != [batch.id]
    assert live_db.rows("SELECT * FROM handled") == []


# ---------------------------------------------------------------------------------------------------------------------
# Handlers


def test_events_are_given_to_the_handlers_of_their_types(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run("SELECT pgque.set_queue_config('orders', 'max_retries', '0')")
    live_db.run("CREATE TABLE handled (type text, payload text)")
    worker = consumer(dsn, "orders", "billing")

    @worker.on("created")
    def created(event: Event, connection: psycopg.Connection[Any]) -> None:
        connection.execute("INSERT INTO handled VALUES ('created', %s)", [event.payload])
        if event.payload == "bad":
            raise ValueError("no such order")

    @worker.on("last")
    def last(event: Event, connection: psycopg.Connection[Any]) -> None:
        worker.stop()

    with pytest.raises(TypeError, match=r"for run\(\)"):
        asyncio.run(worker.run_async())
    for kind, payload in [("created", "good"), ("created", "bad"), ("unheard of", "x"), ("last", "")]:
        Producer(live_db.connection, "orders").send(payload, kind)
    worker.run()
    assert live_db.rows("SELECT * FROM handled") == [("created", "good")]
    assert live_db.rows("SELECT ev_type, ev_data, dl_reason FROM pgque.dlq_inspect('orders') ORDER BY ev_id") == [
        ("created", "bad", "ValueError: no such order"),
        ("unheard of", "x", "LookupError: there is no handler for events of type 'unheard of'"),
    ]
    assert open_batches(live_db) == 0


def test_asynchronous_handlers(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    live_db.run("CREATE TABLE handled (type text, payload text)")
    worker = consumer(dsn, "orders", "billing", retry_after=timedelta(seconds=0.1))
    with pytest.raises(ValueError, match="no handler"):
        worker.run()

    @worker.on()
    async def other(event: Event, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("INSERT INTO handled VALUES (%s, %s)", [event.type, event.payload])
        if event.retries == 0:
            raise ValueError("not yet")
        worker.stop()

    with pytest.raises(TypeError, match=r"for run_async\(\)"):
        worker.run()
    send(live_db, "orders", "a", type="anything")
    asyncio.run(asyncio.wait_for(worker.run_async(), SECONDS))
    assert live_db.rows("SELECT * FROM handled") == [("anything", "a")]


# ---------------------------------------------------------------------------------------------------------------------
# Producers


def test_events_are_sent_in_the_transaction_of_the_program(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")
    with live_db.connect(autocommit=False) as connection:
        producer = Producer(connection, "orders")
        producer.send("undone")
        connection.rollback()
        kept = [producer.send('{"a":  1}'), *producer.send_batch([{"b": Decimal("1.50")}, None, "text"], "many")]
        kept.append(producer.send("keyed", "k", extra=("key", None, "third")))
        connection.commit()
    given = stopped_after(5, "sync", consumer(dsn, "orders", "billing"))
    assert sorted((e.id, e.type, e.payload) for e in given) == sorted(
        zip(
            kept,
            ["default", "many", "many", "many", "k"],
            ['{"a":  1}', '{"b":1.50}', "null", "text", "keyed"],
            strict=True,
        )
    )
    keyed = given[-1]
    assert (keyed.extra1, keyed.extra2, keyed.extra3, keyed.extra4) == ("key", None, "third", None)


def test_asynchronous_producer(live_db: Database) -> None:
    dsn = make(live_db, "orders", "billing")

    async def produce() -> list[int]:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            producer = AsyncProducer(connection, "orders")
            return [await producer.send("a"), *await producer.send_batch(["b", "c"])]

    ids = asyncio.run(produce())
    given = stopped_after(3, "sync", consumer(dsn, "orders", "billing"))
    assert sorted((e.id, e.payload) for e in given) == sorted(zip(ids, ["a", "b", "c"], strict=True))


def test_payloads_that_would_not_arrive_as_they_are_are_refused(live_db: Database) -> None:
    make(live_db, "orders")
    producer = Producer(live_db.connection, "orders")
    with pytest.raises(TypeError, match="encode bytes"):
        producer.send(b"\x00")
    with pytest.raises(ValueError, match="at most 4"):
        producer.send("a", extra=["1", "2", "3", "4", "5"])
    with pytest.raises(ValueError, match="at most 4"):
        producer.send("a", extra="key")
    assert producer.send_batch([]) == []
