"""Addition: the delta of an aggregate inside the tree, where nothing is stored, from what adds up.

For the touched groups the parts that the aggregates are made of (counts, sums, extrema) are computed from the rows of
now, once. What they were before is that less what the delta adds up to, so

    ΔQ(A) = result(parts(new(A))) - result(parts(new(A)) - parts(ΔA))

without putting together the old rows, which the general rule of `rescan` does. A group goes back to that rule where a
difference is not exact: with NaN or infinity among what is added, or if what has come is the extremum now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..columns import Field
from ..plan import Plan
from ..render import any_of, derived, quote, select, union_all
from .auxiliaries import COUNT, Auxiliary, Maintained, auxiliaries, maintained, results, state
from .bound import bounded
from .operator import W, names

if TYPE_CHECKING:
    from .aggregate import Aggregate


def addable(aggregate: Aggregate) -> tuple[Maintained, ...] | None:
    """What the aggregate's calls are made of, if all of it adds up exactly; else None."""
    parts = [maintained(call, i) for i, call in enumerate(aggregate.calls, 1)]
    known = tuple(part for part in parts if part is not None)
    exact = all(key.faithful and key.hashable for key in aggregate.keys)
    exact = exact and len(known) == len(parts) and all(a.before for a in auxiliaries(known))
    return known if exact else None


def delta_by_addition(aggregate: Aggregate, parts: Sequence[Maintained], plan: Plan) -> str:
    """The aggregate's delta; ``parts`` are what `addable` says."""
    keys, made_of = aggregate.keys, auxiliaries(parts)
    changes = select(["*"], plan.cte(plan.fresh("changes"), bounded(plan, aggregate, aggregate.input.delta(plan))))
    summed = plan.cte(
        plan.fresh("summed"),
        select(
            names(keys) + [f"{part.sql} AS {quote(part.name)}" for a in made_of for part in a.delta],
            derived(changes, "d"),
            group_by=names(keys) if keys else None,
            having=["pg_catalog.count(*) > 0"],
        ),
    )
    members = aggregate.input_new(plan, aggregate.at(summed))
    doubts = [f"coalesce({a.doubt}, FALSE)" for a in made_of if a.doubt]
    if doubts:
        members = select(["*"], plan.cte(plan.fresh("members"), members))
    if not keys:
        # Nothing restricts the rows: they are read only if there is a change at all.
        members = select(["*"], derived(members, "m"), where=[f"EXISTS (SELECT FROM {summed})"])
    now = state(keys, parts, members, grouped=aggregate.grouped)
    both = plan.cte(plan.fresh("groups"), _beside(keys, made_of, now, summed, any_of(doubts)))
    sure = ["NOT __pgt_doubt"]
    old_size = f"{both}.{_old(Auxiliary.size())}"
    alive, lived = ([f"{quote(COUNT)} > 0"], [f"{old_size} > 0"]) if aggregate.grouped else ([], [])
    if not aggregate.calls and aggregate.grouped:
        # A row that was there and still is has not changed.
        alive, lived = [*alive, f"{old_size} <= 0"], [*lived, f"coalesce({quote(COUNT)}, 0) <= 0"]
    new = select(names(keys) + [quote(a.name) for a in made_of], both, where=[*sure, *alive])
    old = select(names(keys) + [f"{_old(a)} AS {quote(a.name)}" for a in made_of], both, where=[*sure, *lived])
    branches = [results(keys, parts, new, [f"1::bigint AS {W}"]), results(keys, parts, old, [f"-1::bigint AS {W}"])]
    if doubts:
        doubtful = plan.cte(plan.fresh("doubtful"), select(names(keys), both, where=["__pgt_doubt"]))
        again = select(["*"], plan.cte(plan.fresh("members"), aggregate.within(plan, members, doubtful)))
        branches.append(aggregate.recomputed(doubtful, again, aggregate.within(plan, changes, doubtful, W)))
    return union_all(branches)


def _beside(keys: Sequence[Field], made_of: Sequence[Auxiliary], now: str, summed: str, doubt: str) -> str:
    """For each touched group its parts now and before.

    Both sides are put side by side by grouping, which other than a join is never quadratic, however wrong PostgreSQL
    is about the number of groups.
    """
    here = [quote(a.name) for a in made_of]
    deltas = [quote(part.name) for a in made_of for part in a.delta]
    n = [f"n{i}" for i in range(len(here))]
    d = [f"d{i}" for i in range(len(deltas))]
    pieces = union_all(
        [
            select([*names(keys), *_as(here, n), *_as(["NULL"] * len(d), d)], derived(now, "n")),
            select([*names(keys), *_as(["NULL"] * len(n), n), *_as(deltas, d)], summed),
        ]
    )
    grouped = select(
        [*names(keys), *(f"pg_catalog.max({name}) AS {name}" for name in (*n, *d))],
        derived(pieces, "p"),
        group_by=names(keys) if keys else None,
    )
    sides = [
        f"LATERAL ({select(_as([f'g.{value}' for value in values], columns))}) AS {alias}"
        for alias, values, columns in (("n", n, here), ("d", d, deltas))
    ]
    return select(
        [f"g.{name}" for name in names(keys)]
        + [f"n.{name}" for name in here]
        + [f"{a.before} AS {_old(a)}" for a in made_of]
        + [f"{doubt} AS __pgt_doubt"],
        " CROSS JOIN ".join([derived(grouped, "g"), *sides]),
        where=[f"d.{quote(COUNT)} IS NOT NULL"],
    )


def _as(values: Sequence[str], columns: Sequence[str]) -> list[str]:
    return [f"{value} AS {column}" for value, column in zip(values, columns, strict=True)]


def _old(auxiliary: Auxiliary) -> str:
    return quote(f"{auxiliary.name}_before")
