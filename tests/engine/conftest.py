from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.embedded import EmbeddedPostgres
from tests.clusters import new_database
from tests.engine.subscription_laboratory import Subscriptions


@pytest.fixture(scope="module")
def subscriptions(cluster: EmbeddedPostgres) -> Iterator[Subscriptions]:
    with new_database(cluster, "subscriptions") as name:
        laboratory = Subscriptions(cluster, name)
        yield laboratory
        laboratory.close()
