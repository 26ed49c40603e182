from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.postgres.cluster import EmbeddedPostgres
from tests.clusters import new_database
from tests.property.laboratory import Laboratory


@pytest.fixture(scope="module")
def laboratory(cluster: EmbeddedPostgres) -> Iterator[Laboratory]:
    with new_database(cluster, "laboratory") as name:
        made = Laboratory(cluster, name)
        yield made
        made.close()
