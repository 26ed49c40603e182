"""What a refresh does is decided from the state of the stream table alone, and always has a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalog.values import Action
from engine.refresh.policy import (
    AppliedChanges,
    Decision,
    RefreshSettings,
    Sizes,
    decide,
    decide_by_cost,
    is_proven,
    learned_threshold,
    may_be_dear,
    may_teach,
)
from engine.stream_tables.refresh_state import CaptureState, Learned, RefreshContext, SourceState

SETTINGS = RefreshSettings()
SIZES = Sizes({1: 100_000})
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
    canonical_query="SELECT 1",
    plan="plan",
    one_snapshot=True,
    capture=CaptureState(frontier={"snapshot": "1:1:"}, sources=(ORDERS,)),
    learned=Learned(last_full_ms=100.0),
)


def with_capture(**changes: object) -> RefreshContext:
    return replace(CONTEXT, capture=replace(CONTEXT.capture, **changes))


def with_threshold(context: RefreshContext, threshold: float | None) -> RefreshContext:
    return replace(context, learned=replace(context.learned, auto_threshold=threshold))


def with_full_ms(context: RefreshContext, ms: float | None) -> RefreshContext:
    return replace(context, learned=replace(context.learned, last_full_ms=ms))


def with_changes(pending: int, *, truncated: bool = False, **changes: object) -> RefreshContext:
    return replace(with_capture(sources=(replace(ORDERS, pending=pending, truncated=truncated),)), **changes)


@pytest.mark.parametrize(
    ("context", "action", "reason"),
    [
        (CONTEXT, Action.NO_DATA, "no changes"),
        (replace(CONTEXT, is_populated=False), Action.FULL, "not populated yet"),
        (with_capture(broken=("a trigger is gone",)), Action.REINITIALIZE, "a trigger is gone"),
        (replace(CONTEXT, needs_reinit=True), Action.REINITIALIZE, "marked for reinitialisation"),
        (with_changes(10), Action.DIFFERENTIAL, "changes are applied incrementally"),
        (with_changes(10, refresh_mode="FULL"), Action.FULL, "refresh mode FULL"),
        (with_changes(1, truncated=True), Action.FULL, '"orders" was truncated'),
        (with_capture(sources=(replace(ORDERS, captured=False),)), Action.DIFFERENTIAL, ""),
    ],
)
def test_action_follows_from_state(context: RefreshContext, action: Action, reason: str) -> None:
    decision = decide(context, SETTINGS, SIZES)
    assert decision.action is action
    assert reason in decision.reason


def test_too_many_changes_are_computed_in_full_unless_differential_is_insisted_on() -> None:
    many = with_changes(40_000)
    assert decide(many, SETTINGS, SIZES) == Decision(
        Action.FULL,
        "40000 changed row images in about 100000 rows exceed twice pg_trickle.differential_max_change_ratio = 0.15",
        fallback=True,
    )
    assert decide(replace(many, requested_mode="DIFFERENTIAL"), SETTINGS, SIZES).action is Action.DIFFERENTIAL


def test_changes_of_several_sources_concern_more_of_what_they_are_joined_to() -> None:
    sizes = Sizes({oid: 100_000 for oid in range(1, 6)})
    joined = [
        with_capture(sources=tuple(replace(ORDERS, oid=i, pending=10_000) for i in range(1, n + 1))) for n in (3, 4)
    ]
    assert decide(joined[0], SETTINGS, sizes).action is Action.DIFFERENTIAL  # 1 - 0.95 ** 3 = 0.14
    decision = decide(joined[1], SETTINGS, sizes)
    assert decision.action is Action.FULL and decision.fallback
    assert "in 4 of 4 sources, concern about 0.19 of what is made of them, more than pg_trickle.diff" in decision.reason
    united = replace(joined[1], canonical_query="SELECT a.x FROM a UNION ALL SELECT b.x FROM b")
    assert decide(united, SETTINGS, sizes).action is Action.DIFFERENTIAL
    few = with_capture(sources=(replace(ORDERS, pending=20_000), replace(ORDERS, oid=2, pending=0)))
    assert decide(few, SETTINGS, sizes).action is Action.DIFFERENTIAL


SLOW = AppliedChanges(2_000, 400.0)


def test_a_differential_refresh_slower_than_full_is_remembered_and_tried_again_some_day() -> None:
    context = with_changes(2_000)
    decision = decide(context, SETTINGS, SIZES)
    assert learned_threshold(context, decision, SIZES, duration_ms=120.0, before=SLOW) is None
    threshold = learned_threshold(context, decision, SIZES, duration_ms=400.0, before=SLOW)
    assert threshold == pytest.approx(0.005)

    for _ in range(20):
        context = with_threshold(context, threshold)
        decision = decide(context, SETTINGS, SIZES)
        if decision.action is Action.DIFFERENTIAL:
            break
        assert decision.fallback and "slower to apply than a full refresh of 100 ms" in decision.reason
        threshold = learned_threshold(context, decision, SIZES, duration_ms=100.0, before=SLOW)
    assert decision.action is Action.DIFFERENTIAL
    assert decide(with_threshold(with_changes(100), 0.005), SETTINGS, SIZES).action is Action.DIFFERENTIAL


@pytest.mark.parametrize(
    "before", [None, AppliedChanges(2_000, 120.0), AppliedChanges(1_000, 249.0), AppliedChanges(4_001, 9_000.0)]
)
def test_one_slow_refresh_may_have_been_slow_by_chance(before: AppliedChanges | None) -> None:
    context = with_changes(2_000)
    decision = decide(context, SETTINGS, SIZES)
    assert may_teach(context, decision, 30_000.0) and not may_teach(context, decision, 249.0)
    assert learned_threshold(context, decision, SIZES, duration_ms=30_000.0, before=before) is None
    # Of what was given up on the way it is known.
    given_up = learned_threshold(context, decision, SIZES, duration_ms=30_000.0, given_up=True, before=before)
    assert given_up == pytest.approx(0.005)


def test_a_full_refresh_that_takes_as_long_has_changes_applied_again() -> None:
    context = with_threshold(with_changes(2_000), 0.005)
    decision = decide(context, SETTINGS, SIZES)
    assert decision.action is Action.FULL and may_teach(context, decision, 1.0)
    # The table was small when a full refresh was last timed, and has grown.
    threshold = learned_threshold(context, decision, SIZES, duration_ms=300.0, before=SLOW)
    assert threshold == pytest.approx(0.02)
    assert decide(with_threshold(context, threshold), SETTINGS, SIZES).action is Action.DIFFERENTIAL
    for before in (None, AppliedChanges(999, 400.0), AppliedChanges(2_000, 100.0), AppliedChanges(2_000, 500.0)):
        raised = learned_threshold(context, decision, SIZES, duration_ms=300.0, before=before)
        assert raised == pytest.approx(0.0055)


def test_few_changes_and_a_mode_that_insists_on_them_are_never_estimated() -> None:
    assert not may_be_dear(with_changes(1_000))
    assert may_be_dear(with_changes(1_001))
    assert not may_be_dear(with_changes(1_000_000, requested_mode="DIFFERENTIAL"))


def test_a_quick_differential_refresh_proves_that_twice_as_many_changes_are_not_slow() -> None:
    context = with_changes(4_000)
    assert not is_proven(context, None)
    assert is_proven(context, AppliedChanges(2_000, 249.0))
    assert not is_proven(context, AppliedChanges(1_999, 1.0))
    assert not is_proven(context, AppliedChanges(4_000, 251.0))
    assert is_proven(with_full_ms(context, 1_000.0), AppliedChanges(4_000, 1_499.0))


def test_changes_of_a_far_greater_estimated_cost_are_computed_in_full() -> None:
    context = with_changes(4_000)
    assert decide_by_cost(context, 100_100.4, 1_000.0) == Decision(
        Action.FULL,
        "to apply 4000 changed row images has an estimated cost of 100100 against 1000 of a full refresh",
        fallback=True,
        estimated=True,
    )
    assert decide_by_cost(context, 100_000.0, 1_000.0) is None


def test_changes_that_the_time_limit_would_spare_are_applied_whatever_their_cost() -> None:
    quick = with_full_ms(with_changes(4_000), 10.0)
    assert decide_by_cost(quick, 200_000.0, 1_000.0) is None
    assert decide_by_cost(quick, 200_001.0, 1_000.0) is not None
    assert decide_by_cost(with_full_ms(quick, None), 100_001.0, 1_000.0) is not None


def test_nothing_is_learned_from_an_estimate() -> None:
    context = with_threshold(with_changes(4_000), 0.5)
    decision = decide_by_cost(context, 1_000_000.0, 1_000.0)
    assert decision is not None
    assert learned_threshold(context, decision, SIZES, duration_ms=9_000.0) is None
