"""A relay in a thread of its own, so that blocking clients can be tested against it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
import uvloop
from psycopg import conninfo

from server.intercept.engine_interface import Backend, EngineInterface, NoEngine
from server.postgres.cluster import EmbeddedPostgres
from server.relay.context import Limits
from server.relay.listener import Listener
from server.relay.relay import Relay
from tests.clusters import drop_schemas, new_database
from tests.server.subscriptions.feed_hub import FeedEngine, FeedHub
from tests.server.subscriptions.subscribing import Subscribed
from tests.server.subscriptions.table_engine import TableEngine
from tests.server.wire import Wire

T = TypeVar("T")

TERMINATE_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class RunningRelay:
    """A relay on its own event loop in its own thread."""

    def __init__(
        self, backend: Backend, hooks: EngineInterface | None = None, tls: Any = None, limits: Limits | None = None
    ):
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.relay, self.listener = self.run(self._start(backend, hooks or NoEngine(), tls, limits))

    async def _start(self, *args: Any) -> tuple[Relay, Listener]:
        relay = Relay(*args)
        listener = Listener("127.0.0.1", 0, relay.admit)
        relay.start()
        await listener.start()
        return relay, listener

    @property
    def port(self) -> int:
        return self.listener.port

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(120)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.listener.stop)
        self.run(self.relay.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


@pytest.fixture(scope="module")
def module_database(cluster: EmbeddedPostgres) -> Iterator[str]:
    """The name of a database for all tests of a file."""
    with new_database(cluster, "server") as name:
        yield name


@pytest.fixture
def database(cluster: EmbeddedPostgres, module_database: str) -> Iterator[str]:
    """The name of a database that is empty: it is that of the file, and what the test has made there is dropped."""
    yield module_database
    with psycopg.connect(cluster.dsn(module_database), autocommit=True) as admin:
        admin.execute(TERMINATE_OTHERS)  # relays may end later
        drop_schemas(admin)


@pytest.fixture(scope="session")
def backend(cluster: EmbeddedPostgres) -> Backend:
    return Backend(unix_socket_dir=cluster.socket_dir, port=cluster.port)


@pytest.fixture
def start_relay(backend: Backend) -> Iterator[Callable[..., RunningRelay]]:
    """Starts relays: `start_relay(hooks=..., tls=..., limits=..., backend=...)`."""
    running: list[RunningRelay] = []

    def start(backend: Backend = backend, **options: Any) -> RunningRelay:
        running.append(RunningRelay(backend, **options))
        return running[-1]

    yield start
    for relay in running:
        relay.stop()


@pytest.fixture
def relay(start_relay: Callable[..., RunningRelay]) -> RunningRelay:
    """A relay without an engine."""
    return start_relay()


@pytest.fixture
def relayed(relay: RunningRelay, dsn: str) -> str:
    """A connection string of the test's database through the relay."""
    return through(relay, dsn)


class Engaged:
    """A relay with an engine, in front of a database with request functions."""

    def __init__(self, relay: RunningRelay, engine: TableEngine, dsn: str):
        self.relay = relay
        self.engine = engine
        self.direct = dsn
        self.dsn = through(relay, dsn)

    def tables(self) -> set[str]:
        """Committed tables of schema public."""
        with psycopg.connect(self.direct) as direct:
            names = direct.execute(
                "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
            )
            return {name for (name,) in names}


@pytest.fixture
def engaged(start_relay: Callable[..., RunningRelay], dsn: str) -> Engaged:
    with psycopg.connect(dsn, autocommit=True) as direct:
        direct.execute((Path(__file__).parent / "requests.sql").read_text())
    engine = TableEngine()
    return Engaged(start_relay(hooks=engine), engine, dsn)


@pytest.fixture(scope="module")
def feeding(cluster: EmbeddedPostgres, backend: Backend) -> Iterator[tuple[RunningRelay, FeedEngine, str]]:
    """A relay whose subscriptions the tests fill, and the connection string of a database of its own."""
    with new_database(cluster, "feeding") as name:
        dsn = cluster.dsn(name)
        with psycopg.connect(dsn, autocommit=True) as direct:
            direct.execute((Path(__file__).parent / "requests.sql").read_text())
        engine = FeedEngine(dsn)
        relay = RunningRelay(backend, engine)
        yield relay, engine, dsn
        relay.stop()


@pytest.fixture
def subscribed(feeding: tuple[RunningRelay, FeedEngine, str]) -> Iterator[Subscribed]:
    relay, engine, dsn = feeding
    with psycopg.connect(dsn, autocommit=True) as direct:
        direct.execute("drop table if exists t; create table t(a int primary key, b text)")
    engine.hub = FeedHub(dsn)
    wire = Wire(through(relay, dsn))
    yield Subscribed(wire, engine.hub, engine, relay.port, through(relay, dsn), dsn)
    wire.close()


def through(relay: RunningRelay, dsn: str, **options: Any) -> str:
    """The connection string changed to lead through the relay."""
    return conninfo.make_conninfo(dsn, host="127.0.0.1", port=relay.port, **options)


def cancel_when_active(connection: psycopg.Connection[Any], dsn: str) -> None:
    """Cancel the statement that the connection is about to send, as soon as PostgreSQL is at work on it."""
    pid = connection.info.backend_pid

    def run() -> None:
        active = "select count(*) from pg_stat_activity where pid = %s and state = 'active' and query ~ 'pg_sleep'"
        with psycopg.connect(dsn, autocommit=True) as direct:
            while direct.execute(active, (pid,)).fetchone() == (0,):
                time.sleep(0.01)
        connection.cancel_safe()

    threading.Thread(target=run, daemon=True).start()


@pytest.fixture
def connection(relayed: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(relayed, autocommit=True) as connected:
        yield connected
