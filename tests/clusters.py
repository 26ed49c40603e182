"""PostgreSQL clusters, and databases in them, for as long as a test needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from server.data_directory import DataDirectory
from server.embedded import EmbeddedPostgres

_numbers = count(1)


@contextmanager
def started_cluster(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedPostgres]:
    """A new cluster in a data directory of its own."""
    postgres = EmbeddedPostgres(DataDirectory(directory).create(), settings)
    postgres.start()
    try:
        yield postgres
    finally:
        postgres.stop()


@contextmanager
def new_database(cluster: EmbeddedPostgres, kind: str = "test", template: str = "template1") -> Iterator[str]:
    """The name of a new database, a copy of its template; its name begins with its kind."""
    name = f"{kind}_{next(_numbers)}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield name
        finally:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
