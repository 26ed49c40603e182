"""Linear aggregate: the delta of an aggregate inside the tree, where nothing is stored, from what adds up.

For the touched groups the parts that the aggregates are made of (counts, sums, extrema) are computed from the rows of
now, once. What they were before is that less what the delta adds up to, so

    ΔQ(A) = result(parts(new(A))) - result(parts(new(A)) - parts(ΔA))

without putting together the old rows, which the general rule of `recompute_groups` does. Where all groups are read in
any case (the only one; those under a maximum of all) they are computed once, for the delta and for the new state.
Groups that are stored, as the first ones of a query are, need not be read at all, and those that the delta has computed
not again where somebody asks for the new state. A group goes back to the general rule where a difference is not exact:
with NaN or infinity among what is added, or if what has come is the extremum now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sql.base.columns import Field
from sql.base.text import all_of, any_of, derived, quote, select, union_all
from sql.operators.aggregates.accumulators import (
    COUNT,
    Accumulator,
    Maintained,
    auxiliaries,
    maintained,
    results,
    state,
)
from sql.operators.aggregates.cached_accumulators import (
    advance_accumulators,
    known,
    load_accumulators,
    save_accumulators,
)
from sql.operators.aggregates.recomputed_aggregate import RecomputedAggregate
from sql.operators.operator import Restriction, W, names
from sql.operators.plan import Plan
from sql.operators.semi_join_reduction import bounded


@dataclass(slots=True)
class _Memo:
    """What a statement holds of aggregates already, by node."""

    touched: dict[int, str] = field(default_factory=dict)
    """The common table expressions of touched groups."""
    stored: dict[int, tuple[str, str]] = field(default_factory=dict)
    """What is stored of groups, see `_added`."""
    groups: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    """What `all_groups` returns."""
    sums: dict[int, tuple[str, str]] = field(default_factory=dict)
    """What `sums` returns."""
    loaded: dict[int, str] = field(default_factory=dict)
    """The common table expressions of what the last refresh has handed on."""


def tell_stored(plan: Plan, aggregate: RecomputedAggregate, groups: str, complete: str) -> None:
    """Tell that a query, ``groups``, gives groups as they were at the frontier: all there were if ``complete``."""
    plan.memo(_Memo).stored[aggregate.node] = groups, complete


def addable(aggregate: RecomputedAggregate) -> tuple[Maintained, ...] | None:
    """What the aggregate's calls are made of, if all of it adds up exactly; else None."""
    parts = [maintained(call, i) for i, call in enumerate(aggregate.calls, 1)]
    known = tuple(part for part in parts if part is not None)
    exact = all(key.equality_is_identity and key.hashable for key in aggregate.keys)
    exact = exact and len(known) == len(parts) and all(a.before for a in auxiliaries(known))
    return known if exact else None


def delta_by_addition(aggregate: RecomputedAggregate, parts: Sequence[Maintained], plan: Plan) -> str:
    """The aggregate's delta; ``parts`` are what `addable` says."""
    keys, made_of = aggregate.keys, auxiliaries(parts)
    running = plan.facts.running.get(aggregate.node)
    if running is not None:
        return union_all(_difference(aggregate, parts, _touched_groups(aggregate, plan, running)))
    changes, summed = sums(aggregate, parts, plan)
    doubts = _doubts(made_of, plan)
    members = before = None
    if reads_all(aggregate, plan):
        every, members = all_groups(aggregate, parts, plan)
        before = plan.memo(_Memo).loaded.get(aggregate.node)
        now = _among(aggregate, made_of, every, summed, plan)
    else:
        now, members = _read(aggregate, parts, summed, plan, again=bool(doubts) and not _rare(made_of, plan))
    doubt, was = any_of(doubts), None
    if before:
        condition = known(plan.facts.remembered[aggregate.node])
        doubt, was = f"NOT {condition} AND {doubt}", (select(["*"], before), condition)
    both = _touched_groups(aggregate, plan, _beside(keys, made_of, now, summed, doubt, was))
    branches = _difference(aggregate, parts, both)
    if doubts and not before and not any(a.consolidated for a in made_of):
        plan.statement.violated(f"EXISTS ({select([], both, where=['__pgt_doubt'])})")
    # What is remembered leaves no doubt, and a usual statement is not valid without.
    if doubts and not (plan.usual and (before or _rare(made_of, plan))):
        branches.append(_doubtful(aggregate, plan, both, members, changes))
    return union_all(branches)


def _doubts(made_of: Sequence[Accumulator], plan: Plan) -> list[str]:
    """The conditions under which it is in doubt what a group was: an extremum that comes, and NaN or infinity."""
    possible = [a for a in made_of if a.consolidated or plan.target.special_numbers]
    return [f"coalesce({a.doubt}, FALSE)" for a in possible if a.doubt]


def _read(
    aggregate: RecomputedAggregate, parts: Sequence[Maintained], summed: str, plan: Plan, *, again: bool
) -> tuple[str, str]:
    """What the touched groups are made of now, from the input's rows, and these. ``again``: others may read them."""
    stored = plan.memo(_Memo).stored.get(aggregate.node)
    added, unknown = _added(aggregate, auxiliaries(parts), summed, *stored, plan) if stored else (None, summed)
    members = aggregate.input_new(plan, aggregate.at(unknown))
    if again:
        members = select(["*"], plan.cte(plan.fresh("members"), members))
    now = state(aggregate.keys, parts, members, grouped=aggregate.grouped)
    return (union_all([now, added]) if added else now), members


def _doubtful(aggregate: RecomputedAggregate, plan: Plan, both: str, members: str | None, changes: str) -> str:
    """The rows of groups in doubt, computed again. ``members`` are the input's rows, if they are cheap to repeat."""
    doubtful = plan.cte(plan.fresh("doubtful"), select(names(aggregate.keys), both, where=["__pgt_doubt"]))
    if members is None:
        members = aggregate.input_new(plan, aggregate.at(doubtful), rare=True)
    else:
        members = aggregate.within(plan, members, doubtful)
    again = select(["*"], plan.cte(plan.fresh("members"), members))
    return aggregate.recomputed(plan, doubtful, again, aggregate.within(plan, changes, doubtful, W))


def _among(aggregate: RecomputedAggregate, made_of: Sequence[Accumulator], every: str, summed: str, plan: Plan) -> str:
    """What the touched groups are made of now, among all groups."""
    only = aggregate.at(summed)
    if only is None:
        # Where nothing restricts the rows they are read only if there is a change at all.
        return select(["*"], every, where=[f"EXISTS (SELECT FROM {summed})"])
    columns = names(aggregate.keys) + [quote(a.name) for a in made_of]
    nullable = [key.name for key in aggregate.keys if not key.not_null]
    return plan.target.restricted(select(["*"], every), columns, only, nullable)


def _touched_groups(aggregate: RecomputedAggregate, plan: Plan, groups: str) -> str:
    """A CTE of touched groups: what they are made of, and were, and whether the latter is in doubt."""
    both = plan.cte(plan.fresh("groups"), groups)
    keys = aggregate.keys
    if keys and all(key.not_null and key.builtin for key in keys) and plan.target.one_statement:
        plan.memo(_Memo).touched[aggregate.node] = both
    return both


def _difference(aggregate: RecomputedAggregate, parts: Sequence[Maintained], both: str) -> list[str]:
    """The rows of touched groups that are not in doubt: those of now, and those of before."""
    keys, made_of = aggregate.keys, auxiliaries(parts)
    sure = ["NOT __pgt_doubt"]
    old_size = f"coalesce({both}.{former(Accumulator.size())}, 0)"
    alive, lived = ([f"{quote(COUNT)} > 0"], [f"{old_size} > 0"]) if aggregate.grouped else ([], [])
    if not aggregate.calls and aggregate.grouped:
        # A row that was there and still is has not changed.
        alive, lived = [*alive, f"{old_size} <= 0"], [*lived, f"coalesce({quote(COUNT)}, 0) <= 0"]
    new = select(names(keys) + [quote(a.name) for a in made_of], both, where=[*sure, *alive])
    old = select(names(keys) + [f"{former(a)} AS {quote(a.name)}" for a in made_of], both, where=[*sure, *lived])
    return [results(keys, parts, new, [f"1::bigint AS {W}"]), results(keys, parts, old, [f"-1::bigint AS {W}"])]


def known_groups(
    aggregate: RecomputedAggregate, parts: Sequence[Maintained], only: Restriction, plan: Plan
) -> tuple[str, Restriction] | None:
    """The groups of a restriction that the delta has computed already, as they are now, and the restriction to others.

    None if there is no such delta in the statement, or the restriction is not by whole keys.
    """
    both = plan.memo(_Memo).touched.get(aggregate.node)
    if both is None or {name for name, _ in only.pairs} != {key.name for key in aggregate.keys}:
        return None
    columns = names(aggregate.keys) + [quote(a.name) for a in auxiliaries(parts)]
    groups = select(columns, both, where=["NOT __pgt_doubt", f"{quote(COUNT)} > 0"])
    same = [f"g.{quote(name)} = k.{quote(key.name)}" for name, key in only.pairs]
    known = select([], f"{both} AS g", where=["NOT g.__pgt_doubt", *same])
    others = select(["k.*"], f"{only.relation} AS k", where=[f"NOT EXISTS ({known})"])
    return plan.target.restricted(groups, columns, only), Restriction(
        plan.cte(plan.fresh("others"), others), only.pairs
    )


def in_view(aggregate: RecomputedAggregate) -> Field | None:
    """The column that says all that a group is made of: a count of its rows, if nothing else is computed."""
    parts = addable(aggregate)
    sure = all(key.not_null for key in aggregate.keys) and bool(aggregate.keys)
    if not (parts and sure and [a.name for a in auxiliaries(parts)] == [COUNT]):
        return None
    return next((part.call.column for part in parts if part.final == quote(COUNT)), None)


def _added(
    aggregate: RecomputedAggregate, made_of: Sequence[Accumulator], summed: str, groups: str, complete: str, plan: Plan
) -> tuple[str, str]:
    """What touched groups are made of now, of those whose former state is stored; and a CTE of the others' keys.

    ``groups`` is a query for stored groups; if ``complete`` is true, there were no others.
    """
    keys = names(aggregate.keys)
    same = all_of([f"s.{key} = d.{key}" for key in keys])
    known = plan.cte(
        plan.fresh("known"),
        select(
            [
                *(f"d.{key}" for key in keys),
                *(f"{a.merge} AS {quote(a.name)}" for a in made_of),
                f"s.{keys[0]} IS NOT NULL OR {complete} AS __pgt_known",
            ],
            f"{summed} AS d LEFT JOIN {derived(groups, 's')} ON {same}",
        ),
    )
    others = plan.cte(plan.fresh("unknown"), select(keys, known, where=["NOT __pgt_known"]))
    return select([*keys, *(quote(a.name) for a in made_of)], known, where=["__pgt_known"]), others


def reads_all(aggregate: RecomputedAggregate, plan: Plan) -> bool:
    """Whether a refresh needs all groups as they are now: the only one, or those that the only one above is made of.

    Without a change only what is remembered is needed to know them.
    """
    needed = not aggregate.keys or aggregate.node in plan.facts.whole
    known_before = aggregate.node in plan.facts.remembered
    return needed and (known_before or aggregate.changed(plan)) and plan.target.one_statement


def all_groups(aggregate: RecomputedAggregate, parts: Sequence[Maintained], plan: Plan) -> tuple[str, str | None]:
    """What all groups are made of now, computed once in a statement: a CTE. And the input's rows, if it is cheap."""
    done = plan.memo(_Memo).groups.get(aggregate.node)
    if done is None:
        keys, made_of = aggregate.keys, auxiliaries(parts)
        name = plan.facts.remembered.get(aggregate.node)
        rows = aggregate.input.new(plan)
        if not keys and any(a.consolidated for a in made_of):
            # An extremum that goes or comes asks for them once more.
            rows = select(["*"], plan.cte(plan.fresh("members"), rows))
        if name is None:
            now = state(keys, parts, rows, grouped=aggregate.grouped)
        else:
            before = plan.memo(_Memo).loaded[aggregate.node] = load_accumulators(plan, name, keys, made_of)
            summed = sums(aggregate, parts, plan)[1] if aggregate.changed(plan) else None
            now = advance_accumulators(plan, name, before, summed, aggregate, parts, rows)
        every = plan.cte(plan.fresh("all"), now)
        if name is not None:
            plan.statement.memory[name] = save_accumulators(every, keys, made_of)
        done = plan.memo(_Memo).groups[aggregate.node] = every, None if keys else rows
    return done


def sums(aggregate: RecomputedAggregate, parts: Sequence[Maintained], plan: Plan) -> tuple[str, str]:
    """The changes of the input, a query that is cheap to repeat, and a CTE of what they add up to by group."""
    done = plan.memo(_Memo).sums.get(aggregate.node)
    if done is None:
        keys = names(aggregate.keys)
        changes = select(["*"], plan.cte(plan.fresh("changes"), bounded(plan, aggregate, aggregate.input.delta(plan))))
        summed = select(
            keys + [f"{part.sql} AS {quote(part.name)}" for a in auxiliaries(parts) for part in a.delta],
            derived(changes, "d"),
            group_by=keys or None,
            having=["pg_catalog.count(*) > 0"],
        )
        done = plan.memo(_Memo).sums[aggregate.node] = changes, plan.cte(plan.fresh("summed"), summed)
    return done


def _rare(made_of: Sequence[Accumulator], plan: Plan) -> bool:
    """Whether nothing but NaN and infinity can make a group doubtful, and the statement is not for such."""
    return plan.usual and not any(a.consolidated for a in made_of)


def _padded(values: Mapping[str, Sequence[str]], numbered: Mapping[str, Sequence[str]]) -> list[str]:
    """The columns of all sides by their numbers: of one side its values, of the others NULLs."""
    return [pair for side, theirs in numbered.items() for pair in _as(values[side], theirs)]


def _of(alias: str, columns: Sequence[str]) -> list[str]:
    return [f"{alias}.{column}" for column in columns]


def _side(alias: str, columns: Sequence[str], numbers: Sequence[str]) -> str:
    """An item of FROM beside the groups: the columns of one side under their names again."""
    return f"LATERAL ({select(_as(_of('g', numbers), columns))}) AS {alias}"


def _largest(keys: Sequence[Field], rows: str, columns: Sequence[str]) -> str:
    """The one value of each column in the rows of a key that is not NULL."""
    values = [f"pg_catalog.max({name}) AS {name}" for name in columns]
    return select([*names(keys), *values], derived(rows, "p"), group_by=names(keys) if keys else None)


def _beside(
    keys: Sequence[Field],
    made_of: Sequence[Accumulator],
    now: str,
    summed: str,
    doubt: str,
    before: tuple[str, str] | None,
) -> str:
    """For each touched group its parts now and before.

    ``before`` are the groups that there were, and a condition under which this is known.

    The sides are put side by side by grouping, which other than a join is never quadratic, however wrong PostgreSQL
    is about the number of groups.
    """
    here = [quote(a.name) for a in made_of]
    deltas = [quote(part.name) for a in made_of for part in a.delta]
    sides = [("n", here, derived(now, "n")), ("d", deltas, summed)]
    sides += [("b", here, derived(before[0], "b"))] if before else []
    numbered = {alias: [f"{alias}{i}" for i in range(len(columns))] for alias, columns, _ in sides}
    absent = {alias: ["NULL"] * len(columns) for alias, columns, _ in sides} | {
        "b": [f"NULL::{a.type}" for a in made_of]  # Two NULLs without a type make a text.
    }
    pieces = [
        select([*names(keys), *_padded({**absent, alias: columns}, numbered)], rows) for alias, columns, rows in sides
    ]
    grouped = _largest(keys, union_all(pieces), [name for some in numbered.values() for name in some])
    laterals = [_side(alias, columns, numbered[alias]) for alias, columns, _ in sides]
    was = [f"{_was(a, before and before[1])} AS {former(a)}" for a in made_of]
    return select(
        [*_of("g", names(keys)), *_of("n", here), *was, f"{doubt} AS __pgt_doubt"],
        " CROSS JOIN ".join([derived(grouped, "g"), *laterals]),
        where=[f"d.{quote(COUNT)} IS NOT NULL"],
    )


def _as(values: Sequence[str], columns: Sequence[str]) -> list[str]:
    return [f"{value} AS {column}" for value, column in zip(values, columns, strict=True)]


def _was(auxiliary: Accumulator, condition: str | None) -> str:
    """What a part of a group was: remembered if a condition is true."""
    computed = str(auxiliary.before)
    return f"CASE WHEN {condition} THEN b.{quote(auxiliary.name)} ELSE {computed} END" if condition else computed


def former(auxiliary: Accumulator) -> str:
    """The column of what a part of a group was."""
    return quote(f"{auxiliary.name}_before")
