from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import template
from tests.clusters import new_database
from tests.engine.mirror.mirror_laboratory import Laboratory, open_laboratory
from tests.engine.subscribe.subscription_laboratory import Subscriptions

__all__ = ["template"]


@pytest.fixture
def database(cluster: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """The test's database: where it is a laboratory's, who installs the catalog finds that it is there, else empty."""
    template = request.getfixturevalue("template") if "laboratory" in request.fixturenames else "template1"
    with new_database(cluster, "engine", template) as name:
        yield name


@pytest.fixture(scope="module")
def subscriptions(cluster: EmbeddedPostgres) -> Iterator[Subscriptions]:
    with new_database(cluster, "subscriptions") as name:
        laboratory = Subscriptions(cluster, name)
        yield laboratory
        laboratory.close()


@pytest.fixture
async def laboratory(dsn: str, tmp_path: Path) -> AsyncIterator[Laboratory]:
    async with open_laboratory(dsn, tmp_path / "mirror") as laboratory:
        yield laboratory
