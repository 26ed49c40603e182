from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from server.embedded import EmbeddedPostgres
from tests.engine.subscription_laboratory import Subscriptions


@pytest.fixture(scope="module")
def subscriptions(cluster: EmbeddedPostgres) -> Iterator[Subscriptions]:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS subscriptions WITH (FORCE)")
        connection.execute("CREATE DATABASE subscriptions")
        laboratory = Subscriptions(cluster, "subscriptions")
        yield laboratory
        laboratory.close()
        connection.execute("DROP DATABASE subscriptions WITH (FORCE)")
