"""The delta of a refresh computed by Sail and applied by PostgreSQL: the stream table equals its query."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from server.postgres.cluster import EmbeddedPostgres
from sql.spark.render import NotExpressible
from tests.sql.conftest import Workspace, open_workspace
from tests.sql.spark.on_sail import OnSail
from tests.sql.spark.spark_delta_queries import NAMES, QUERIES, TABLES, random_changes

CYCLES = 2


@pytest.fixture(scope="module")
def tables(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    yield from open_workspace(cluster, "spark_deltas", TABLES, NAMES)


@pytest.fixture(scope="module")
def sail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnSail]:
    sail = OnSail(tmp_path_factory.mktemp("sail"))
    yield sail
    sail.close()


def test_stream_tables_equal_their_queries_after_deltas_computed_by_sail(tables: Workspace, sail: OnSail) -> None:
    random = Random(1)
    tables.execute(*random_changes(random, 12))
    streams = {name: tables.stream(f"d{n}", query) for n, (name, query) in enumerate(QUERIES.items())}
    for _ in range(CYCLES):
        tables.execute(*random_changes(random, 5))
        for name, stream in streams.items():
            sail.refresh(stream)
            assert stream.difference() == [], name


def test_a_recursion_is_left_to_postgresql(tables: Workspace, sail: OnSail) -> None:
    query = (
        "WITH RECURSIVE r AS (SELECT code FROM kind UNION SELECT r.code + 1 FROM r WHERE r.code < 9) SELECT * FROM r"
    )
    stream = tables.stream("recursion", query)
    tables.execute("INSERT INTO kind VALUES (7, 'x', 1) ON CONFLICT DO NOTHING")
    with pytest.raises(NotExpressible, match="WITH RECURSIVE"):
        sail.refresh(stream)
