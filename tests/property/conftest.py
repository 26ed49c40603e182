from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings

from server.embedded import EmbeddedPostgres
from tests.property.laboratory import Laboratory

settings.register_profile(
    "headwater",
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
settings.load_profile("headwater")


@pytest.fixture(scope="module")
def laboratory(cluster: EmbeddedPostgres) -> Iterator[Laboratory]:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS laboratory WITH (FORCE)")
        connection.execute("CREATE DATABASE laboratory")
        made = Laboratory(cluster, "laboratory")
        yield made
        made.close()
        connection.execute("DROP DATABASE laboratory WITH (FORCE)")
