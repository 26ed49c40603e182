"""Cached accumulators: what all groups of an aggregate are made of, handed on from one refresh to the next.

An aggregate inside the tree is not stored. Where a refresh needs all of its groups in any case (the only one; those
under a maximum of all) it would read all rows. So the statement gives out what they are made of now, and the next one
finds in ``$1->'memory'`` what they were made of before:

    parts(new(A)) = parts(old(A)) + parts(ΔA).

The input is only read where that is not exact (an extremum goes, NaN), or where nothing is remembered. Values travel
as texts, so that nothing is rounded on the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from sql.base.columns import Field
from sql.base.text import derived, quote, select, text, union_all
from sql.operators.aggregates.accumulators import COUNT, Accumulator, Maintained, auxiliaries, state
from sql.operators.aggregates.recomputed_aggregate import RecomputedAggregate
from sql.operators.operator import names
from sql.operators.plan import Plan

MOST = 10_000
"""So many groups are remembered of an aggregate at most."""

KEYS = frozenset({"smallint", "integer", "bigint", "date", "uuid", "boolean"})
"""The types of columns that tell remembered rows apart. A collation would not travel with a text."""
VALUES = frozenset({"smallint", "integer", "bigint", "numeric", "date"})
"""The types of what is remembered of a row."""


def memory_name(aggregate: RecomputedAggregate, parts: Sequence[Maintained]) -> str | None:
    """Under which name an aggregate's groups are remembered, which tells what they are; None if they cannot be."""
    values = all(a.type.partition("(")[0] in VALUES for a in auxiliaries(parts))
    if not (values and aggregate.sources and all(key.type in KEYS for key in aggregate.keys)):
        return None
    query = state(aggregate.keys, parts, aggregate.input.new(Plan(frozenset())), grouped=aggregate.grouped)
    return hashlib.sha256(f"columns of {query}".encode()).hexdigest()[:16]  # once they were rows


def known(name: str) -> str:
    """The condition that groups are remembered under a name."""
    return f"coalesce(pg_catalog.jsonb_exists($1->'memory', {text(name)}), FALSE)"


def remembered_rows(name: str, columns: Sequence[tuple[str, str]], first: int = 0) -> str:
    """An item of FROM, alias e: remembered rows, of columns with types; ``first`` is where their values begin."""
    arrays = [
        f"pg_catalog.unnest(($1->'memory'->{text(name)}->>{i})::{type_}[])"
        for i, (_, type_) in enumerate(columns, first)
    ]
    return f"ROWS FROM ({', '.join(arrays)}) AS e({', '.join(quote(column) for column, _ in columns)})"


def remembering(
    rows: str, columns: Sequence[str], most: int, head: Sequence[str] = (), too_many: str | None = None
) -> str:
    """An expression of type jsonb: what is to be remembered of an item of FROM, after some values as a ``head``.

    One array for each column, as a text: a fourth of the time that an array for each row takes. ``too_many``: what
    there is in its place if there are more rows than ``most``, or else NULL.
    """
    arrays = [f"pg_catalog.array_agg(g.{column})::text" for column in columns]
    whole = f"pg_catalog.jsonb_build_array({', '.join([*head, *arrays])})"
    other = f" ELSE {too_many}" if too_many else ""
    return f"({select([f'CASE WHEN pg_catalog.count(*) <= {most} THEN {whole}{other} END'], f'{rows} AS g')})"


def load_accumulators(plan: Plan, name: str, keys: Sequence[Field], made_of: Sequence[Accumulator]) -> str:
    """A CTE of what is remembered: keys and auxiliaries."""
    columns = [(key.name, key.type) for key in keys] + [(a.name, a.type) for a in made_of]
    rows = remembered_rows(name, columns)
    return plan.cte(plan.fresh("recalled"), select([f"e.{quote(column)}" for column, _ in columns], rows))


def save_accumulators(every: str, keys: Sequence[Field], made_of: Sequence[Accumulator]) -> str:
    """What is to be remembered of all groups, an expression of type jsonb; NULL if they are too many."""
    return remembering(every, [*names(keys), *(quote(a.name) for a in made_of)], MOST)


def advance_accumulators(
    plan: Plan,
    name: str,
    before: str,
    summed: str | None,
    aggregate: RecomputedAggregate,
    parts: Sequence[Maintained],
    rows: str,
) -> str:
    """All groups as they are now, from those ``before`` and what the delta adds up to, if there is one.

    Where that does not say it, from the input's ``rows``.
    """
    keys, made_of = aggregate.keys, auxiliaries(parts)
    columns = [*names(keys), *(quote(a.name) for a in made_of)]
    sure, merged = known(name), before
    if plan.usual:
        plan.statement.violations.append(f"NOT {sure}")
    if summed is not None:
        merged = plan.cte(plan.fresh("forward"), _merged(keys, made_of, before, summed))
        sure = f"({sure} AND NOT EXISTS (SELECT FROM {merged} WHERE __pgt_rescan))"
    alive = [f"{quote(COUNT)} > 0"] if aggregate.grouped else []
    found = select(columns, merged, where=[sure, *alive])
    if not any(a.consolidated for a in made_of):
        if summed is not None:
            plan.statement.violations.append(f"EXISTS (SELECT FROM {merged} WHERE __pgt_rescan)")
        if plan.usual:
            return found
    computed = state(keys, parts, rows, grouped=aggregate.grouped)
    return union_all([found, select(columns, derived(computed, "c"), where=[f"NOT {sure}"])])


def _merged(keys: Sequence[Field], made_of: Sequence[Accumulator], before: str, summed: str) -> str:
    """Groups before and their deltas, put side by side by grouping: a NULL key is a key, and no join is quadratic."""
    old = [quote(a.name) for a in made_of]
    deltas = [quote(part.name) for a in made_of for part in a.delta]
    s, d = [f"s{i}" for i in range(len(old))], [f"d{i}" for i in range(len(deltas))]
    pieces = union_all(
        [
            select([*names(keys), *_as(old, s), *_as(["NULL"] * len(d), d)], before),
            select([*names(keys), *_as(["NULL"] * len(s), s), *_as(deltas, d)], summed),
        ]
    )
    grouped = select(
        [*names(keys), *(f"pg_catalog.max({name}) AS {name}" for name in (*s, *d))],
        derived(pieces, "p"),
        group_by=names(keys) if keys else None,
    )
    sides = [
        f"LATERAL ({select(_as([f'g.{value}' for value in values], columns))}) AS {alias}"
        for alias, values, columns in (("s", s, old), ("d", d, deltas))
    ]
    touched = f"d.{quote(COUNT)} IS NOT NULL"
    rescan = " OR ".join(["FALSE", *(f"coalesce({a.rescan}, FALSE)" for a in made_of if a.rescan)])
    return select(
        [f"g.{key}" for key in names(keys)]
        + [f"CASE WHEN {touched} THEN {a.merge} ELSE s.{quote(a.name)} END AS {quote(a.name)}" for a in made_of]
        + [f"{touched} AND ({rescan}) AS __pgt_rescan"],
        " CROSS JOIN ".join([derived(grouped, "g"), *sides]),
    )


def _as(values: Sequence[str], columns: Sequence[str]) -> list[str]:
    return [f"{value} AS {column}" for value, column in zip(values, columns, strict=True)]


def memories(plan: Plan, unchanged: Iterable[str]) -> str:
    """All that is to be remembered, as one jsonb: what the statement has computed, and what has not changed."""
    entries: Mapping[str, str] = {name: f"$1->'memory'->{text(name)}" for name in unchanged} | plan.statement.memory
    pairs = ", ".join(f"{text(name)}, {value}" for name, value in entries.items())
    return f"pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object({pairs}))"
