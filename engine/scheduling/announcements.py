"""What those are told who LISTEN on `pg_trickle_alert` and `pgtrickle_refresh`.

A NOTIFY makes the commits of a whole cluster wait for one another, so no refresh executes one. The elected scheduler
reads from the history what has been committed, compares the catalog with what it was, and sends all of it in a
transaction of its own. What happened while no scheduler was elected is in the history, and is not sent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from catalog.session import SqlError, SqlSession
from catalog.stream_tables import StreamTable
from catalog.values import Status
from engine.session.background_worker import BackgroundWorker, WakeUp
from engine.session.pool import DatabasePool

INTERVAL = 1.0
"""Seconds between looks into the history: refreshes by hand wake nobody."""

PAUSE = 0.05
"""Least seconds between two of them, so that many refreshes are told of by one transaction."""

STALE_INTERVAL = 5.0
STALE_SHARE = 0.01
"""Part of the time in which it is looked for stale tables, at most."""

MOST_GAPS = 10_000
MOST_ROWS = 1000
"""Of the history, that one transaction tells of."""

_FIRST = "SELECT coalesce(pg_catalog.max(refresh_id), 0) FROM pgtrickle.pgt_refresh_history"
_ANNOUNCE = "SELECT found, oldest, next FROM pgtrickle._announce($1::bigint, $2::bigint[], $3::text[], $4::bigint)"
_STALE = """
SELECT s.pgt_id, pg_catalog.json_build_object(
    'event', 'stale_data', 'pgt_schema', s.pgt_schema, 'pgt_name', s.pgt_name,
    'staleness_seconds',
    pg_catalog.round(extract(epoch FROM pg_catalog.clock_timestamp() - s.data_timestamp)::numeric, 3),
    'schedule_seconds', pgtrickle._effective_seconds(s.pgt_id))::text
FROM pgtrickle._may_be_stale() AS m (pgt_id) JOIN pgtrickle.pgt_definitions s USING (pgt_id)
WHERE pgtrickle._is_stale(m.pgt_id)
"""


@dataclass(slots=True)
class Gaps:
    """Numbers of history rows that were not there though later ones were: of transactions that have not ended yet.

    >>> gaps = Gaps(after=7)
    >>> gaps.note([8, 11], oldest=500, next_=510)
    >>> gaps.after, gaps.missing
    (11, [9, 10])
    >>> gaps.note([9], oldest=500, next_=511)  # the transactions up to 509 have not all ended
    >>> gaps.missing
    [10]
    >>> gaps.note([], oldest=510, next_=511)  # all of them have: number 10 was rolled back
    >>> gaps.missing
    []
    """

    after: int
    _missing: dict[int, int] = field(default_factory=dict)
    """Each with the transaction id that was next when it was first missed."""

    @property
    def missing(self) -> list[int]:
        return list(self._missing)

    def note(self, found: Iterable[int], oldest: int, next_: int) -> None:
        """What a look has found; transactions before `oldest` have ended, those from `next_` on had not begun."""
        seen = set(found)
        self._missing = {n: at for n, at in self._missing.items() if n not in seen and at > oldest}
        latest = max(seen, default=self.after)
        for number in range(max(self.after + 1, latest - MOST_GAPS), latest):
            if number not in seen:
                self._missing[number] = next_
        self.after = max(self.after, latest)


@dataclass(slots=True)
class Announcements:
    """Tells of the stream tables of one database, while its scheduler is elected."""

    pool: DatabasePool
    clock: Callable[[], float] = time.monotonic
    worker: BackgroundWorker = field(init=False)
    _woken: WakeUp = field(default_factory=WakeUp)
    _known: dict[int, StreamTable] | None = None
    _alerts: list[str] = field(default_factory=list)
    """Not sent yet."""
    _gaps: Gaps = field(default_factory=lambda: Gaps(0))
    _stale: frozenset[int] = frozenset()
    _stale_look: float = 0.0

    def __post_init__(self) -> None:
        self.worker = BackgroundWorker("announcements", self.pool.database, self._tell_all, PAUSE)

    async def begin(self, session: SqlSession) -> None:
        """Tell from now on of what happens. Raises SqlError."""
        ((latest,),) = await session.fetch(_FIRST)
        self._gaps = Gaps(int(latest))
        self.worker.start()

    def wake(self) -> None:
        """A stream table has been refreshed."""
        self._woken.set()

    def compare(self, tables: Iterable[StreamTable]) -> None:
        """Have told what has changed in the catalog since the last call."""
        before, self._known = self._known, {table.pgt_id: table for table in tables}
        if before is not None and (alerts := changes(before, self._known)):
            self._alerts += alerts
            self.wake()

    async def _tell_all(self) -> None:
        await self._woken.within(INTERVAL)
        self._woken.clear()
        try:
            async with self.pool.session() as session:
                await self._tell(session)
        except SqlError:  # PostgreSQL's queue of notifications is full, among others
            await asyncio.sleep(INTERVAL)
            raise

    async def _tell(self, session: SqlSession) -> None:
        await self._look_for_stale(session)
        while True:
            alerts = list(self._alerts)
            ((found, oldest, next_),) = await session.fetch(
                _ANNOUNCE, self._gaps.after, self._gaps.missing, alerts, MOST_ROWS
            )
            del self._alerts[: len(alerts)]
            self._gaps.note(found, int(oldest), int(next_))
            if len(found) < MOST_ROWS:
                break

    async def _look_for_stale(self, session: SqlSession) -> None:
        """Tell of each that has become stale, once."""
        began = self.clock()
        if began < self._stale_look:
            return
        rows = await session.fetch(_STALE)
        self._alerts += [payload for pgt_id, payload in rows if pgt_id not in self._stale]
        self._stale = frozenset(pgt_id for pgt_id, _ in rows)
        ended = self.clock()
        self._stale_look = ended + max(STALE_INTERVAL, (ended - began) / STALE_SHARE)


def changes(before: dict[int, StreamTable], now: dict[int, StreamTable]) -> list[str]:
    """The payloads that tell what has become of stream tables, by id."""
    told = [_payload("dropped", before[pgt_id]) for pgt_id in before.keys() - now.keys()]
    for pgt_id, table in now.items():
        former = before.get(pgt_id)
        if former is None:
            told.append(_payload("created", table))
            continue
        if _definition(former) != _definition(table):
            told.append(_payload("altered", table))
        if table.needs_reinit and not former.needs_reinit:
            told.append(_payload("reinitialize_needed", table))
        if table.status == Status.ERROR != former.status:
            told.append(_payload("error", table))
    return told


def _definition(table: StreamTable) -> tuple[object, ...]:
    schedule = (table.schedule_seconds, table.cron)
    return table.schema, table.name, table.owner, table.refresh_mode, schedule, table.sources


def _payload(event: str, table: StreamTable) -> str:
    values = {"event": event, "pgt_id": table.pgt_id, "pgt_schema": table.schema, "pgt_name": table.name}
    return json.dumps(values, ensure_ascii=False)
