"""Refresh stream tables that read each other in a circle, all or none, in the session's transaction.

Their contents are the least fixed point of their queries: what follows from the sources outside of the circle, and from
nothing else. The queries are monotone (`sql.compile.monotone`), so it is found by going up to it: as long as sources
outside have only new rows, what is stored is below the new fixed point, and in each round every member takes up, as in
any refresh, what has changed in the sources and what the others have added. When a round adds nothing all members
equal their queries.

Where rows have gone from a source it is not enough to follow the changes: rows of two members may support each other
without support from outside. Then all members are emptied and go up from nothing. Nobody sees that, since it is one
transaction, and what has been captured on the way is reduced to what differs in the end.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from catalog.session import SqlError, SqlSession
from catalog.values import Initiator, RefreshMode
from engine.refresh.executor_choice import NoSpark
from engine.refresh.policy import is_fresh
from engine.refresh.record import Job, RefreshOutcome
from engine.refresh.refresh import refresh
from engine.session.roles import run_as_owner
from engine.stream_tables.refresh_state import RefreshContext

MOST_RESTARTS = 3
"""So often the members are emptied in a transaction that sees, at READ COMMITTED, more rows go from the sources."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """How the members of a circle are refreshed."""

    ready: Callable[[int], Awaitable[RefreshContext]]
    """Lock one of them for a refresh, by id, and repair it where it must be; raises as its caller wants it."""
    initiators: Mapping[int, Initiator]
    spark: NoSpark
    """Why none is computed on Spark: what that reads is read by other transactions."""
    job: Job | None = None
    lock: Callable[[], Awaitable[None]] | None = None
    """Lock all of them, where one that is `ready` and has no changes is not."""
    between: Callable[[], Awaitable[None]] | None = None
    """Called after each refresh."""


async def refresh_circle(
    session: SqlSession, members: Sequence[int], conduct: Conduct, *, anew: str | None = None
) -> RefreshOutcome | None:
    """Bring the members to the least fixed point of their queries; what the last refresh did, None if there was none.

    `anew` is a reason to compute them from nothing. Raises SqlError: 54000 where there is no fixed point within
    `pg_trickle.max_fixpoint_iterations` rounds, 40001 where at READ COMMITTED rows go from the sources all the time,
    what `conduct.ready` raises, and as `refresh` does.
    """
    found = [await conduct.ready(pgt_id) for pgt_id in members]
    if anew is None and all(map(is_fresh, found)):
        return None
    if conduct.lock is not None:
        await conduct.lock()
    ((limit, last_change),) = await session.fetch(_BEGIN, list(members))
    circle = _Circle(session, tuple(members), conduct, {each.relid: each.name for each in found}, int(limit))
    restarts = 0
    reason = anew or await circle.reason_among(found)
    while True:
        if reason is not None:
            await circle.begin_anew(reason)
        reason = await circle.climb()
        if reason is None:
            break
        restarts += 1
        if restarts > MOST_RESTARTS:
            raise SqlError("40001", f"{reason}: again while the stream tables that read it were refreshed")
    if circle.emptied:
        for pgt_id in members:
            await session.fetch("SELECT pgtrickle._consolidate_changes($1::bigint, $2::bigint)", pgt_id, last_change)
    await session.fetch("SELECT pgtrickle._finish_circle($1::bigint[], $2::int)", list(members), circle.iteration)
    return circle.outcome


_BEGIN = """
SELECT pgtrickle._setting('pg_trickle.max_fixpoint_iterations', '100')::integer, pgtrickle._begin_circle($1::bigint[])
"""

_EMPTY = """
WITH gone AS (DELETE FROM {} RETURNING 1)
SELECT pg_catalog.jsonb_build_object('deleted', pg_catalog.count(*)) FROM gone
"""


@dataclass(slots=True)
class _Circle:
    """A circle on its way."""

    session: SqlSession
    members: tuple[int, ...]
    conduct: Conduct
    names: Mapping[int, str]
    """Of the members, by the OIDs of their storage tables."""
    limit: int
    iteration: int = 0
    """The round that is under way, or was the last one."""
    emptied: bool = False
    outcome: RefreshOutcome | None = None
    _refreshed: set[int] = field(default_factory=set)

    async def reason_among(self, found: Sequence[RefreshContext]) -> str | None:
        """Why all must be computed from nothing, by what has been found of them; None if they need not be."""
        for context in found:
            if (reason := await self._reason(context)) is not None:
                return reason
        return None

    async def begin_anew(self, reason: str) -> None:
        """Empty all members, and have each compute all rows from what the others have by then."""
        self.emptied = True
        for pgt_id in self.members:
            context = await self.conduct.ready(pgt_id)
            statement = _EMPTY.format(context.storage)
            await run_as_owner(self.session, context.owner, statement, {}, current=context.caller)
        self.iteration = 1
        for pgt_id in self.members:
            await self._refresh(replace(await self.conduct.ready(pgt_id), computed_whole=reason))

    async def climb(self) -> str | None:
        """Go round until nobody has anything to do; None, or why all must be computed from nothing after all."""
        while True:
            round_number, worked = self.iteration + 1, False
            for pgt_id in self.members:
                context = await self.conduct.ready(pgt_id)
                if not self._has_work(context):
                    continue
                if (reason := await self._reason(context)) is not None:
                    return reason
                self._check_limit(round_number)
                self.iteration, worked = round_number, True
                await self._refresh(context)
                if not context.one_snapshot and (reason := await self._went(context, refreshed=True)) is not None:
                    return reason  # its statement has seen it
            if not worked:
                return None

    def _has_work(self, context: RefreshContext) -> bool:
        if context.pgt_id in self._refreshed and context.one_snapshot:
            return context.capture.pending > 0  # what is captured late this transaction never sees
        return not is_fresh(context)

    async def _reason(self, context: RefreshContext) -> str | None:
        name, capture = context.name, context.capture
        if not context.is_populated or capture.frontier is None:
            return f'"{name}" is not populated yet'
        if capture.broken or context.needs_reinit:
            return f'"{name}" is computed anew' + (f": {'; '.join(capture.broken)}" if capture.broken else "")
        if context.one_snapshot and capture.late and context.pgt_id not in self._refreshed:
            return f'"{name}" reads what is captured from the write-ahead log'
        if not any(source.pending for source in capture.sources if source.oid not in self.names):
            return None
        return await self._went(context)

    async def _went(self, context: RefreshContext, *, refreshed: bool = False) -> str | None:
        """Whether a source outside has lost rows since a member was refreshed, or `refreshed`: since before that."""
        before = json.dumps(context.capture.frontier) if refreshed else None
        query = "SELECT pgtrickle._rows_went($1::bigint, $2::text::jsonb)"
        ((source,),) = await self.session.fetch(query, context.pgt_id, before)
        if source is None:
            return None
        return f"rows were updated or deleted in {source}, and rows of a circle can support each other"

    def _check_limit(self, round_number: int) -> None:
        """Raises SqlError 54000 where there have been too many rounds."""
        if round_number <= self.limit:
            return
        names = ", ".join(f'"{name}"' for name in self.names.values())
        raise SqlError(
            "54000",
            f"stream tables {names} have not come to a fixed point after {self.limit} iterations",
            detail="They read each other, and each round still adds rows.",
            hint="UNION and DISTINCT leave out rows that are there already, where UNION ALL adds them without end."
            " If it only takes longer, raise pg_trickle.max_fixpoint_iterations.",
        )

    async def _refresh(self, context: RefreshContext) -> None:
        # As DIFFERENTIAL has it: neither the number of changes nor the time decides, which are small in each round.
        self.outcome = await refresh(
            self.session,
            replace(context, requested_mode=RefreshMode.DIFFERENTIAL),
            initiator=self.conduct.initiators[context.pgt_id],
            spark=self.conduct.spark,
            job=self.conduct.job,
            iteration=self.iteration,
        )
        self._refreshed.add(context.pgt_id)
        if self.conduct.between is not None:
            await self.conduct.between()
