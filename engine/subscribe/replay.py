"""Replay: a query's changes at each timestamp since one in the past, evaluated as they were when it was now.

The versions of what the sources' rows were go into temporary tables of the session (`sql.versions`), which end with its
transaction. They cost as much as the changes since then, whatever the size of the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.pool import PooledSession
from engine.refresh import run_as_owner
from engine.subscribe.preparation import Preparation
from sql import Followed
from sql.versions import create_versions, fill_versions, index_versions, timestamps

SEARCHED = """
    SELECT DISTINCT i.indrelid::bigint, a.attname::text
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_opclass o ON o.oid = i.indclass[0]
    JOIN pg_catalog.pg_am m ON m.oid = o.opcmethod
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = ANY ($1::bigint[]::oid[]) AND i.indisvalid AND o.opcdefault AND m.amname = 'btree'
"""
"""The columns that an index of a source begins with."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A subscription's query over the versions of its sources, which its session holds."""

    followed: Followed
    after: int
    _statements: dict[frozenset[int], str] = field(default_factory=dict)

    @classmethod
    async def of(
        cls, session: PooledSession, preparation: Preparation, period: Mapping[str, Any], engine_role: str
    ) -> Replay:
        """Find out what has changed in a period, whose parameters are those of `sql.versions.fill_versions`.

        It takes the rights of whoever the subscription reads as. Raises SqlError.
        """
        followed = preparation.followed
        searched: dict[int, list[str]] = {}
        oids = [source.oid for source, _ in followed.sources]
        for oid, column in await session.fetch(SEARCHED, oids):
            searched.setdefault(int(oid), []).append(column)
        for source, used in followed.sources:
            for statement in create_versions(source, used, preparation.runs_as):
                await session.execute(statement)
            fill = fill_versions(source, used)
            await run_as_owner(session, preparation.runs_as, fill, dict(period), current=engine_role)
            for statement in index_versions(source, used, searched.get(source.oid, ())):
                await session.execute(statement)
        return cls(followed.at_timestamps(), period["after"])

    async def timestamps(self, session: PooledSession, until: int) -> list[tuple[int, frozenset[int]]]:
        """The timestamps at which sources changed, in order, and the oids of these. Raises SqlError."""
        found = await session.fetch(timestamps([source for source, _ in self.followed.sources]), self.after, until)
        return [(int(timestamp), frozenset(map(int, changed))) for timestamp, changed in found]

    def changes(self, changed: frozenset[int]) -> str:
        """What happens at a timestamp, given as ``at``, at which these sources change."""
        query = self._statements.get(changed)
        if query is None:
            query = self._statements[changed] = self.followed.changes(changed)
        return query
