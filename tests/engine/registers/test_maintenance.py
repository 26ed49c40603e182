"""When the engine looks whether a database has registers to work for, and how its workers work together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from engine.refresh.executor_choice import NoSpark
from engine.registers import maintenance
from engine.registers.maintenance import RegisterMaintenance
from engine.service import Engine
from engine.session.pool import DatabasePool, PooledSession
from server.intercept.engine_interface import Backend
from server.postgres.cluster import EmbeddedPostgres
from tests.server.conftest import RunningRelay

DEADLINE = 60.0

MAKE = """SELECT accum.register_create('views', '{"page": "text"}', '{"n": "int"}', high_write := true)"""
POST = """SELECT accum.register_post('views', '{"recorder": "r", "period": "2026-04-18", "page": "a", "n": 3}')"""


@pytest.fixture
def served(
    cluster: EmbeddedPostgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[psycopg.Connection[Any]]:
    """A connection through a relay with an engine that hardly ever looks for work by itself."""
    for module in ("engine.session.leader_election", "engine.registers.maintenance"):
        monkeypatch.setattr(f"{module}.DISCOVERY_SECONDS", 1e6)
    options = psycopg.conninfo.conninfo_to_dict(cluster.dsn(database))
    login = {"host": options["host"], "port": int(options["port"]), "user": options["user"]}
    engine = Engine(lambda _: {**login, "password": options["password"]}, lambda pool: NoSpark("not here"))
    relay = RunningRelay(Backend(unix_socket_dir=cluster.socket_dir, port=cluster.port), engine)
    try:
        address = {"host": "127.0.0.1", "port": relay.port}
        with psycopg.connect(**{**options, **address}, autocommit=True) as connection:
            yield connection
    finally:
        relay.run(engine.stop())
        relay.stop()


def test_the_first_register_in_high_write_mode_is_merged_by_the_settings(served: psycopg.Connection[Any]) -> None:
    name = served.info.dbname
    served.execute(f"ALTER DATABASE {name} SET pg_accumulator.delta_merge_interval = '50ms'".encode())
    served.execute(f"ALTER DATABASE {name} SET pg_accumulator.delta_merge_delay = 0".encode())
    served.execute(MAKE)
    served.execute(POST)
    deadline = time.monotonic() + DEADLINE
    while served.execute("SELECT page, n FROM accum.views_balance_cache_stored").fetchall() != [("a", 3)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert served.execute("SELECT accum.views_balance()").fetchone() == ({"n": 3},)


class Session:
    """Of the leader: it notes when something is asked in it."""

    asked = 0

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        self.asked += 1
        return []


async def test_leader_shows_that_it_lives_while_other_workers_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BEAT_SECONDS", 0.01)
    workers, leader = RegisterMaintenance(cast(DatabasePool, SimpleNamespace(database="sales"))), Session()

    async def short() -> None:
        pass

    async def long() -> None:
        while leader.asked < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async with asyncio.timeout(DEADLINE):
        await workers._together([short(), long()], cast(PooledSession, leader))
    assert leader.asked >= 3


async def test_leader_that_works_itself_is_asked_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BEAT_SECONDS", 0.01)
    workers, leader = RegisterMaintenance(cast(DatabasePool, SimpleNamespace(database="sales"))), Session()
    await workers._together([asyncio.sleep(0.1), asyncio.sleep(0)], cast(PooledSession, leader))
    assert leader.asked == 0
