"""How a stream table will be refreshed this time, and why."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from catalog.values import Action, Engine, Executor, RefreshMode
from engine.stream_tables.refresh_state import RefreshContext


class FailurePolicy(StrEnum):
    """What becomes of a refresh that Spark has failed at (`pg_trickle.spark_failure_policy`)."""

    RETRY = "retry"
    POSTGRES = "postgres"
    ERROR = "error"


FEW_ROWS = 1000
"""Below this many rows a ratio of changes says little."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows a full refresh would read of each source, as estimated."""

    rows: Mapping[int, int] = field(default_factory=dict)
    """By OID."""
    others: int = 0
    """Of a source that is not among them."""

    @property
    def total(self) -> int:
        """Of all of them."""
        return sum(self.rows.values())


NO_ROWS, MANY_ROWS = Sizes(), Sizes(others=1 << 60)

SLOWER, SLOW_MS = 1.5, 250.0
"""A differential refresh is too slow if it takes so many times a full one's time, and so many milliseconds."""


TOO_SLOW, LEAST_LIMIT_MS = 10.0, 2000.0
"""A differential refresh is given up after so many times the last full one's time, and so many milliseconds."""


DEARER = 100.0
"""A differential refresh is not begun if its estimated cost is so many times that of a full one.

The margin is wider than `TOO_SLOW`, since the planner has no statistics of what a delta is made from: a correlated
subquery was estimated at 23 times the full cost and took 0.7 times its time, a recursion at 81 times and took 2.3.
"""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a stream table will be refreshed, and why."""

    action: Action
    reason: str
    fallback: bool = False
    """True if a differential stream table is refreshed in full this time."""
    estimated: bool = False
    """True if it rests on the planner's estimate, from which nothing is learned."""


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """An earlier differential refresh: how many captured changes it found, and what it took."""

    changes: int
    duration_ms: float


@dataclass(frozen=True, slots=True)
class RefreshSettings:
    """The `pg_trickle.*` settings that a refresh looks at."""

    engine: Engine = Engine.AUTO
    spark_min_rows: int = 100_000
    max_change_ratio: float = 0.15
    spark_failure_policy: FailurePolicy = FailurePolicy.RETRY
    spark_timeout: float = 3600.0
    """Seconds; 0 is no limit."""
    spark_parallel_rows: int = 1_000_000
    foreign_table_polling: bool = False
    statement_timeout: float = 0.0
    """Milliseconds after which PostgreSQL ends a statement of the session; 0 is never."""


def is_fresh(context: RefreshContext) -> bool:
    """True if there is nothing to do: populated, trusted, and no change since the frontier."""
    return (
        context.is_populated
        and context.capture.frontier is not None
        and not context.capture.broken
        and not context.needs_reinit
        and context.computed_whole is None
        and not context.capture.pending
        and all(source.captured for source in context.capture.sources)
        and not (context.one_snapshot and context.capture.late)
    )


def whole_action(context: RefreshContext) -> Action:
    """What a refresh that computes all rows does: it begins anew where what is there is not to be gone on from."""
    anew = context.is_populated and (context.capture.broken or context.needs_reinit)
    return Action.REINITIALIZE if anew and context.capture.frontier is not None else Action.FULL


def decide(context: RefreshContext, settings: RefreshSettings, sizes: Sizes) -> Decision:
    """Choose what to do. A full refresh of a differential stream table always has a reason."""
    if not context.is_populated or context.capture.frontier is None:
        return Decision(Action.FULL, "not populated yet")
    if context.capture.broken:
        return Decision(Action.REINITIALIZE, "; ".join(context.capture.broken), fallback=True)
    if context.needs_reinit:
        return Decision(Action.REINITIALIZE, "marked for reinitialisation", fallback=True)
    if context.computed_whole is not None:
        return Decision(Action.FULL, context.computed_whole, fallback=True)
    if is_fresh(context):
        return Decision(Action.NO_DATA, "no changes")
    if context.refresh_mode in (RefreshMode.FULL, RefreshMode.IMMEDIATE):
        return Decision(Action.FULL, f"refresh mode {context.refresh_mode}")
    unusable = _not_incremental(context, settings)
    if unusable is not None:
        return Decision(Action.FULL, unusable, fallback=True)
    too_many = None if context.requested_mode == RefreshMode.DIFFERENTIAL else _too_many(context, settings, sizes)
    if too_many is not None:
        return Decision(Action.FULL, too_many, fallback=True)
    return Decision(Action.DIFFERENTIAL, "changes are applied incrementally")


def _not_incremental(context: RefreshContext, settings: RefreshSettings) -> str | None:
    """Why the changes cannot be applied, few as they may be; None if they can."""
    if context.one_snapshot and context.capture.late:
        # The transaction will never see what is decoded after its snapshot was taken.
        return "the transaction's snapshot is older than what is captured from it"
    if context.capture.polled and not settings.foreign_table_polling:
        return "pg_trickle.foreign_table_polling is off"
    truncated = [source.name for source in context.capture.sources if source.truncated]
    return f'"{truncated[0]}" was truncated' if truncated else None


def _too_many(context: RefreshContext, settings: RefreshSettings, sizes: Sizes) -> str | None:
    """Why there are too many changes to apply them incrementally, None if there are not."""
    ratio = change_ratio(context, sizes)
    changes = f"{context.capture.pending} changed row images in about {sizes.total} rows"
    if _plain_ratio(context, sizes) > settings.max_change_ratio:
        return f"{changes} exceed twice pg_trickle.differential_max_change_ratio = {settings.max_change_ratio}"
    if ratio > settings.max_change_ratio:
        where = f"in {len(context.capture.changed)} of {len(context.capture.sources)} sources"
        limit = f"pg_trickle.differential_max_change_ratio = {settings.max_change_ratio}"
        return f"{changes}, {where}, concern about {ratio:.2f} of what is made of them, more than {limit}"
    if context.learned.auto_threshold is not None and ratio > context.learned.auto_threshold:
        full = f"a full refresh of {context.learned.last_full_ms or 0:.0f} ms"
        return f"{changes}: so many were slower to apply than {full}"
    return None


def depends_on_size(context: RefreshContext, settings: RefreshSettings) -> bool:
    """Whether what to do, or where, depends on how many rows a full refresh would read.

    The fewer rows the greater the ratio of changes, so what is differential for none is so for any number.
    """
    at_worst = decide(context, settings, NO_ROWS)
    if at_worst.action is Action.DIFFERENTIAL:
        return False
    if insisted_on(context.engine, settings) != Executor.POSTGRES:
        return True
    return decide(context, settings, MANY_ROWS).action is Action.DIFFERENTIAL


def insisted_on(engine: Engine, settings: RefreshSettings) -> Executor | None:
    """The executor that is to be used whatever the sizes are, None where these decide.

    `engine` is the stream table's own setting, which wins over `settings.engine`.
    """
    chosen = engine if engine != Engine.AUTO else settings.engine
    return None if chosen == Engine.AUTO else Executor(chosen)


_SETS = re.compile(r"\b(UNION|INTERSECT|EXCEPT)\b")


def change_ratio(context: RefreshContext, sizes: Sizes) -> float:
    """The part of the result that changes concern, as far as the sizes tell.

    A row that is made of a row of each source stays as it is if none of these has changed: of sources of which a tenth
    has changed each, two concern 0.19 and five 0.41 of what they are joined to. That can be more than the part of all
    rows that has changed, and is not less. Of a query with set operations it is not known that it joins its sources.
    """
    plain = _plain_ratio(context, sizes)
    if _SETS.search(context.canonical_query):
        return plain
    sources = context.capture.sources
    same = math.prod(1 - min(1.0, _ratio(source.pending, _rows(sizes, source.oid))) for source in sources)
    return max(1 - same, plain)


def _rows(sizes: Sizes, source: int) -> int:
    return sizes.rows.get(source, sizes.others)


def _ratio(pending: int, rows: int) -> float:
    """Changed rows for each row. An update is captured as two rows, its old and its new image."""
    return pending / (2 * max(rows, FEW_ROWS))


def _plain_ratio(context: RefreshContext, sizes: Sizes) -> float:
    """Changed rows for each row of the sources."""
    return _ratio(context.capture.pending, sum(_rows(sizes, source.oid) for source in context.capture.sources))


def time_limit(context: RefreshContext, settings: RefreshSettings) -> float | None:
    """Milliseconds that applying the changes may take before all is computed instead, None for no limit.

    There is none where DIFFERENTIAL was asked for, and none where the session's own statement_timeout ends it earlier.
    """
    if context.requested_mode == RefreshMode.DIFFERENTIAL or context.learned.last_full_ms is None:
        return None
    limit = max(TOO_SLOW * context.learned.last_full_ms, LEAST_LIMIT_MS)
    return None if 0 < settings.statement_timeout <= limit else limit


def may_be_dear(context: RefreshContext) -> bool:
    """Whether there are so many changes, and so free a choice, that their cost may be looked into.

    A refresh that applies few changes does not pay for an estimate.
    """
    return context.requested_mode != "DIFFERENTIAL" and context.capture.pending > FEW_ROWS


def is_proven(context: RefreshContext, last: AppliedChanges | None) -> bool:
    """Whether the last differential refresh shows that one of so many changes is not slow, without an estimate."""
    return last is not None and 2 * last.changes >= context.capture.pending and not _is_slow(context, last.duration_ms)


def decide_by_cost(context: RefreshContext, differential: float, full: float) -> Decision | None:
    """A full refresh, where to apply the changes is estimated to be far dearer; None where they are to be applied.

    The costs are PostgreSQL's, in units of its planner. The last full refresh tells what a unit takes: changes that
    would be applied within the shortest `time_limit` are. Where no full refresh was timed there is no such limit, and
    the costs alone decide.
    """
    if differential <= DEARER * full:
        return None
    if (
        context.learned.last_full_ms is not None
        and context.learned.last_full_ms * differential <= LEAST_LIMIT_MS * full
    ):
        return None
    costs = f"an estimated cost of {differential:.0f} against {full:.0f} of a full refresh"
    reason = f"to apply {context.capture.pending} changed row images has {costs}"
    return Decision(Action.FULL, reason, fallback=True, estimated=True)


def _is_slow(context: RefreshContext, duration_ms: float) -> bool:
    """Whether a differential refresh of this duration was clearly slower than the last full one."""
    return duration_ms > max(SLOWER * (context.learned.last_full_ms or math.inf), SLOW_MS)


def may_teach(context: RefreshContext, decision: Decision, duration_ms: float) -> bool:
    """Whether `learned_threshold` wants to know of the last differential refresh before this one."""
    if decision.action is Action.DIFFERENTIAL:
        return _is_slow(context, duration_ms)
    return _was_learned(context, decision)


def learned_threshold(
    context: RefreshContext,
    decision: Decision,
    sizes: Sizes,
    duration_ms: float,
    *,
    given_up: bool = False,
    before: AppliedChanges | None = None,
) -> float | None:
    """The new `auto_threshold` after a refresh, None where there is nothing to learn.

    A differential refresh that took clearly longer than the last full one lowers it below the present ratio of changes,
    if the one `before` it did so, too, for not many more changes: one alone may have been slow by chance. So does one
    that was given up. Each full refresh that this caused raises it a little, so that the next differential one is tried
    some day; at once, if by its own time the one before was not slow: a table that has grown since the full refresh
    before takes longer to be computed, too. An estimate teaches nothing.
    """
    if decision.estimated:
        return None
    ratio = change_ratio(context, sizes)
    if given_up:
        return ratio / 2
    if decision.action is Action.DIFFERENTIAL:
        known = before is not None and before.changes <= 2 * context.capture.pending
        again = before is not None and known and _is_slow(context, before.duration_ms)
        return ratio / 2 if again and _is_slow(context, duration_ms) else None
    if not _was_learned(context, decision):
        return None
    raised = (context.learned.auto_threshold or 0) * 1.1
    if before is None or 2 * before.changes < context.capture.pending or not _is_slow(context, before.duration_ms):
        return raised
    return max(raised, 2 * ratio) if before.duration_ms <= SLOWER * duration_ms else raised


def _was_learned(context: RefreshContext, decision: Decision) -> bool:
    """Whether a refresh was a full one by the threshold."""
    full = decision.fallback and decision.action is Action.FULL and not decision.estimated
    return full and context.learned.auto_threshold is not None


def settings_of(context: RefreshContext) -> RefreshSettings:
    """The settings, as the session, the database or the server sets them; `pgtrickle._setting` has checked them."""
    found = context.settings
    return RefreshSettings(
        Engine(found["engine"]),
        int(found["spark_min_rows"]),
        float(found["max_change_ratio"]),
        FailurePolicy(found["spark_failure_policy"]),
        float(found["spark_timeout"]),
        int(found["spark_parallel_rows"]),
        found.get("foreign_table_polling") == "on",
        float(found.get("statement_timeout", 0)),
    )
