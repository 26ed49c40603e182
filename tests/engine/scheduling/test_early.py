"""What is refreshed before its schedule has gone by, and what waits for it."""

from __future__ import annotations

import asyncio

from engine.refresh.record import Job
from engine.scheduling.early import SAVED_SECONDS, SHARE, Budget, Cost, until_early
from engine.scheduling.scheduler import Turn
from engine.scheduling.units import Unit
from tests.engine.scheduling.test_scheduler import BASE, Laboratory, stream_table

FRESH = 0.01
"""How old rows are that are within any schedule, in seconds."""


async def test_change_is_refreshed_at_once_where_the_schedule_is_short() -> None:
    lab = Laboratory()
    await lab.look(
        stream_table(1, BASE, staleness=FRESH),
        stream_table(2, BASE, staleness=FRESH, schedule_seconds=600.0),
        stream_table(3, 1, staleness=FRESH),
        stream_table(4, BASE, staleness=FRESH, schedule_seconds=None, cron="@hourly", clock=1.8e9 + 60),
    )
    assert lab.refreshed == [1, 3]


async def test_schedule_is_a_clock_where_commits_do_not_wake() -> None:
    lab = Laboratory()
    lab.scheduler._eager = False
    await lab.look(stream_table(1, BASE, staleness=FRESH))
    assert lab.refreshed == []


async def test_what_has_failed_is_not_tried_early() -> None:
    lab = Laboratory()
    table = stream_table(1, BASE, staleness=FRESH)
    lab.scheduler._find_due([table], 1)
    lab.scheduler._due.clear()
    lab.scheduler._paces[1].retry = 1000.0
    await lab.look(table)
    assert lab.refreshed == []


async def test_change_made_during_a_refresh_brings_about_another_look() -> None:
    lab = Laboratory()
    table = stream_table(1, BASE, staleness=FRESH)
    waiting, going_on = asyncio.Event(), asyncio.Event()

    async def refresh(_: Unit, job: Job, limit: float | None) -> Turn:
        waiting.set()
        await going_on.wait()
        return Turn.WORKED

    lab.scheduler.refresh = refresh
    await lab.look(table, position=1)
    await waiting.wait()
    await lab.look(table, position=2)
    lab.scheduler._woken.clear()
    going_on.set()
    assert await lab.scheduler._woken.within(0.5)


def test_refresh_that_is_dear_for_its_schedule_waits_for_it() -> None:
    cost = Cost()
    cost.note(0.04, 5.0, worked=True)
    assert 0 < until_early(cost, Budget(), 1.0, 5.0) < 0.2
    assert until_early(cost, Budget(), 1.0, 5.2) == 0
    cost.note(0.06, 6.0, worked=True)
    assert until_early(cost, Budget(), 1.0, 7.0) == 0  # it can have been slow by chance
    cost.note(0.06, 6.0, worked=True)
    cost.note(0.001, 7.0, worked=False)  # says nothing about the next change
    assert until_early(cost, Budget(), 1.0, 8.0) == float("inf")


def test_many_stream_tables_share_a_budget() -> None:
    budget, now, refreshed = Budget(), 0.0, 0
    while now < 10.0:  # as often as the budget allows, 10 ms each
        now += budget.until_some(now)
        budget.spend(0.01, now)
        now += 0.001
        refreshed += 1
    assert refreshed * 0.01 <= SAVED_SECONDS + 10.0 * SHARE + 0.02


async def test_change_elsewhere_makes_few_stream_tables_due() -> None:
    """Of many the ones with changes, and those that were not checked for long: capture can have a gap."""
    lab = Laboratory()
    tables = [stream_table(n, BASE) for n in range(1, 401)]
    lab.scheduler._find_due(tables, 1, frozenset())
    for _ in range(3000):
        await asyncio.sleep(0)
    assert len(lab.refreshed) == 400  # nothing is known of them yet
    lab.refreshed.clear()
    lab.now += 2.0
    lab.scheduler._find_due(tables, 2, frozenset({7, 9}))
    assert set(lab.scheduler._due) == {7, 9}
    lab.now += 60.0
    lab.scheduler._find_due(tables, 3, frozenset())
    assert len(lab.scheduler._due) == 400
