"""Where a refresh is computed: on Spark from the mirror, or in PostgreSQL; and what happens if Spark fails.

In `auto` the rows that the refresh must read decide at first (`pg_trickle.spark_min_rows`). What each executor then
takes for a row is kept with the stream table, for full and differential refreshes apart, and decides from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from catalog.session import SqlError, SqlSession
from catalog.values import Action, Engine, Executor
from engine.foreign_tables.lake_polling import LakeReader
from engine.refresh.policy import FEW_ROWS, SLOW_MS, FailurePolicy, RefreshSettings, insisted_on
from engine.stream_tables.plan_inputs import PlanInputs
from engine.stream_tables.refresh_state import RefreshContext

ORDINARY_MS = 0.005
"""Milliseconds for a row, of an executor that has not been seen at work."""

FAVOUR = 1.5
"""Spark may take so many times PostgreSQL's time: the database is for its clients."""

NEWEST = 0.5
"""Weight of the newest refresh in what is remembered of an executor."""

FORGETTING = 0.97
"""By this the cost of the other executor is lowered at each refresh, so that it is tried again some day."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an executor has taken: milliseconds for each row to be read, by refreshes of about so many `rows`."""

    ms_per_row: float
    rows: float
    refreshes: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The executor of a refresh, and why."""

    executor: Executor
    reason: str


def choose(engine: Engine, estimated_rows: int, settings: RefreshSettings, costs: Mapping[str, Cost]) -> Choice:
    """Choose who computes a refresh that reads `estimated_rows`; `costs` are those of its kind, by executor.

    `engine` is the stream table's own setting, which wins over `settings.engine`.

    >>> settings = RefreshSettings(spark_min_rows=100_000)
    >>> str(choose(Engine.AUTO, 20_000, settings, {}).executor)
    'postgres'
    >>> str(choose(Engine.AUTO, 20_000, settings, {"postgres": Cost(ms_per_row=0.5, rows=20_000)}).executor)
    'spark'
    """
    executor = insisted_on(engine, settings)
    if executor is not None:
        return Choice(executor, f"engine is set to {executor}")
    size, limit = f"about {estimated_rows} rows to read", f"pg_trickle.spark_min_rows = {settings.spark_min_rows}"
    if settings.spark_min_rows == 0 or not costs:
        if estimated_rows < settings.spark_min_rows:
            return Choice(Executor.POSTGRES, f"{size}, fewer than {limit}")
        return Choice(Executor.SPARK, f"{size}, at least {limit}")
    in_postgres = _expected_ms(costs.get(Executor.POSTGRES), estimated_rows, 0)
    on_spark = _expected_ms(costs.get(Executor.SPARK), estimated_rows, settings.spark_min_rows)
    expected = (
        f"{size}; {in_postgres:.0f} ms expected in PostgreSQL ({_seen(costs.get(Executor.POSTGRES))}),"
        f" {on_spark:.0f} ms on Spark ({_seen(costs.get(Executor.SPARK))})"
    )
    worth_it = estimated_rows >= settings.spark_min_rows or in_postgres >= SLOW_MS
    return Choice(Executor.SPARK if worth_it and on_spark <= FAVOUR * in_postgres else Executor.POSTGRES, expected)


def _expected_ms(cost: Cost | None, rows: int, least: float) -> float:
    """Time for so many rows. Spark's is mostly fixed where they are few: `least` of them, or what was seen."""
    if cost is None:
        return ORDINARY_MS * max(rows, least)
    return cost.ms_per_row * (max(rows, cost.rows) if least else rows)


def _seen(cost: Cost | None) -> str:
    if cost is None:
        return "never seen"
    return f"seen {cost.refreshes} time{'s' if cost.refreshes > 1 else ''}"


def learn(costs: Mapping[str, Cost], executor: str, rows: int, ms: float) -> dict[str, Cost]:
    """The costs after a refresh by `executor` that was estimated to read `rows` and took `ms`."""
    found = {name: Cost(c.ms_per_row * FORGETTING, c.rows, c.refreshes) for name, c in costs.items()}
    sample, before = ms / max(rows, 1), costs.get(executor)
    if before is None:
        found[executor] = Cost(sample, rows)
    else:
        found[executor] = Cost(
            before.ms_per_row + NEWEST * (sample - before.ms_per_row),
            before.rows + NEWEST * (rows - before.rows),
            before.refreshes + 1,
        )
    return found


def kind(action: Action) -> Action:
    """Under which name the costs of an action are kept."""
    return Action.DIFFERENTIAL if action is Action.DIFFERENTIAL else Action.FULL


def costs_of(context: RefreshContext, action: Action) -> dict[str, Cost]:
    """What is known of the executors of a stream table's refreshes of that kind."""
    return {name: Cost(**cost) for name, cost in context.learned.executor_costs.get(kind(action), {}).items()}


def learned_costs(
    context: RefreshContext, settings: RefreshSettings, action: Action, executor: str, rows: int, ms: float
) -> dict[str, Any] | None:
    """The stream table's `executor_costs` after a refresh; None where there is nothing to learn from it."""
    if action is Action.NO_DATA or insisted_on(context.engine, settings) is not None or rows < FEW_ROWS:
        return None
    costs = learn(costs_of(context, action), executor, rows, ms)
    return {**context.learned.executor_costs, kind(action): {name: asdict(cost) for name, cost in costs.items()}}


def rows_of_changes(context: RefreshContext) -> int:
    """Rows that a differential refresh reads: the changes, and about one row of each other source for each."""
    return context.capture.pending * max(1, len(context.capture.sources))


@dataclass(frozen=True, slots=True)
class SparkRows:
    """Rows that Spark computed, in a staging table of the refreshing session. `cold` if Spark had to be started."""

    staging: str
    snapshot: str
    rows: int
    detail: str
    cold: bool = False
    release: Callable[[], None] = lambda: None
    """To be called when the rows have been applied, or not."""
    sql: str = ""
    """What Spark ran, to be shown."""


@dataclass(frozen=True, slots=True)
class SparkDelta:
    """The statement that applies changes computed by Spark, from staging tables of the refreshing session."""

    statement: str
    snapshot: str
    detail: str
    cold: bool = False
    release: Callable[[], None] = lambda: None
    """As that of SparkRows."""
    sql: str = ""
    """What Spark ran, to be shown."""


class NotOnSpark(Exception):
    """Spark cannot (or may not now) compute this query with PostgreSQL's results; the text says why."""


class SparkFallback(NotOnSpark):
    """Spark failed, and PostgreSQL shall do the refresh; `alert` is what those who listen are told."""

    def __init__(self, error: SqlError):
        self.alert = _alert(error, "computed by PostgreSQL instead")
        super().__init__(self.alert)


class SparkFailure(SqlError):
    """Spark failed, and so does the refresh; `alert` is what those who listen are told."""

    def __init__(self, error: SqlError, name: str):
        super().__init__(
            error.sqlstate,
            f'Spark failed to refresh stream table "{name}": {error.message}',
            detail=error.detail,
            hint=error.hint or "See pg_trickle.spark_failure_policy.",
        )
        self.alert = _alert(error, "not refreshed")


def _alert(error: SqlError, outcome: str) -> str:
    """Anybody can listen: without the message of a failed job, which can hold values of the sources."""
    said = {"58000": error.message, "58030": error.message, "57014": "the job took too long"}
    what = said.get(error.sqlstate, "")
    return f"Spark failed ({error.sqlstate}{': ' if what else ''}{what}); {outcome}"


class NoSpark:
    """In place of Spark where it is switched off or must not be used; says why."""

    def __init__(self, reason: str, lake: LakeReader | None = None):
        self._reason = reason
        self.lake = lake

    async def compute(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkRows:
        """Always raises NotOnSpark."""
        raise NotOnSpark(self._reason)

    async def compute_delta(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkDelta:
        """Always raises NotOnSpark."""
        raise NotOnSpark(self._reason)


class Spark(Protocol):
    """The Spark executor as a refresh sees it."""

    @property
    def lake(self) -> LakeReader | None:
        """Reads lake tables, which refreshes that Spark must not compute do as well."""
        ...

    async def compute(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkRows:
        """Compute the plan's core at a snapshot of `session` into a staging table of it.

        Raises NotOnSpark before anything was done to the session, SparkJobError if Spark failed.
        """
        ...

    async def compute_delta(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkDelta:
        """Compute from the changes since the frontier what a differential refresh applies, at a snapshot of `session`.

        Raises as `compute`.
        """
        ...


async def rows_from_spark(
    session: SqlSession,
    context: RefreshContext,
    plan: PlanInputs,
    settings: RefreshSettings,
    estimated_rows: int,
    spark: Spark,
) -> SparkRows:
    """Rows computed by Spark, where the settings and the sizes ask for it.

    Raises NotOnSpark where PostgreSQL shall compute; SqlError 0A000 where Spark is insisted on and cannot;
    SparkFailure (58000, 57014, 38000) where it failed and is insisted on, by the engine or by the policy.
    """
    choice = choose(context.engine, estimated_rows, settings, costs_of(context, Action.FULL))
    if choice.executor is Executor.POSTGRES:
        raise NotOnSpark(choice.reason)
    with _insisting(context, settings):
        rows = await spark.compute(session, context, plan)
    return replace(rows, detail=f"{choice.reason}; {rows.detail}")


async def delta_from_spark(
    session: SqlSession, context: RefreshContext, plan: PlanInputs, settings: RefreshSettings, spark: Spark
) -> SparkDelta:
    """What a differential refresh applies, computed by Spark where the settings and the changes ask for it.

    Raises as `rows_from_spark`.
    """
    costs = costs_of(context, Action.DIFFERENTIAL)
    choice = choose(context.engine, rows_of_changes(context), settings, costs)
    if choice.executor is Executor.POSTGRES:
        raise NotOnSpark(choice.reason)
    with _insisting(context, settings):
        delta = await spark.compute_delta(session, context, plan)
    return replace(delta, detail=f"{choice.reason}; {delta.detail}")


@contextmanager
def _insisting(context: RefreshContext, settings: RefreshSettings) -> Iterator[None]:
    """What becomes of a refresh that Spark cannot compute, or fails at."""
    try:
        yield
    except SparkJobError as failure:
        raise by_policy(failure.error, context, settings) from failure
    except NotOnSpark as reason:
        if insisted_on(context.engine, settings) is Executor.SPARK:
            raise SqlError("0A000", f'stream table "{context.name}" cannot be computed on Spark: {reason}') from reason
        raise


class SparkJobError(Exception):
    """Spark failed, after all tries; nothing was done to the refreshing session."""

    def __init__(self, error: SqlError):
        super().__init__(error.message)
        self.error = error


def by_policy(error: SqlError, context: RefreshContext, settings: RefreshSettings) -> Exception:
    """A SparkFallback or a SparkFailure, as `pg_trickle.spark_failure_policy` says."""
    insisted = settings.spark_failure_policy == FailurePolicy.ERROR or (
        settings.spark_failure_policy == FailurePolicy.RETRY and insisted_on(context.engine, settings) is Executor.SPARK
    )
    return SparkFailure(error, context.name) if insisted else SparkFallback(error)
