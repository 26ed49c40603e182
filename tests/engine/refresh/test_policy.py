"""What a refresh does is decided from the state of the stream table alone, and always has a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalog.values import Action
from engine.refresh.policy import Decision, RefreshSettings, decide, learned_threshold
from engine.stream_tables.refresh_state import RefreshContext, SourceState

SETTINGS = RefreshSettings()
ORDERS = SourceState(oid=1, qualified="public.orders", name="orders", captured=True, pending=0, truncated=False)
CONTEXT = RefreshContext(
    pgt_id=1,
    schema="public",
    name="totals",
    relid=2,
    storage="public.totals",
    owner="owner",
    caller="owner",
    status="ACTIVE",
    refresh_mode="DIFFERENTIAL",
    requested_mode="AUTO",
    engine="auto",
    is_populated=True,
    needs_reinit=False,
    row_id_salt=0,
    canonical_query="SELECT 1",
    plan="plan",
    frontier={"snapshot": "1:1:"},
    sources=(ORDERS,),
    broken=(),
    denied=(),
    last_full_ms=100.0,
    auto_threshold=None,
    one_snapshot=True,
)


def with_changes(pending: int, *, truncated: bool = False, **changes: object) -> RefreshContext:
    return replace(CONTEXT, sources=(replace(ORDERS, pending=pending, truncated=truncated),), **changes)


@pytest.mark.parametrize(
    ("context", "action", "reason"),
    [
        (CONTEXT, Action.NO_DATA, "no changes"),
        (replace(CONTEXT, is_populated=False), Action.FULL, "not populated yet"),
        (replace(CONTEXT, broken=("a trigger is gone",)), Action.REINITIALIZE, "a trigger is gone"),
        (replace(CONTEXT, needs_reinit=True), Action.REINITIALIZE, "marked for reinitialisation"),
        (with_changes(10), Action.DIFFERENTIAL, "changes are applied incrementally"),
        (with_changes(10, refresh_mode="FULL"), Action.FULL, "refresh mode FULL"),
        (with_changes(1, truncated=True), Action.FULL, '"orders" was truncated'),
        (replace(CONTEXT, sources=(replace(ORDERS, captured=False),)), Action.DIFFERENTIAL, ""),
    ],
)
def test_action_follows_from_state(context: RefreshContext, action: Action, reason: str) -> None:
    decision = decide(context, SETTINGS, 100_000)
    assert decision.action is action
    assert reason in decision.reason


def test_too_many_changes_are_computed_in_full_unless_differential_is_insisted_on() -> None:
    many = with_changes(40_000)
    assert decide(many, SETTINGS, 100_000) == Decision(
        Action.FULL,
        "40000 changed row images in about 100000 rows exceed twice pg_trickle.differential_max_change_ratio = 0.15",
        fallback=True,
    )
    assert decide(replace(many, requested_mode="DIFFERENTIAL"), SETTINGS, 100_000).action is Action.DIFFERENTIAL


def test_a_differential_refresh_slower_than_full_is_remembered_and_tried_again_some_day() -> None:
    context = with_changes(2_000)
    decision = decide(context, SETTINGS, 100_000)
    assert learned_threshold(context, decision, 100_000, duration_ms=120.0) is None
    threshold = learned_threshold(context, decision, 100_000, duration_ms=400.0)
    assert threshold == pytest.approx(0.005)

    for _ in range(20):
        context = replace(context, auto_threshold=threshold)
        decision = decide(context, SETTINGS, 100_000)
        if decision.action is Action.DIFFERENTIAL:
            break
        assert decision.fallback and "slower to apply than a full refresh of 100 ms" in decision.reason
        threshold = learned_threshold(context, decision, 100_000, duration_ms=100.0)
    assert decision.action is Action.DIFFERENTIAL
    assert decide(with_changes(100, auto_threshold=0.005), SETTINGS, 100_000).action is Action.DIFFERENTIAL
