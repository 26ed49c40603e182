"""Replay: a query's changes at each timestamp since one in the past, evaluated as they were when it was now.

The versions of the sources' rows go into temporary tables of the session (`operators.versions`), which end with its
transaction. They cost as much as the changes since then, whatever the size of the sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from catalog.session import SqlError
from engine.compile.compiled_query import FollowedQuery
from engine.session.pool import PooledSession
from engine.session.roles import execute_as_owner, run_as_owner
from engine.subscribe.preparation import Preparation
from sql.operators.statement import MOST
from sql.operators.versions.versions import create_versions, fill_versions, index_versions, timestamps

OTHERWISE = "Retain the history of a stream table of this query, and subscribe to that."


@dataclass(frozen=True, slots=True)
class Replay:
    """A subscription's query over the versions of its sources, which its session holds."""

    session: PooledSession
    followed: FollowedQuery
    runs_as: str
    engine_role: str
    after: int
    _statements: dict[frozenset[int], tuple[list[tuple[str, str]], str]] = field(default_factory=dict)

    @classmethod
    async def of(
        cls,
        session: PooledSession,
        preparation: Preparation,
        subscription_id: int,
        period: Mapping[str, Any],
        engine_role: str,
    ) -> Replay:
        """Find out what has changed in a period, whose parameters are those of `versions.fill_versions`.

        It takes the rights of whoever the subscription reads as. Raises SqlError.
        """
        found = await session.fetch(
            "SELECT relid, row_key, searched FROM pgtrickle._replayed_sources($1::bigint, $2::bigint)",
            subscription_id,
            period["after"],
        )
        keys = {int(relid): list(key) for relid, key, _ in found}
        searched = {int(relid): list(columns) for relid, _, columns in found}
        followed = await preparation.followed.at_timestamps(keys)
        self = cls(session, followed, preparation.runs_as, engine_role, period["after"])
        for source, used in self.followed.sources:
            await self._execute(create_versions(source, used))
            await self._run(fill_versions(source, used), period)
            await self._execute(index_versions(source, used, searched[source.oid]))
        await self._execute(await self.followed.create_running())
        return self

    async def timestamps(self, until: int) -> list[tuple[int, frozenset[int]]]:
        """The timestamps at which sources changed, in order, and the oids of these. Raises SqlError."""
        query = timestamps([source for source, _ in self.followed.sources])
        # The tables are the role's, which can have put something else in their place.
        found = await self._run(query, {"after": self.after, "until": until})
        return [(int(timestamp), frozenset(map(int, changed))) for timestamp, changed in found or ()]

    async def changes(self, timestamp: int, changed: frozenset[int]) -> str:
        """The query for what happens at a timestamp, given to it as ``at``, at which these sources change.

        To be asked for one timestamp after the other, without leaving out any. Raises SqlError.
        """
        if changed not in self._statements:
            running, query = await self.followed.running(changed), await self.followed.changes(changed)
            if max(map(len, (query, *(statement for both in running for statement in both)))) > MOST:
                raise SqlError("0A000", "a query of this complexity cannot be followed in the past", hint=OTHERWISE)
            self._statements[changed] = running, query
        running, query = self._statements[changed]
        for advance, complete in running:
            if await self._run(advance, {"at": timestamp}):
                await self._run(complete, {"at": timestamp})
        return query

    async def _execute(self, statements: Sequence[str]) -> None:
        # A statement that has the query in it runs code of users as soon as it is analysed.
        await execute_as_owner(self.session, self.runs_as, statements, current=self.engine_role, making=True)

    async def _run(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        return await run_as_owner(self.session, self.runs_as, statement, dict(parameters), current=self.engine_role)
