"""When the engine looks whether a database has registers to work for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from engine.refresh.executor_choice import NoSpark
from engine.service import Engine
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
