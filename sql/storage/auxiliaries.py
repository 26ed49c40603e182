"""What an aggregate is made of: hidden columns that add up, and the result computed from them.

In the expressions ``d`` is the group's delta, ``s`` the stored row (all NULL for a new group).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..columns import WEIGHT, Field
from ..operators import Call
from ..render import quote
from ..types import ORDERED

COUNT = "__pgt_count"
W = quote(WEIGHT)
_SPECIAL = "('NaN'::numeric, 'Infinity'::numeric, '-Infinity'::numeric)"


@dataclass(frozen=True, slots=True)
class Part:
    """A column of the group's delta."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """A hidden column.

    ``state`` aggregates it from input rows, ``delta`` gives what the change is made of, ``merge`` the new value. If
    ``rescan`` is true, the new value can only be had from the input rows. ``netted``: changes that cancel each other
    out must have gone, or there would be needless rescans.
    """

    name: str
    state: str
    delta: tuple[Part, ...]
    merge: str
    rescan: str | None = None
    netted: bool = False

    @staticmethod
    def added(name: str, state: str, delta: str, rescan: str | None = None) -> Auxiliary:
        """A column that adds up."""
        column = quote(name)
        return Auxiliary(name, state, (Part(name, delta),), f"coalesce(s.{column}, 0) + d.{column}", rescan)

    @staticmethod
    def size() -> Auxiliary:
        """The number of rows in the group."""
        return Auxiliary.added(COUNT, "pg_catalog.count(*)", f"coalesce(pg_catalog.sum({W}), 0)::bigint")


@dataclass(frozen=True, slots=True)
class Maintained:
    """An aggregate call, its auxiliaries, and its result as an expression over them."""

    call: Call
    auxiliaries: tuple[Auxiliary, ...]
    final: str
    strategy: str


def maintained(call: Call, number: int) -> Maintained | None:
    """How a call is maintained by addition; None if it is not."""
    if call.distinct or call.within or call.syntax is not None or len(call.arguments) > 1:
        return None
    prefix = f"__pgt_agg{number}"
    if call.function == "count":
        count = _count(call, prefix)
        return Maintained(call, count[1], count[0], "algebraic: count")
    argument = call.argument
    if argument is None or call.function not in ("min", "max", "sum", "avg"):
        return None
    if call.function in ("min", "max"):
        if argument.base_type not in ORDERED or not (argument.faithful or argument.base_type in _COMPARABLE):
            return None
        return _extremum(call, argument, f"{prefix}_{call.function}")
    if argument.base_type in ("smallint", "integer", "bigint", "numeric"):
        return _sum(call, argument, prefix)
    # Floating point sums drift, and intervals do not come back from justification.
    return None


_COMPARABLE = frozenset({"numeric", "real", "double precision", "interval", "money", "time with time zone"})


def _count(call: Call, prefix: str) -> tuple[str, tuple[Auxiliary, ...]]:
    conditions = []
    if call.argument is not None and not call.argument.not_null:
        conditions.append(f"{quote(call.argument.name)} IS NOT NULL")
    clause = call.filter_sql(*conditions)
    if not clause:
        return quote(COUNT), ()
    name = f"{prefix}_count"
    state = f"pg_catalog.count(*){clause}"
    auxiliary = Auxiliary.added(name, state, f"coalesce(pg_catalog.sum({W}){clause}, 0)::bigint")
    return quote(name), (auxiliary,)


def _sum(call: Call, argument: Field, prefix: str) -> Maintained:
    count, counts = _count(call, prefix)
    name, column, clause = f"{prefix}_sum", quote(argument.name), call.filter_sql()
    total = stored = quote(name)
    small = argument.base_type in ("smallint", "integer")
    cast = "::bigint" if small else "::numeric"
    rescan = None
    auxiliaries = list(counts)
    strategy = "algebraic: sum and count"
    if argument.base_type == "numeric":
        # Nothing can be subtracted from NaN or infinity.
        rescan = f"s.{stored} IN {_SPECIAL} OR d.{stored} IN {_SPECIAL}"
        if argument.scale is None:
            auxiliaries.append(_scales(column, clause, f"{prefix}_scales"))
            strategy = "algebraic: sum, count and display scales"
            total = _with_scale(quote(name), quote(f"{prefix}_scales"))
    # Of the sum's own scale: an external executor knows no other zero of that type.
    zero = f"0::numeric(38,{argument.scale})" if argument.base_type == "numeric" and argument.scale else "0"
    auxiliaries.append(
        Auxiliary.added(
            name,
            f"coalesce(pg_catalog.sum({column}){clause}, {zero}){cast}",
            f"coalesce(pg_catalog.sum({column}{cast} * {W}){clause}, 0){cast}",
            rescan,
        )
    )
    if call.function == "avg":
        final = f"CASE WHEN {count} > 0 THEN {total}::numeric / {count} END"
    else:
        final = f"CASE WHEN {count} > 0 THEN {total} END"
    return Maintained(call, tuple(auxiliaries), final, strategy)


# A sum has the largest display scale among its inputs (1.50 + 1 = 2.50), which may go with one of them. So inputs of
# each scale are counted: as digits, in base 10^20, of one number that adds up like any other sum.
_DIGITS = 20
_MAX_SCALE = 1000


def _scales(column: str, clause: str, name: str) -> Auxiliary:
    scale = f"pg_catalog.scale({column})"
    one = f"CASE WHEN {scale} > {_MAX_SCALE} THEN 'NaN'::numeric ELSE ('1e' || {_DIGITS} * {scale})::numeric END"
    return Auxiliary.added(
        name,
        f"coalesce(pg_catalog.sum({one}){clause}, 0)",
        f"coalesce(pg_catalog.sum({one} * {W}){clause}, 0)",
        f"s.{quote(name)} = 'NaN'::numeric OR d.{quote(name)} = 'NaN'::numeric",
    )


def _with_scale(total: str, scales: str) -> str:
    largest = f"(pg_catalog.length({scales}::text) - 1) / {_DIGITS}"
    return f"CASE WHEN {scales} = 'NaN'::numeric THEN {total} ELSE pg_catalog.round({total}, {largest}) END"


def _extremum(call: Call, argument: Field, name: str) -> Maintained:
    value = f"pg_catalog.{call.function}({quote(argument.name)})"
    come, gone = f"{name}_come", f"{name}_gone"
    pick, beyond = ("LEAST", "<=") if call.function == "min" else ("GREATEST", ">=")
    merge = f"{pick}(s.{quote(name)}, d.{quote(come)})"
    auxiliary = Auxiliary(
        name,
        f"{value}{call.filter_sql()}",
        (Part(come, value + call.filter_sql(f"{W} > 0")), Part(gone, value + call.filter_sql(f"{W} < 0"))),
        merge,
        # Also where the value that goes has come in the same delta: terms of a delta are not netted.
        f"coalesce(d.{quote(gone)} {beyond} {merge}, d.{quote(gone)} IS NOT NULL)",
        netted=True,
    )
    strategy = f"semi-algebraic: {call.function}; the group is rescanned when its extremum goes"
    return Maintained(call, (auxiliary,), quote(name), strategy)
