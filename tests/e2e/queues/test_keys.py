"""Order by key through the wire: workers side by side that fail, die and come again."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater
from tests.e2e.queues.queue_crews import Crew

KEYS = [f"key {number}" for number in range(12)]
NACK = (
    "SELECT pgque.nack(%s, ROW(%s::bigint, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::pgque.message,"
    " %s::interval)"
)


@pytest.fixture
def queues(server: Headwater) -> Iterator[Database]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE keys_e2e")
        database = Database(server, "keys_e2e")
        database.run("SELECT pgque.set_tick_period_ms(10)")
        try:
            yield database
        finally:
            database.close()
            connection.execute("DROP DATABASE keys_e2e WITH (FORCE)")


class KeyedCrew(Crew):
    """Producers that number their events by key, and workers that write down in order what they handle."""

    def produce_keyed(self, name: str, transactions: int, seed: int) -> None:
        self._producers.append(self._start(self._produce_keyed, name, transactions, random.Random(seed)))

    def _produce_keyed(self, connection: psycopg.Connection[Any], name: str, number: int, rng: random.Random) -> None:
        counts: Counter[str] = Counter()
        for _ in range(number):
            sent = []
            with connection.transaction():
                for _ in range(rng.choice([1, 2, 3, 10])):
                    key = rng.choice(KEYS)
                    counts[key] += 1
                    sent.append(f"{name} {key} {counts[key]}")
                    connection.execute(
                        "SELECT pgque.insert_event(%s, 't', %s, %s, NULL, NULL, NULL)", [self._queue, sent[-1], key]
                    )
            self.sent.update(sent)

    def work(self, worker: str, seed: int) -> None:
        self._start(self._work, worker, random.Random(seed))

    def _work(self, connection: psycopg.Connection[Any], worker: str, rng: random.Random) -> None:
        take = "SELECT batch_id, msg_id, extra1, payload FROM pgque.receive_coop(%s, 'group', %s, 1000000, '1 second')"
        while not self._stop.is_set():
            rows = connection.execute(take, [self._queue, worker]).fetchall()
            if not rows:
                self._stop.wait(0.01)
            elif rng.random() < 0.04:
                worker += "'"  # what was received is left to the others
            else:
                try:
                    with connection.transaction():
                        self._handle(connection, worker, rows, rng)
                except psycopg.errors.RaiseException as error:
                    assert "batch not found" in str(error) or "taken over" in str(error), error

    def _handle(
        self, connection: psycopg.Connection[Any], worker: str, rows: list[tuple[Any, ...]], rng: random.Random
    ) -> None:
        failed: set[str] = set()
        for batch, event, key, payload in rows:
            if key in failed:
                continue
            if rng.random() < 0.05:
                connection.execute(NACK, [batch, event, rng.choice(["0", "0.3 seconds"])])
                failed.add(key)
            else:
                connection.execute(
                    "INSERT INTO done (worker, key, payload) VALUES (%s, %s, %s)", [worker, key, payload]
                )
        if rng.random() < 0.1:
            connection.execute("SELECT pg_sleep(%s)", [rng.uniform(0, 0.2)])
        if connection.execute("SELECT pgque.ack(%s)", [rows[0][0]]).fetchone() != (1,):
            connection.execute("DO $$ BEGIN RAISE EXCEPTION 'taken over'; END $$")


def run(queues: Database, transactions: int, kills: int, eventually: Callable[..., Any]) -> None:
    queues.run("SELECT pgque.create_queue('ordered')")
    queues.run("SELECT pgque.set_queue_config('ordered', 'max_retries', '1000')")
    queues.run("SELECT pgque.set_queue_config('ordered', 'max_batch_events', '40')")
    queues.run("SELECT pgque.set_ordering_key('ordered', 'group', 'ev_extra1')")
    queues.run("CREATE TABLE done (id bigserial, worker text, key text, payload text)")
    rng = random.Random(3)
    pause = threading.Event()
    with KeyedCrew(lambda: queues.server.dsn(queues.name, application_name="crew"), "ordered") as crew:
        for number in range(3):
            crew.produce_keyed(f"p{number}", transactions, number)
        for number in range(5):
            crew.work(f"w{number}", number)
        for _ in range(kills):
            pause.wait(0.3)
            workers = queues.rows(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'crew' AND query LIKE '%%receive_coop%%'"
            )
            if workers:
                queues.run("SELECT pg_terminate_backend(%s)", rng.choice(workers)[0])
        crew.all_sent()
        eventually(
            lambda: crew.errors or queues.value("SELECT count(*) FROM done") >= crew.sent.total(), what="all events"
        )
    assert crew.errors == []
    done = queues.rows("SELECT worker, payload FROM done ORDER BY id")
    assert Counter(payload for _, payload in done) == crew.sent
    orders: dict[str, list[int]] = defaultdict(list)
    for _, payload in done:
        name, _, number = payload.rpartition(" ")
        orders[name].append(int(number))
    assert {name: order for name, order in orders.items() if order != sorted(order)} == {}
    assert len({worker.rstrip("'") for worker, _ in done}) > 1
    assert queues.rows("SELECT * FROM pgque.held_event") == []


def test_each_key_in_order_with_workers_that_fail_and_come_again(queues: Database, eventually: Any) -> None:
    run(queues, 60, 0, eventually)


@pytest.mark.long
def test_each_key_in_order_while_workers_are_killed(queues: Database, eventually: Any) -> None:
    run(queues, 600, 30, eventually)
