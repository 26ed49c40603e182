"""Scripts and clients that were written for another system, against a whole server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater, db, eventually, fresh_db, live_db, own_db, own_server, server

__all__ = ["db", "eventually", "fresh_db", "live_db", "own_db", "own_server", "server"]


@pytest.fixture(scope="module")
def queues(server: Headwater) -> Iterator[Database]:
    """A database of the module's own, whose queues a clock ticks; each test makes queues with names of their own."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE queues_compatibility")
        database = Database(server, "queues_compatibility")
        try:
            yield database
        finally:
            database.close()
            connection.execute("DROP DATABASE queues_compatibility WITH (FORCE)")


@pytest.fixture(scope="module")
def administrator(queues: Database) -> Iterator[str]:
    """A role that administers queues and is nothing else."""
    queues.run("CREATE ROLE queue_operator LOGIN PASSWORD 'x'; GRANT pgque_admin TO queue_operator")
    yield "queue_operator"
    queues.run("DROP OWNED BY queue_operator CASCADE; DROP ROLE queue_operator")
