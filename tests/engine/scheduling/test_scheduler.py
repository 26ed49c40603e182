"""What a look of the scheduler has refreshed, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from catalog.session import SqlError, SqlSession
from catalog.stream_tables import StreamTable
from catalog.values import RefreshMode, Status
from engine.refresh.record import Job
from engine.scheduling.scheduler import Scheduler, Turn
from engine.scheduling.units import Unit
from engine.session.pool import DatabasePool

BASE = 999
"""A plain table."""
GATED = "source public.t is gated"


def stream_table(pgt_id: int, *reads: int, **changed: Any) -> StreamTable:
    """A stream table that is due, whose storage has the OID 100 + pgt_id."""
    table = StreamTable(
        pgt_id=pgt_id,
        schema="public",
        name=f"st{pgt_id}",
        relid=100 + pgt_id,
        owner=10,
        status=Status.ACTIVE,
        refresh_mode=RefreshMode.DIFFERENTIAL,
        is_populated=True,
        needs_reinit=False,
        age_seconds=100.0,
        staleness=10.0,
        as_of="2026-01-01 00:00:00+00",
        schedule_seconds=1.0,
        cron=None,
        time_zone="UTC",
        clock=1.8e9,
        default_seconds=1.0,
        sources=tuple(source if source == BASE else 100 + source for source in reads),
        untracked=False,
    )
    return replace(table, **changed)


class Laboratory:
    """A scheduler whose refreshes end as they are told to; notes what it has refreshed and skipped."""

    def __init__(self) -> None:
        self.refreshed: list[int] = []
        self.skipped: list[tuple[int, str]] = []
        self.units: list[tuple[int, ...]] = []
        self.jobs: list[Job] = []
        self.failing: set[int] = set()
        self.turns: dict[int, Turn] = {}
        self.now = 0.0
        pool = cast(DatabasePool, SimpleNamespace(database="shop", session=_no_session))
        self.scheduler = Scheduler(pool, self._refresh, _nothing, _nobody, self._skip, clock=lambda: self.now)

    async def _refresh(self, unit: Unit, job: Job, limit: float | None) -> Turn:
        ids = tuple(table.pgt_id for table in unit.members)
        self.refreshed += ids
        self.units.append(ids)
        self.jobs.append(job)
        if not self.failing.isdisjoint(ids):
            raise SqlError("22012", "division by zero")
        return self.turns.get(unit.members[0].pgt_id, Turn.WORKED)

    async def _skip(self, pgt_id: int, reason: str) -> None:
        self.skipped.append((pgt_id, reason))

    async def look(self, *tables: StreamTable, position: int = 1) -> None:
        """One look at these stream tables, and what it brings about."""
        self.now += 10.0
        self.scheduler._find_due(list(tables), position)
        for _ in range(20):
            await asyncio.sleep(0)


async def _nothing(role: int, limit: float | None) -> bool:
    return False


@asynccontextmanager
async def _no_session() -> AsyncIterator[None]:
    raise OSError
    yield


async def _nobody(pgt_id: int) -> str | None:
    return None


async def test_those_give_way_to_what_is_busy_elsewhere_ever_longer_and_ever_more_rarely() -> None:
    lab = Laboratory()
    lab.turns[1] = Turn.AGAIN
    for position in range(18):
        await lab.look(stream_table(1, BASE), position=position)
    claims = [job.claim for job in lab.jobs]
    assert claims == [0] * 4 + [2.0] + [0] * 3 + [4.0] + [0] * 7 + [8.0] + [0]
    lab.turns[1] = Turn.WORKED
    for position in range(20, 26):
        await lab.look(stream_table(1, BASE), position=position)
    assert not any(job.claim for job in lab.jobs[18:])


async def test_what_is_held_back_is_noted_once_and_not_refreshed() -> None:
    lab = Laboratory()
    held = stream_table(1, BASE, held_back=GATED)
    for _ in range(3):
        await lab.look(held, stream_table(2, 1, held_back=GATED), stream_table(3, BASE))
    assert set(lab.refreshed) == {3}
    assert sorted(lab.skipped) == [(1, GATED), (2, GATED)]
    await lab.look(replace(held, held_back="another reason"))
    assert lab.skipped[2:] == [(1, "another reason")]


async def test_what_is_held_back_no_longer_is_refreshed_and_noted_again_the_next_time() -> None:
    lab = Laboratory()
    table = stream_table(1, BASE)
    await lab.look(replace(table, held_back=GATED))
    await lab.look(table)
    assert lab.refreshed == [1]
    await lab.look(replace(table, held_back=GATED), position=2)
    assert (lab.refreshed, lab.skipped) == ([1], [(1, GATED)] * 2)


async def test_refresh_that_finds_itself_held_back_is_not_done() -> None:
    """The look has seen no gate, the refresh does: the changes are still to be taken in."""
    lab = Laboratory()
    lab.turns[1] = Turn.HELD_BACK
    table = stream_table(1, BASE)
    await lab.look(table)
    await lab.look(table)
    assert lab.refreshed == [1, 1]
    lab.turns[1] = Turn.WORKED
    await lab.look(table)
    await lab.look(table)
    assert lab.refreshed == [1, 1, 1]  # up to date now


async def test_what_is_not_due_is_not_noted() -> None:
    lab = Laboratory()
    await lab.look(stream_table(1, BASE, schedule_seconds=3600.0, held_back=GATED))
    await lab.look(stream_table(2, BASE, status=Status.SUSPENDED, held_back=GATED))
    assert (lab.refreshed, lab.skipped) == ([], [])


def diamond(**of_meeting: Any) -> list[StreamTable]:
    """1 reads a table, 2 and 3 read 1, and 4 reads both."""
    return [
        stream_table(1, BASE),
        stream_table(2, 1),
        stream_table(3, 1),
        stream_table(4, 2, 3, atomic=True, **of_meeting),
    ]


async def test_members_of_a_unit_are_refreshed_at_once_after_what_they_read() -> None:
    lab = Laboratory()
    await lab.look(*diamond())
    assert lab.refreshed[0] == 1 and lab.refreshed[-1] == 4 and lab.units == [(1,), (2, 3, 4)]
    await lab.look(*diamond(), position=1)
    assert len(lab.refreshed) == 4  # all are up to date
    (first, second) = lab.jobs
    assert (first.unit, second.unit, second.attempt) == ("s:1", "a:2,3,4", 1)
    assert first.enqueued < second.enqueued


async def test_unit_is_due_when_one_member_is_or_all() -> None:
    """Of two members one has changes at each look, which comes 10 s after the last one."""
    turns = {}
    for slowest in (False, True):
        lab = Laboratory()
        lab.scheduler._eager = False
        tables = [
            stream_table(1, BASE, schedule_seconds=15.0),
            stream_table(2, 1, schedule_seconds=45.0),
            stream_table(3, 1, 2, schedule_seconds=15.0, atomic=True, slowest=slowest),
        ]
        await lab.look(*tables)
        for position in range(2, 12):
            times = Counter(lab.refreshed)
            tables = [
                replace(table, staleness=0.0, as_of=str(times[table.pgt_id])) if times[table.pgt_id] else table
                for table in tables
            ]
            await lab.look(*tables, position=position)
        turns[slowest] = [unit for unit in lab.units if len(unit) > 1]
    # A new age is only noticed at the next look, so 15 s are 30, and 45 s are 60.
    assert turns == {False: [(2, 3)] * 4, True: [(2, 3)] * 2}


async def test_unit_with_a_member_that_is_suspended_is_skipped() -> None:
    lab = Laboratory()
    tables = diamond()
    tables[1] = replace(tables[1], status=Status.SUSPENDED)
    for _ in range(3):
        await lab.look(*tables)
    said = "stream table public.st2, which is refreshed together with it, is suspended"
    assert lab.refreshed == [1] and sorted(lab.skipped) == [(3, said), (4, said)]


async def test_unit_that_fails_is_tried_again_as_a_whole() -> None:
    lab = Laboratory()
    lab.failing.add(2)
    tables = diamond()
    await lab.look(*tables)
    await lab.look(*tables, position=2)
    assert [job.attempt for job in lab.jobs if job.unit == "a:2,3,4"] == [1, 2]


class Catalog:
    """A session that answers what a look asks; counts how often all stream tables are read."""

    def __init__(self, *tables: StreamTable) -> None:
        self.tables = tables
        self.changed: list[int] = []
        self.position, self.settled, self.version = 1, True, "1"
        self.read = 0
        self.asked: list[tuple[Any, ...]] = []

    async def fetch(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        if "_out_of_band_requesters" in query:
            return [(True, True, 4, 0, [], 1.0)]
        if "_change_position" in query:
            return [(self.position, self.settled)]
        if "_changed_stream_tables" in query:
            self.asked.append(args)
            return [(each,) for each in self.changed]
        if "hashint8extended" in query:
            return [(self.version,)]
        if "default_seconds" in query:
            self.read += 1
            return [astuple(table) for table in self.tables]
        return []


async def test_all_stream_tables_are_read_again_only_where_they_or_what_was_captured_have_changed() -> None:
    lab, catalog = Laboratory(), Catalog(stream_table(1, BASE), stream_table(2, 1))

    async def look() -> tuple[int, list[int]]:
        lab.now += 10.0
        catalog.read, refreshed = 0, len(lab.refreshed)
        await lab.scheduler._look(cast(SqlSession, catalog))
        for _ in range(20):
            await asyncio.sleep(0)
        return catalog.read, lab.refreshed[refreshed:]

    assert await look() == (1, [1, 2])
    assert await look() == (1, [])  # what was found to be at rest
    assert [await look() for _ in range(3)] == [(0, [])] * 3
    catalog.position, catalog.changed = 2, [1]
    assert await look() == (1, [1, 2])
    catalog.changed = []
    await look()
    assert await look() == (0, [])
    catalog.version = "2"
    assert await look() == (1, [])
    assert await look() == (0, [])
    catalog.tables = (stream_table(1, BASE, needs_reinit=True), stream_table(2, 1))
    catalog.version = "3"
    assert await look() == (1, [1, 2])
    catalog.position, catalog.settled = 3, False  # somebody has not committed yet what is counted
    assert [(await look())[0] for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    "table",
    [
        stream_table(1, BASE, cron="0 0 * * *", schedule_seconds=None),
        stream_table(1, BASE, untracked=True),
    ],
)
async def test_what_time_alone_makes_due_is_read_each_time(table: StreamTable) -> None:
    lab, catalog = Laboratory(), Catalog(table)
    for _ in range(4):
        lab.now += 10.0
        await lab.scheduler._look(cast(SqlSession, catalog))
        for _ in range(20):
            await asyncio.sleep(0)
    assert catalog.read == 4


async def test_only_what_was_captured_since_is_looked_for_once_all_of_it_was_there_to_be_seen() -> None:
    lab, catalog = Laboratory(), Catalog(stream_table(1, BASE, schedule_seconds=3600.0))
    for catalog.position, catalog.settled, catalog.changed in (
        (5, True, [1]),
        (6, False, [1]),
        (7, True, []),
        (2, True, []),  # it was made anew
    ):
        await lab.scheduler._look(cast(SqlSession, catalog))
    assert catalog.asked == [(-1, []), (5, [1]), (5, [1]), (-1, [])]
