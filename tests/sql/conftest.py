"""Sources to write queries over: no keys, names that need quotes, types whose equal values differ in looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from server.postgres.cluster import EmbeddedPostgres
from sql import Source
from tests.clusters import new_database

from .harness import Connection, StreamTable, connect, source

TABLES = """
CREATE EXTENSION IF NOT EXISTS citext;
CREATE TABLE item (id int PRIMARY KEY, grp int, val int, amount numeric(8,2), free numeric, label text, wide bigint);
CREATE TABLE tag (grp int, note json, rank int);
CREATE TABLE "Select" ("from" int, "a ""b" text, person citext, PRIMARY KEY ("from"));
CREATE TABLE cell (x int, y int, v double precision, at timestamptz, PRIMARY KEY (x, y));
"""
NAMES = ("item", "tag", "Select", "cell")


@dataclass(frozen=True)
class Workspace:
    """A database with the sources, and the stream tables made over them."""

    connection: Connection
    sources: tuple[Source, ...]

    def stream(self, name: str, query: str) -> StreamTable:
        """A populated stream table."""
        return StreamTable(self.connection, name, query, self.sources)

    def execute(self, *statements: str) -> None:
        """Change the sources, one transaction a statement."""
        for statement in statements:
            self.connection.execute(statement)

    def items_and_tags(self) -> None:
        """Nine items of three groups, and a tag for each group; id and val are the same, and grp and rank."""
        self.execute(
            "INSERT INTO item (id, grp, val, label) SELECT n, n % 3, n, n::text FROM generate_series(1, 9) n",
            "INSERT INTO tag SELECT n, '{}', n FROM generate_series(0, 2) n",
        )

    def follow(self, streams: Iterable[StreamTable], *changes: str) -> None:
        """After each change, one transaction each, every stream table must be what its query says."""
        for change in changes:
            self.execute(change)
            for stream in streams:
                stream.refresh()
                assert stream.difference() == [], (stream.storage, change)


def open_workspace(
    cluster: EmbeddedPostgres, kind: str, tables: str = TABLES, names: Sequence[str] = NAMES
) -> Iterator[Workspace]:
    """A fresh database with sources."""
    with new_database(cluster, kind) as name, connect(cluster.dsn(name)) as connection:
        connection.execute(tables)
        yield Workspace(connection, tuple(source(connection, table) for table in names))


@pytest.fixture
def workspace(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database of the test's own."""
    yield from open_workspace(cluster, "sql_test")


@pytest.fixture(scope="module")
def shared_workspace(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database of the module's own."""
    yield from open_workspace(cluster, "sql_shared")
