"""PostgreSQL behind a network that falls silent: no connection is closed, and nothing comes over any."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from server.postgres.cluster import EmbeddedPostgres
from tests.e2e.conftest import Database, Headwater
from tests.silent_network import SilentNetwork, silent_network

Eventually = Callable[..., Any]


class RemotePlan(Headwater):
    """A server in front of a PostgreSQL that is not its own."""

    login: dict[str, str]

    def _login(self) -> dict[str, str]:
        return self.login


@pytest.fixture
def network(cluster: EmbeddedPostgres) -> Iterator[SilentNetwork]:
    with silent_network(cluster.socket_dir, cluster.port) as network:
        yield network


@pytest.fixture
def behind(cluster: EmbeddedPostgres, database: str, network: SilentNetwork, tmp_path: Path) -> Iterator[Database]:
    """A database at work behind the network: a stream table, a queue, a subscription."""
    url = f"postgresql://{cluster.user}:{cluster.password}@127.0.0.1:{network.port}/{database}?sslmode=disable"
    server = RemotePlan(tmp_path / "data", "--postgres", url)
    server.login = {k: str(v) for k, v in conninfo.conninfo_to_dict(url).items() if k in ("user", "password")}
    server.start()
    db = Database(server, database)
    db.run("CREATE TABLE t (id int PRIMARY KEY); SELECT pgque.create_queue('q'), pgque.subscribe('q', 'c')")
    db.create("counted", "SELECT count(*) AS n FROM t", schedule="1s")
    reader = db.connect()
    reader.execute("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t")
    reader.execute("FETCH 0 c")
    yield db
    db.close()
    server.stop()


@pytest.mark.long
def test_server_stops_all_the_same(behind: Database, network: SilentNetwork) -> None:
    network.fall_silent()
    began = time.monotonic()
    assert behind.server.stop() == 0
    assert time.monotonic() - began < 30  # it would be minutes


@pytest.mark.long  # some 30 s until all have been given up
def test_work_goes_on_when_connections_come_through_again(
    behind: Database, network: SilentNetwork, cluster: EmbeddedPostgres, eventually: Eventually
) -> None:
    with psycopg.connect(cluster.dsn(behind.name), autocommit=True) as past:

        def rows(statement: str) -> list[Any]:
            return past.execute(statement.encode()).fetchall()

        network.fall_silent()
        network.recover()
        past.execute("INSERT INTO t VALUES (1); SELECT pgque.send('q', 't', 'x'::text)")
        eventually(lambda: rows("SELECT n FROM counted") == [(1,)], what="the stream table follows")
        eventually(lambda: rows("SELECT payload FROM pgque.receive('q', 'c')") == [("x",)], what="the queue ticks")
    assert "silent" in behind.server.log
