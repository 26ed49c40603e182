"""The planner is asked what changes cost only where the answer can matter, and its failures are not the refresh's."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, cast

import pytest

from catalog.session import Row, SqlError, SqlSession, Value
from engine.compile.compiled_query import CompiledQuery
from engine.refresh.estimated_costs import too_dear
from engine.refresh.policy import Decision
from tests.engine.refresh.test_policy import with_changes


class Planner:
    """A session whose PostgreSQL gives each EXPLAIN a cost, or fails at it."""

    def __init__(self, *costs: float | SqlError, last: tuple[int, float] | None = None):
        self.asked: list[str] = []
        self.settings: list[Value] = []
        self.kept: list[Value] | None = None
        self._costs, self._last = list(costs), last

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        if "pgt_refresh_history" in sql:
            return [] if self._last is None else [self._last]
        if "set_config" in sql:
            self.settings.append(args[1])
            return [("on", args[1])]
        assert "pgtrickle._run" in sql
        self.asked.append(str(args[0]))
        cost = self._costs.pop(0)
        if isinstance(cost, SqlError):
            raise cost
        return [(json.dumps([{"Plan": {"Total Cost": cost}}]),)]

    async def execute(self, sql: str, *args: Value) -> str:
        self.asked.append(sql)
        return ""

    async def execute_later(self, sql: str, *args: Value) -> None:
        if "set_config" in sql:
            self.settings.append(args[1])
        else:
            self.asked.append(sql)

    async def keep_settings(self, role: str) -> None:
        self.kept = list(self.settings) if self.kept is None else self.kept


class Compiled:
    async def full_sql(self, storage: str, uncaptured: frozenset[int]) -> str:
        return f"FULL {storage}"


def decided(planner: Planner, context: Any) -> Decision | None:
    session, plan = cast(SqlSession, planner), cast(CompiledQuery, Compiled())
    return asyncio.run(too_dear(session, context, plan, "DELTA", {"salt": 0}))


def test_both_statements_are_planned_and_neither_is_executed() -> None:
    planner = Planner(2_000_000.0, 1_000.0)
    decision = decided(planner, with_changes(5_000))
    assert decision is not None and "an estimated cost of 2000000 against 1000" in decision.reason
    assert planner.asked == [
        "SAVEPOINT __pgt_savepoint",
        "EXPLAIN (FORMAT JSON) DELTA",
        "EXPLAIN (FORMAT JSON) FULL public.totals",
        "RELEASE SAVEPOINT __pgt_savepoint",
    ]
    assert planner.settings == ["off", "on"]
    assert planner.kept == []  # before they were changed


def test_changes_that_are_not_dear_are_applied() -> None:
    assert decided(Planner(2_000.0, 1_000.0), with_changes(5_000)) is None


@pytest.mark.parametrize(
    ("pending", "mode", "last"),
    [(1_000, "AUTO", None), (5_000, "DIFFERENTIAL", None), (5_000, "AUTO", (2_500, 20.0))],
)
def test_the_planner_is_not_asked_where_it_cannot_matter(
    pending: int, mode: str, last: tuple[int, float] | None
) -> None:
    planner = Planner(last=last)
    assert decided(planner, replace(with_changes(pending), requested_mode=mode)) is None
    assert planner.asked == []


@pytest.mark.parametrize("last", [(2_499, 20.0), (5_000, 900.0)])
def test_the_planner_is_asked_again_where_more_has_changed_or_the_last_changes_were_slow(
    last: tuple[int, float],
) -> None:
    assert decided(Planner(2_000_000.0, 1_000.0, last=last), with_changes(5_000)) is not None


def test_a_value_that_the_planner_cannot_compute_leaves_the_refresh_to_itself() -> None:
    planner = Planner(SqlError("22012", "division by zero"))
    assert decided(planner, with_changes(5_000)) is None
    assert planner.asked[-2:] == ["ROLLBACK TO SAVEPOINT __pgt_savepoint", "RELEASE SAVEPOINT __pgt_savepoint"]


def test_other_errors_of_the_planner_are_the_refreshs() -> None:
    with pytest.raises(SqlError, match="canceling"):
        decided(Planner(SqlError("57014", "canceling statement due to user request")), with_changes(5_000))
