"""Whether a stream table can go from its query to another one by what differs, as it follows changes of its sources."""

from __future__ import annotations

from dataclasses import dataclass, replace

from catalog.pinned_settings import PINNED_PATH
from catalog.session import SqlError, SqlSession
from catalog.values import RefreshMode
from engine.compile.compiled_query import CompiledQuery, compiled_query
from engine.compile.pool import TooComplex, compilers
from engine.refresh.estimated_costs import DATA_EXCEPTION, estimated_rows
from engine.requests.create import Defined
from engine.session.transactions import savepoint, set_role
from engine.stream_tables.analysis import define
from engine.stream_tables.plan_inputs import PlanInputs, compiled, described
from engine.stream_tables.refresh_state import RefreshContext
from engine.stream_tables.storage_columns import ColumnChanges
from sql import NotDifferentiable, jobs

FEW_ROWS = 10_000
"""In which filters may always differ: what takes milliseconds need not be chosen."""

_RATIO = "SELECT pgtrickle._setting('pg_trickle.differential_max_change_ratio', '0.15')::pg_catalog.float8"


class AllDiffers(Exception):
    """All rows have to be computed; the message is the reason, which the history shows to everybody."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """By which a stream table goes from its query to another one: `CompiledQuery.refresh_sql` of ``plan``."""

    plan: CompiledQuery
    what: str
    """What differs, in words."""
    _known: dict[int, frozenset[str]]
    """The columns of each source whose changes have been captured for the query until now."""

    def lacks(self, found: RefreshContext) -> bool:
        """Whether changes are pending that lack a column which only the new query reads."""
        return any(
            source.pending and not self._known.get(source.oid, frozenset()) >= {*self.plan.used_columns[source.oid]}
            for source in found.capture.sources
            if source.oid in self.plan.used_columns
        )


async def exchange(
    session: SqlSession,
    context: RefreshContext,
    old: PlanInputs,
    defined: Defined,
    changes: tuple[ColumnChanges, ColumnChanges],
) -> Exchange:
    """By which a locked stream table goes from its query, planned from `old`, to another one, with these `changes` of
    its user's columns and of the hidden ones.

    Raises AllDiffers, SqlError.
    """
    _check_state(context, old, defined)
    user, hidden = changes
    if user.retyped or user.moved or hidden.added or hidden.retyped:
        raise AllDiffers("columns have another type or place, or its rows are stored otherwise")
    async with set_role(session, context.owner, current=context.caller):
        before = await define(session, old.canonical, PINNED_PATH)
        if before.functions_of("s") or defined.definition.functions_of("s"):
            raise AllDiffers("a stable function may have another value now than in what is stored")
        plan = await _planned(session, old, defined.inputs)
    former, later = await compiled(old), await compiled(defined.inputs)
    kept = [{column.name for column in each.columns if column.hidden} for each in (former, later)]
    alike = former.told_apart == later.told_apart == plan.told_apart and later.columns == plan.columns
    if not alike or not kept[1] <= kept[0]:
        raise AllDiffers("rows are told apart otherwise, or stored otherwise")
    await _check_size(session, context, plan, old, defined)
    found = ["rows that only one of the filters lets through"] * plan.refiltered
    found += ["columns that go, for which no row is computed"] * bool(user.dropped)
    found += ["columns that are new, which alone are computed for rows that stay"] * bool(user.added)
    known = {oid: frozenset(columns) for oid, columns in former.used_columns.items()}
    return Exchange(plan, " and ".join(found) or "no row", known)


async def _planned(session: SqlSession, old: PlanInputs, new: PlanInputs) -> CompiledQuery:
    """The new query in the place of the old one. Raises AllDiffers, SqlError."""
    query = replace(new.query, before=old.canonical)
    try:
        types = tuple((await described(session, query)).items())
        return await compiled_query(replace(query, answers=types))
    except NotDifferentiable as reason:
        raise AllDiffers(reason.construct) from reason
    except TooComplex as reason:
        raise AllDiffers("the change is too complex") from reason


async def _check_size(
    session: SqlSession, context: RefreshContext, plan: CompiledQuery, old: PlanInputs, defined: Defined
) -> None:
    """Raises AllDiffers where the filters are estimated to differ in so many rows that all are computed sooner."""
    if not plan.refiltered:
        return
    texts = await compilers().run(jobs.rows_read, old.canonical, defined.definition.canonical)
    try:
        async with savepoint(session):
            former, later, both = [await estimated_rows(session, context, text) for text in texts]
            ((ratio,),) = await session.fetch(_RATIO)
    except SqlError as error:
        if not error.sqlstate.startswith(DATA_EXCEPTION):  # of a constant that the planner computes
            raise
        return
    moved = former + later - 2 * both
    if moved > max(FEW_ROWS, 2 * ratio * max(former, later)):
        raise AllDiffers(
            f"the filters differ in about {moved:.0f} of {max(former, later):.0f} rows, more than twice"
            f" pg_trickle.differential_max_change_ratio = {ratio}"
        )


def _check_state(context: RefreshContext, old: PlanInputs, defined: Defined) -> None:
    """Raises AllDiffers where what is stored is no state to go on from."""
    if not context.is_populated or context.capture.frontier is None:
        raise AllDiffers("it is not populated")
    if context.needs_reinit or context.capture.broken or context.outdated:
        raise AllDiffers("it was to be computed anew in any case")
    if context.refresh_mode != RefreshMode.DIFFERENTIAL or defined.mode != RefreshMode.DIFFERENTIAL:
        raise AllDiffers("it is, or was, computed as a whole at each refresh")
    if context.capture.polled or defined.copies:
        raise AllDiffers("foreign tables that are polled are copied anew")
    _check_sources(old, defined.inputs)


def _check_sources(old: PlanInputs, new: PlanInputs) -> None:
    """Raises AllDiffers unless both read the same tables and functions."""
    sources = [{(source.oid, source.key) for source in inputs.sources} for inputs in (old, new)]
    if sources[0] != sources[1] or {*old.views} != {*new.views}:
        raise AllDiffers("it reads other tables")
    if old.special != new.special:
        raise AllDiffers("its functions are others")
