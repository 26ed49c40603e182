"""Many producers and workers at once on one queue, and the counting of every event.

A worker writes down what it has got and acknowledges its batch in one transaction, so that, whatever dies, each
consumer must end up with each committed event exactly once.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import psycopg

from tests.e2e.client_threads import ClientThreads

EVERYTHING = 1_000_000

DONE = "CREATE TABLE done (consumer text, worker text, batch bigint, event bigint, payload text)"


class Crew(ClientThreads):
    """Threads that work until they are told to stop; a lost connection is opened anew."""

    def __init__(self, dsn: Callable[[], str], queue: str):
        super().__init__()
        self._dsn, self._queue = dsn, queue
        self._producers: list[threading.Thread] = []
        self.errors: list[str] = []
        self.sent: Counter[str] = Counter()
        """What has certainly been committed."""
        self.unsure: Counter[str] = Counter()
        """What was being committed when the connection was lost."""

    def _start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = self._add(self._run, work, *arguments)
        thread.start()
        return thread

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        while not self._stop.is_set():
            try:
                with closing(psycopg.connect(self._dsn(), autocommit=True)) as connection:
                    work(connection, *arguments)
                return
            except psycopg.OperationalError:
                self._stop.wait(0.05)  # killed, or the server is down
            except Exception as error:
                self.errors.append(repr(error))
                return

    def produce(self, name: str, transactions: int, seed: int) -> None:
        """Send events of this name, numbered, in so many transactions: alone, in batches, some of them undone."""
        self._producers.append(self._start(self._produce, name, [transactions], random.Random(seed)))

    def consume(self, consumer: str) -> None:
        """One worker of a consumer of its own."""
        take = "SELECT batch_id, msg_id, payload FROM pgque.receive(%s, %s, %s)"
        self._start(self._consume, take, [self._queue, consumer, EVERYTHING], consumer, consumer)

    def cooperate(self, consumer: str, worker: str, dead_interval: str | None = None) -> None:
        """One worker of a group."""
        take = "SELECT batch_id, msg_id, payload FROM pgque.receive_coop(%s, %s, %s, %s, %s)"
        self._start(self._consume, take, [self._queue, consumer, worker, EVERYTHING, dead_interval], consumer, worker)

    def all_sent(self, seconds: float | None = None) -> None:
        """Wait for the producers; for so long, or until they are done."""
        for thread in self._producers:
            thread.join(300 if seconds is None else seconds)
            assert seconds is not None or not thread.is_alive(), "a producer hangs"

    def _produce(self, connection: psycopg.Connection[Any], name: str, left: list[int], rng: random.Random) -> None:
        while left[0] and not self._stop.is_set():
            left[0] -= 1
            number = left[0]
            payloads = [f"{name}-{number}-{n}" for n in range(rng.choice([1, 1, 1, 2, 40]))]
            undone = rng.random() < 0.15
            try:
                # psycopg does not swallow its Rollback where the connection is lost in the middle of it.
                with suppress(psycopg.Rollback), connection.transaction():
                    if len(payloads) < 3:
                        for payload in payloads:
                            connection.execute("SELECT pgque.send(%s, 'single', %s::text)", [self._queue, payload])
                    else:
                        connection.execute("SELECT pgque.send_batch(%s, 'batch', %s::text[])", [self._queue, payloads])
                    if rng.random() < 0.2:
                        connection.execute("SELECT pg_sleep(%s)", [rng.uniform(0, 0.15)])  # open across ticks
                    if undone:
                        raise psycopg.Rollback
            except psycopg.OperationalError:
                if not undone:
                    self.unsure.update(payloads)
                raise
            if not undone:
                self.sent.update(payloads)

    def _consume(
        self, connection: psycopg.Connection[Any], take: str, arguments: list[Any], consumer: str, worker: str
    ) -> None:
        while not self._stop.is_set():
            rows = connection.execute(take, arguments).fetchall()
            if not rows:
                self._stop.wait(0.01)
                continue
            with suppress(psycopg.Rollback), connection.transaction():
                connection.execute(
                    "INSERT INTO done SELECT %s, %s, %s, * FROM unnest(%s::bigint[], %s::text[])",
                    [consumer, worker, rows[0][0], [row[1] for row in rows], [row[2] for row in rows]],
                )
                answer = connection.execute("SELECT pgque.ack(%s)", [rows[0][0]]).fetchone()
                if answer != (1,):
                    raise psycopg.Rollback  # taken over by another worker: it is his to write down

    def check(self, connection: psycopg.Connection[Any], *consumers: str) -> None:
        """Each consumer has each event exactly once."""
        assert self.errors == [], self.errors
        for consumer in consumers:
            rows = connection.execute("SELECT payload, count(*) FROM done WHERE consumer = %s GROUP BY 1", [consumer])
            got = Counter(dict(rows.fetchall()))
            assert Counter({payload: n for payload, n in got.items() if n > 1}) == Counter(), f"twice to {consumer}"
            assert self.sent - got == Counter(), f"lost by {consumer}"
            assert got - self.sent - self.unsure == Counter(), f"made up for {consumer}"

    def arrived(self, connection: psycopg.Connection[Any], *consumers: str) -> bool:
        """Whether each consumer has as many events as have certainly been sent."""
        rows = connection.execute(
            "SELECT consumer, count(*) FROM done WHERE payload = ANY (%s) GROUP BY 1", [list(self.sent)]
        ).fetchall()
        counts = dict(rows)
        return bool(self.errors) or all(counts.get(consumer, 0) >= self.sent.total() for consumer in consumers)
