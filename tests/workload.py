"""A workload: many queries as stream tables over one changing database, each held against its query."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

import psycopg
import pytest
from psycopg import sql

from tests.e2e.conftest import Database, Headwater

FreshDatabase = Callable[[], Database]

logger = logging.getLogger(__name__)
"""Says how far a long workload has come: `pytest --log-cli-level=INFO`."""


@pytest.fixture(scope="module")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshDatabase]:
    """Makes empty databases behind a server of the module's own; nothing is refreshed in them but by hand."""
    yield from databases(Headwater(tmp_path_factory.mktemp("workload") / "data"))


def databases(server: Headwater, **settings: str) -> Iterator[FreshDatabase]:
    """Starts a server, makes databases with `pg_trickle.*` settings behind it, and stops it."""
    server.start()
    made: list[Database] = []
    numbers = count(1)

    def make() -> Database:
        name = f"workload_{next(numbers)}"
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
            for setting, value in {"enabled": "off", **settings}.items():
                connection.execute(f"ALTER DATABASE {name} SET pg_trickle.{setting} = {value}")
        made.append(Database(server, name))
        return made[-1]

    yield make
    for database in made:
        database.close()
    assert server.stop() == 0


@dataclass
class Course:
    """What became of one query's stream table."""

    refused: psycopg.Error | None = None
    rows: int = 0
    actions: set[str] = field(default_factory=set)
    executors: Counter[str] = field(default_factory=Counter)
    """How many of its refreshes that changed something each executor has computed."""
    differences: list[str] = field(default_factory=list)

    def hold(self) -> None:
        """The stream table was maintained from changes, never differed, and there was something to see."""
        if self.refused is not None:
            raise self.refused
        assert self.differences == []
        assert self.rows > 0
        assert self.actions <= {"DIFFERENTIAL", "NO_DATA"}


class Workload:
    """The stream tables of some queries, named as these are; those that are refused are left out."""

    def __init__(self, database: Database, queries: Mapping[str, str], mode: str = "DIFFERENTIAL"):
        self.database, self.queries = database, queries
        self.courses = {name: Course() for name in queries}
        schedule = {} if mode == "IMMEDIATE" else {"schedule": "1d"}
        for name, query in queries.items():
            try:
                database.create(name, query, refresh_mode=mode, **schedule)
            except psycopg.errors.FeatureNotSupported as error:
                self.courses[name].refused = error
            else:
                self.courses[name].rows = database.value(f"SELECT count(*) FROM {name}")
                logger.info("%s has been created", name)

    def refresh(self, when: str) -> None:
        """Refresh all, and look for rows that are missing or in excess."""
        for name, course in self.courses.items():
            if course.refused is not None:
                continue
            before, began = len(course.differences), time.monotonic()
            try:
                self.database.refresh(name)
            except psycopg.Error as error:
                course.differences.append(f"{when}: {error}")
            else:
                course.actions.add(self.database.last(name)[0])
                course.executors[self._executor(name)] += 1
                course.differences += [f"{when}: {row}" for row in self._difference(name)]
            found = len(course.differences) - before
            logger.info("%s: %s, %d differences, %.1f s", when, name, found, time.monotonic() - began)

    def compare(self, when: str) -> None:
        """Look for rows that are missing or in excess as they are now, in the eyes of the transaction that is open."""
        for name, course in self.courses.items():
            if course.refused is None:
                course.differences += [f"{when}: {row}" for row in self._difference(name)]

    def written(self, name: str) -> int:
        """How many of its rows the transaction that is open has inserted, updated and deleted."""
        found: int = self.database.value(
            "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_xact_user_tables"
            " WHERE relname = %s",
            name,
        )
        return found

    def _executor(self, name: str) -> str:
        found: str = self.database.value(
            "SELECT CASE WHEN action = 'NO_DATA' THEN 'nothing to do' ELSE executor END"
            " FROM pgtrickle.pgt_refresh_history JOIN pgtrickle.pgt_stream_tables USING (pgt_id)"
            " WHERE pgt_name = %s ORDER BY refresh_id DESC LIMIT 1",
            name,
        )
        return found

    def _difference(self, name: str) -> list[str]:
        columns = self.database.rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND attname !~ '^__pgt_'"
            " ORDER BY attnum",
            name,
        )
        rows = self.database.connection.execute(
            sql.SQL(
                "WITH q AS MATERIALIZED ({query}), s AS (SELECT {columns} FROM {name})"
                " SELECT 'missing ' || m::text FROM (TABLE q EXCEPT ALL TABLE s) AS m"
                " UNION ALL SELECT 'extra ' || e::text FROM (TABLE s EXCEPT ALL TABLE q) AS e"
            ).format(
                query=sql.SQL(self.queries[name]),
                columns=sql.SQL(", ").join(sql.Identifier(column) for (column,) in columns),
                name=sql.Identifier(name),
            )
        ).fetchall()
        return [row for (row,) in rows]
