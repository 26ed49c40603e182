from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater

FreshDatabase = Callable[[], Database]


@pytest.fixture(scope="module")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshDatabase]:
    """Makes empty databases behind a server of the module's own; nothing is refreshed in them but by hand."""
    server = Headwater(tmp_path_factory.mktemp("tpch") / "data").start()
    made: list[Database] = []
    numbers = count(1)

    def make() -> Database:
        name = f"tpch_{next(numbers)}"
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
            connection.execute(f"ALTER DATABASE {name} SET pg_trickle.enabled = off")
        made.append(Database(server, name))
        return made[-1]

    yield make
    for database in made:
        database.close()
    assert server.stop() == 0
