"""Where a refresh is computed: a pure function of the settings, the estimate and what was seen before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalog.session import SqlError
from catalog.values import Action
from engine.refresh.executor_choice import (
    Choice,
    Cost,
    SparkFailure,
    SparkFallback,
    by_policy,
    choose,
    learn,
    learned_costs,
)
from engine.refresh.policy import RefreshSettings
from engine.stream_tables.refresh_state import Learned, RefreshContext
from tests.engine.refresh.test_policy import CONTEXT

SETTINGS = RefreshSettings(spark_min_rows=100_000)
SLOW_IN_POSTGRES = {"postgres": Cost(ms_per_row=0.5, rows=20_000, refreshes=3)}


def context(**changes: object) -> RefreshContext:
    return replace(CONTEXT, **changes)


@pytest.mark.parametrize(
    ("engine", "setting", "rows", "costs", "executor"),
    [
        ("auto", "auto", 99_999, {}, "postgres"),
        ("auto", "auto", 100_000, {}, "spark"),
        ("auto", "postgres", 10**9, {}, "postgres"),
        ("auto", "spark", 1, {}, "spark"),
        ("postgres", "spark", 10**9, {}, "postgres"),
        ("spark", "postgres", 1, {}, "spark"),
        # PostgreSQL took 10 s: Spark is tried, though the rows are few.
        ("auto", "auto", 20_000, SLOW_IN_POSTGRES, "spark"),
        # So it took, but the rows are much fewer now.
        ("auto", "auto", 200, SLOW_IN_POSTGRES, "postgres"),
        # An unknown Spark is not tried for what PostgreSQL does as fast as usual.
        ("auto", "auto", 20_000, {"postgres": Cost(0.005, 20_000)}, "postgres"),
        # Spark took 20 s for many rows, which PostgreSQL has not tried.
        ("auto", "auto", 200_000, {"spark": Cost(0.1, 200_000)}, "postgres"),
        ("auto", "auto", 200_000, {"spark": Cost(0.005, 200_000)}, "spark"),
        # Both are known.
        ("auto", "auto", 200_000, {"spark": Cost(0.1, 200_000), "postgres": Cost(0.2, 200_000)}, "spark"),
        ("auto", "auto", 200_000, {"spark": Cost(0.1, 200_000), "postgres": Cost(0.01, 200_000)}, "postgres"),
        # Spark may be a little slower: the database is for its clients.
        ("auto", "auto", 200_000, {"spark": Cost(0.014, 200_000), "postgres": Cost(0.01, 200_000)}, "spark"),
        # Its time does not shrink with the rows.
        ("auto", "auto", 10_000, {"spark": Cost(0.1, 200_000), "postgres": Cost(0.2, 200_000)}, "postgres"),
    ],
)
def test_executor_of_a_refresh(engine: str, setting: str, rows: int, costs: dict[str, Cost], executor: str) -> None:
    settings = RefreshSettings(engine=setting, spark_min_rows=100_000)
    assert choose(engine, rows, settings, costs).executor == executor


def test_no_threshold_means_spark_whatever_was_seen() -> None:
    costs = {"spark": Cost(9.0, 100), "postgres": Cost(0.001, 100)}
    assert choose("auto", 5, RefreshSettings(spark_min_rows=0), costs).executor == "spark"


def test_reason_gives_estimate_and_what_was_expected_of_both() -> None:
    assert choose("auto", 20_000, SETTINGS, SLOW_IN_POSTGRES) == Choice(
        "spark",
        "about 20000 rows to read; 10000 ms expected in PostgreSQL (seen 3 times), 500 ms on Spark (never seen)",
    )


def test_executor_that_turned_out_slow_is_tried_again_some_day() -> None:
    costs = {"postgres": Cost(0.01, 200_000), "spark": Cost(0.03, 200_000)}
    chosen = []
    for _ in range(60):
        chosen.append(choose("auto", 200_000, SETTINGS, costs).executor)
        costs = learn(costs, chosen[-1], 200_000, 200_000 * (0.01 if chosen[-1] == "postgres" else 0.03))
    assert chosen[0] == "postgres"
    assert 1 <= chosen.count("spark") <= 5


def test_costs_follow_the_newest_refreshes() -> None:
    costs = learn({}, "postgres", 1000, 1000.0)
    assert costs == {"postgres": Cost(1.0, 1000)}
    for _ in range(10):
        costs = learn(costs, "postgres", 2000, 200.0)
    assert costs["postgres"].ms_per_row == pytest.approx(0.1, abs=0.01)
    assert costs["postgres"].rows == pytest.approx(2000, abs=10)
    assert costs["postgres"].refreshes == 11


def test_full_and_differential_refreshes_are_learned_apart() -> None:
    st = context()
    full = learned_costs(st, SETTINGS, Action.REINITIALIZE, "spark", 2000, 100.0)
    assert full == {"FULL": {"spark": {"ms_per_row": 0.05, "rows": 2000, "refreshes": 1}}}
    both = learned_costs(
        context(learned=Learned(executor_costs=full)), SETTINGS, Action.DIFFERENTIAL, "postgres", 2000, 10.0
    )
    assert both is not None
    assert both["FULL"] == full["FULL"]
    assert list(both["DIFFERENTIAL"]) == ["postgres"]


def test_nothing_is_learned_from_few_rows_or_where_there_is_no_choice() -> None:
    assert learned_costs(context(), SETTINGS, Action.FULL, "postgres", 999, 5.0) is None
    assert learned_costs(context(engine="spark"), SETTINGS, Action.FULL, "spark", 10**6, 5.0) is None
    assert learned_costs(context(), RefreshSettings(engine="postgres"), Action.FULL, "postgres", 10**6, 5.0) is None
    assert learned_costs(context(), SETTINGS, Action.NO_DATA, "postgres", 10**6, 5.0) is None


@pytest.mark.parametrize(
    ("policy", "engine", "outcome"),
    [
        ("retry", "auto", SparkFallback),
        ("retry", "spark", SparkFailure),
        ("postgres", "auto", SparkFallback),
        ("postgres", "spark", SparkFallback),
        ("error", "auto", SparkFailure),
        ("error", "spark", SparkFailure),
    ],
)
def test_policy_decides_what_a_failed_spark_means(policy: str, engine: str, outcome: type[Exception]) -> None:
    error = SqlError("58000", "Spark was lost in the middle of a job")
    result = by_policy(error, context(engine=engine), RefreshSettings(spark_failure_policy=policy))
    assert type(result) is outcome
    assert "58000: Spark was lost" in result.alert


def test_alert_does_not_quote_a_failed_job() -> None:
    fell = SparkFallback(SqlError("38000", "Spark job failed: cannot cast 'secret'"))
    assert fell.alert == "Spark failed (38000); computed by PostgreSQL instead"
