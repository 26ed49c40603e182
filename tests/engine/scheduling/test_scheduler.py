"""What a look of the scheduler has refreshed, and what it leaves alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from catalog.stream_tables import StreamTable
from catalog.values import RefreshMode, Status
from engine.scheduling.scheduler import Scheduler, Turn
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
        self.turns: dict[int, Turn] = {}
        self.now = 0.0
        pool = cast(DatabasePool, SimpleNamespace(database="shop"))
        self.scheduler = Scheduler(pool, self._refresh, _nothing, _nobody, self._skip, clock=lambda: self.now)

    async def _refresh(self, table: StreamTable, limit: float | None) -> Turn:
        self.refreshed.append(table.pgt_id)
        return self.turns.get(table.pgt_id, Turn.WORKED)

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


async def _nobody(pgt_id: int) -> str | None:
    return None


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
