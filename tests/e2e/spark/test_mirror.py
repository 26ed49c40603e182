"""The mirror of a whole server: it outlives kill -9 at any moment, and goes with its database."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.e2e.conftest import Headwater

ROWS = 60_000
UPDATE = "UPDATE items SET v = v + 1, g = (g + 1) %% 100 WHERE id %% 4 = %s"
QUERY = "SELECT g, count(*) AS n, sum(v) AS s FROM items GROUP BY g"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def differences(connection: psycopg.Connection[tuple[int]]) -> int:
    stored = "SELECT g, n, s FROM totals"
    query = f"SELECT count(*) FROM (({QUERY} EXCEPT ALL {stored}) UNION ALL ({stored} EXCEPT ALL {QUERY})) d"
    ((found,),) = connection.execute(query).fetchall()  # type: ignore[arg-type]
    return found


@pytest.mark.long
def test_server_killed_while_it_ships_or_folds_never_uses_a_wrong_mirror(tmp_path: Path) -> None:
    server = Headwater(tmp_path / "data", "--spark", "sail").start()
    chance = random.Random(1)
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE items (id int PRIMARY KEY, g int, v numeric(12, 2))")
            connection.execute(f"INSERT INTO items SELECT i, i %% 100, i FROM generate_series(1, {ROWS}) i", [])
            connection.execute("SELECT pgtrickle.create_stream_table('totals', %s, '1h', engine => 'spark')", [QUERY])
        for _ in range(6):

            def write(dsn: str) -> None:
                try:
                    with psycopg.connect(dsn, autocommit=True) as writer:
                        for part in range(12):
                            writer.execute(UPDATE, [part % 4])
                except psycopg.Error:
                    pass

            writing = threading.Thread(target=write, args=[server.dsn()])
            writing.start()
            time.sleep(chance.uniform(0.2, 4.0))
            server.kill()
            writing.join()
            server.start()
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute("SELECT pgtrickle.refresh_stream_table('totals')")
                assert differences(connection) == 0
    finally:
        server.stop()


@pytest.mark.long
def test_mirror_of_a_dropped_database_goes_with_it(tmp_path: Path) -> None:
    server = Headwater(tmp_path / "data", "--spark", "sail", "--mirror", str(tmp_path / "elsewhere")).start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        with psycopg.connect(server.dsn("shop"), autocommit=True) as connection:
            connection.execute("CREATE TABLE items (id int PRIMARY KEY, g int, v numeric(12, 2))")
            connection.execute("INSERT INTO items SELECT i, i % 3, i FROM generate_series(1, 10) i")
            connection.execute("SELECT pgtrickle.create_stream_table('totals', %s, '1h', engine => 'spark')", [QUERY])
            assert differences(connection) == 0
        assert (tmp_path / "elsewhere" / "shop").exists()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("DROP DATABASE shop")
        wait_until(lambda: not (tmp_path / "elsewhere" / "shop").exists(), "the mirror is still there")
    finally:
        server.stop()
