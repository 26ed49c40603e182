"""What an aggregate is made of: hidden columns that add up, and the result computed from them.

In the expressions ``d`` is the group's delta, ``s`` the stored row (all NULL for a new group), ``n`` what the group
is made of now (all NULL for one that is gone).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sql.base.columns import WEIGHT, Field
from sql.base.text import derived, quote, select
from sql.base.types import ORDERED, POWERS
from sql.operators.aggregates.call import EXACT, Call
from sql.operators.aggregates.variance import deviation, variance

COUNT = "__pgt_count"
W = quote(WEIGHT)
_SPECIAL = "('NaN'::numeric, 'Infinity'::numeric, '-Infinity'::numeric)"


@dataclass(frozen=True, slots=True)
class Part:
    """A column of the group's delta."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A hidden column.

    ``state`` aggregates it from input rows, ``delta`` gives what the change is made of, ``merge`` the new value. If
    ``rescan`` is true, the new value can only be had from the input rows. ``consolidated``: changes that cancel
    each other out must have gone, or there would be needless rescans.

    ``before`` is the old value, from what the group is made of now; None if there is no way. If ``doubt`` is true it
    can only be had from the input's old rows. ``type`` is the column's.
    """

    name: str
    state: str
    delta: tuple[Part, ...]
    merge: str
    rescan: str | None = None
    consolidated: bool = False
    before: str | None = None
    doubt: str | None = None
    type: str = "bigint"

    @staticmethod
    def added(
        name: str, state: str, delta: str, special: str | None = None, zero: str = "0", type_: str = "bigint"
    ) -> Accumulator:
        """A column that adds up from ``zero``.

        Unless it is ``special``: a condition on the column, which stands there as ``{}``.
        """
        column = quote(name)
        stored = now = None
        if special is not None:
            stored, now = (f"{special.format(f'{a}.{column}')} OR {special.format(f'd.{column}')}" for a in ("s", "n"))
        return Accumulator(
            name,
            state,
            (Part(name, delta),),
            f"coalesce(s.{column}, {zero}) + d.{column}",
            stored,
            before=f"coalesce(n.{column}, {zero}) - d.{column}",
            doubt=now,
            type=type_,
        )

    @staticmethod
    def size() -> Accumulator:
        """The number of rows in the group."""
        return Accumulator.added(COUNT, "pg_catalog.count(*)", f"coalesce(pg_catalog.sum({W}), 0)::bigint")


@dataclass(frozen=True, slots=True)
class Maintained:
    """An aggregate call, its auxiliaries, and its result as an expression over them."""

    call: Call
    auxiliaries: tuple[Accumulator, ...]
    final: str
    strategy: str


def maintained(call: Call, number: int) -> Maintained | None:
    """How a call is maintained by addition; None if it is not."""
    prefix = f"__pgt_agg{number}"
    if call.distinct or call.within or call.syntax is not None:
        return None
    if call.function == "regr_count":
        counted, count = _count(call, prefix)
        return Maintained(call, count, counted, "algebraic: count of pairs")
    if len(call.arguments) > 1:
        return None
    if call.function == "count":
        counted, count = _count(call, prefix)
        return Maintained(call, count, counted, "algebraic: count")
    argument = call.argument
    build = _BUILT.get(call.function)
    return build(call, argument, prefix) if argument is not None and build is not None else None


def rescan_strategy(call: Call) -> str:
    """In words, why touched groups are aggregated again for a call."""
    if maintained(call, 1) is not None:
        return "group rescan, as the rest of its query"
    if any(column.base_type in ("real", "double precision") for column in call.columns) and not call.within:
        return "group rescan: a running sum of floating point numbers would drift"
    if call.within:
        return "group rescan: ordered set"
    return "group rescan: DISTINCT" if call.distinct else "group rescan"


_COMPARABLE = frozenset({"numeric", "real", "double precision", "interval", "money", "time with time zone"})


def _count(call: Call, prefix: str) -> tuple[str, tuple[Accumulator, ...]]:
    arguments = [
        a if isinstance(a, str) else quote(a.name) for a in call.arguments if isinstance(a, str) or not a.not_null
    ]
    conditions = [f"{argument} IS NOT NULL" for argument in arguments]
    clause = call.filter_sql(*conditions)
    if not clause:
        return quote(COUNT), ()
    name = f"{prefix}_count"
    state = f"pg_catalog.count(*){clause}"
    auxiliary = Accumulator.added(name, state, f"coalesce(pg_catalog.sum({W}){clause}, 0)::bigint")
    return quote(name), (auxiliary,)


def _sum(call: Call, argument: Field, prefix: str) -> Maintained | None:
    # Floating point sums drift, and intervals do not come back from justification.
    if argument.base_type not in EXACT:
        return None
    count, auxiliaries, total, _ = _powers(call, argument, prefix, 1)
    strategy = "algebraic: sum and count"
    if argument.base_type == "numeric" and argument.scale is None:
        strategy = "algebraic: sum, count and display scales"
    final = f"{total}::numeric / {count}" if call.function == "avg" else total
    return Maintained(call, auxiliaries, f"CASE WHEN {count} > 0 THEN {final} END", strategy)


def _variance(call: Call, argument: Field, prefix: str) -> Maintained | None:
    if argument.base_type not in EXACT:
        return None
    count, auxiliaries, total, squares = _powers(call, argument, prefix, 2)
    final = variance(count, f"{total}::numeric", squares, sample=not call.function.endswith("_pop"))
    if call.function.startswith("stddev"):
        final = deviation(final)
    return Maintained(call, auxiliaries, final, "algebraic: count, sum and sum of squares")


def _powers(call: Call, argument: Field, prefix: str, power: int) -> tuple[str, tuple[Accumulator, ...], str, str]:
    """Count, auxiliaries, sum, and sum of squares (if ``power`` is 2) of exact numbers, with their display scales."""
    count, counts = _count(call, prefix)
    column, clause = quote(argument.name), call.filter_sql()
    sums = [f"{prefix}_sum", f"{prefix}_squares"]
    totals = [quote(name) for name in sums]
    numeric = argument.base_type == "numeric"
    special = None
    auxiliaries = list(counts)
    if numeric:
        # Nothing can be subtracted from NaN or infinity.
        special = f"{{}} IN {_SPECIAL}"
        if argument.scale is None:
            scales = f"{prefix}_scales"
            auxiliaries.append(_scales(call, column, scales))
            totals = [_with_scale(total, quote(scales), i) for i, total in enumerate(totals, 1)]
    small = argument.base_type in ("smallint", "integer")
    for i in range(power):
        value, cast = (
            (f"{column}::numeric * {column}", "::numeric") if i else (column, "::bigint" if small else "::numeric")
        )
        # Of the sum's own scale: an external executor knows no other zero of that type.
        scale = (i + 1) * (argument.scale or 0)
        zero = f"0::numeric(38,{scale})" if numeric and scale else "0"
        auxiliaries.append(
            Accumulator.added(
                sums[i],
                f"coalesce(pg_catalog.sum({value}){clause}, {zero}){cast}",
                f"coalesce(pg_catalog.sum({value if i else column + cast} * {W}){clause}, {zero}){cast}",
                special,
                zero,
                cast.removeprefix("::"),
            )
        )
    return count, tuple(auxiliaries), totals[0], totals[1]


# A sum has the largest display scale among its inputs (1.50 + 1 = 2.50), which may go with one of them. So inputs of
# each scale are counted: as digits, in base 10^20, of one number that adds up like any other sum.
_DIGITS = 20
_MAX_SCALE = 1000


def scale_digits(column: str) -> str:
    """A numeric column's display scale as the number whose sum counts the values of each scale."""
    scale = f"pg_catalog.scale({column})"
    return f"CASE WHEN {scale} > {_MAX_SCALE} THEN 'NaN'::numeric ELSE ('1e' || {_DIGITS} * {scale})::numeric END"


def _scales(call: Call, column: str, name: str) -> Accumulator:
    one, stored = scale_digits(column), quote(name)
    come, gone = f"{name}_come", f"{name}_gone"
    sums = (
        Part(come, f"coalesce(pg_catalog.sum({one} * {W}){call.filter_sql(f'{W} > 0')}, 0)"),
        Part(gone, f"coalesce(pg_catalog.sum({one} * -{W}){call.filter_sql(f'{W} < 0')}, 0)"),
    )
    special = " OR ".join(f"{part} = 'NaN'::numeric" for part in ("{}", f"d.{quote(come)}", f"d.{quote(gone)}"))
    return Accumulator(
        name,
        f"coalesce(pg_catalog.sum({one}){call.filter_sql()}, 0)",
        sums,
        f"coalesce(s.{stored}, 0) + d.{quote(come)} - d.{quote(gone)}",
        special.format(f"s.{stored}"),
        before=f"coalesce(n.{stored}, 0) - d.{quote(come)} + d.{quote(gone)}",
        doubt=special.format(f"n.{stored}"),
        type="numeric",
    )


def _with_scale(total: str, scales: str, power: int) -> str:
    largest = f"{power} * ((pg_catalog.length({scales}::text) - 1) / {_DIGITS})"
    return f"CASE WHEN {scales} = 'NaN'::numeric THEN {total} ELSE pg_catalog.round({total}, {largest}) END"


def _extremum(call: Call, argument: Field, prefix: str) -> Maintained | None:
    if argument.base_type not in ORDERED or not (argument.equality_is_identity or argument.base_type in _COMPARABLE):
        return None
    name = f"{prefix}_{call.function}"
    value = f"pg_catalog.{call.function}({quote(argument.name)})"
    come, gone = f"{name}_come", f"{name}_gone"
    pick, beyond = ("LEAST", "<=") if call.function == "min" else ("GREATEST", ">=")
    merge = f"{pick}(s.{quote(name)}, d.{quote(come)})"
    now = f"n.{quote(name)}"
    auxiliary = Accumulator(
        name,
        f"{value}{call.filter_sql()}",
        (Part(come, value + call.filter_sql(f"{W} > 0")), Part(gone, value + call.filter_sql(f"{W} < 0"))),
        merge,
        # Also where the value that goes has come in the same delta: terms of a delta are not consolidated.
        f"coalesce(d.{quote(gone)} {beyond} {merge}, d.{quote(gone)} IS NOT NULL)",
        consolidated=True,
        # What has come can be the extremum now, and then nothing says what was before.
        before=f"{pick}({now}, d.{quote(gone)})" if argument.equality_is_identity else None,
        doubt=f"d.{quote(come)} IS NOT NULL AND ({now} IS NULL OR d.{quote(come)} {beyond} {now})",
        type=argument.type,
    )
    strategy = f"semi-algebraic: {call.function}; the group is rescanned when its extremum goes"
    return Maintained(call, (auxiliary,), quote(name), strategy)


def _all_or_any(call: Call, argument: Field, prefix: str) -> Maintained:
    """bool_and is true while nothing is false, bool_or while something is true."""
    count, counts = _count(call, prefix)
    name, deciding = (f"{prefix}_true", "") if call.function == "bool_or" else (f"{prefix}_false", "NOT ")
    clause = call.filter_sql(deciding + quote(argument.name))
    auxiliary = Accumulator.added(
        name, f"pg_catalog.count(*){clause}", f"coalesce(pg_catalog.sum({W}){clause}, 0)::bigint"
    )
    holds = f"{quote(name)} {'= 0' if deciding else '> 0'}"
    final = f"CASE WHEN {count} > 0 THEN {holds} END"
    return Maintained(call, (*counts, auxiliary), final, "algebraic: counts of true and false")


def _bits(call: Call, argument: Field, prefix: str) -> Maintained | None:
    """Bits that go can be the only ones that were 0 (of bit_and) or 1 (of bit_or), unless there are none such."""
    if argument.type not in ("smallint", "integer", "bigint"):
        return None
    count, counts = _count(call, prefix)
    name = f"{prefix}_{call.function}"
    come, gone = f"{name}_come", f"{name}_gone"
    operator, neutral = ("&", "-1") if call.function == "bit_and" else ("|", "0")
    value, neutral = f"pg_catalog.{call.function}({quote(argument.name)})", f"({neutral})::{argument.type}"
    auxiliary = Accumulator(
        name,
        f"coalesce({value}{call.filter_sql()}, {neutral})",
        (Part(come, value + call.filter_sql(f"{W} > 0")), Part(gone, value + call.filter_sql(f"{W} < 0"))),
        f"coalesce(s.{quote(name)}, {neutral}) {operator} coalesce(d.{quote(come)}, {neutral})",
        f"d.{quote(gone)} <> {neutral}",
        consolidated=True,
        type=argument.type,
    )
    strategy = f"semi-algebraic: {call.function}; the group is rescanned when bits go that could have decided"
    return Maintained(call, (*counts, auxiliary), f"CASE WHEN {count} > 0 THEN {quote(name)} END", strategy)


def _parity(call: Call, argument: Field, prefix: str) -> Maintained | None:
    """A value that is taken away twice is back: bit_xor is its own inverse."""
    if argument.type not in ("smallint", "integer", "bigint"):
        return None
    count, counts = _count(call, prefix)
    name, zero = f"{prefix}_xor", f"0::{argument.type}"
    value = f"pg_catalog.bit_xor({quote(argument.name)})"
    auxiliary = Accumulator(
        name,
        f"coalesce({value}{call.filter_sql()}, {zero})",
        (Part(name, f"coalesce({value}{call.filter_sql(f'{W} % 2 <> 0')}, {zero})"),),
        f"coalesce(s.{quote(name)}, {zero}) # d.{quote(name)}",
        before=f"coalesce(n.{quote(name)}, {zero}) # d.{quote(name)}",
        type=argument.type,
    )
    return Maintained(
        call, (*counts, auxiliary), f"CASE WHEN {count} > 0 THEN {quote(name)} END", "algebraic: parities"
    )


_BUILT: dict[str, Callable[[Call, Field, str], Maintained | None]] = {
    **dict.fromkeys(("sum", "avg"), _sum),
    **dict.fromkeys(POWERS, _variance),
    **dict.fromkeys(("min", "max"), _extremum),
    **dict.fromkeys(("bool_and", "bool_or", "every"), _all_or_any),
    **dict.fromkeys(("bit_and", "bit_or"), _bits),
    "bit_xor": _parity,
}


def auxiliaries(maintained: Sequence[Maintained]) -> list[Accumulator]:
    """Each auxiliary once, the group's size first."""
    found = {COUNT: Accumulator.size()}
    for m in maintained:
        for auxiliary in m.auxiliaries:
            found.setdefault(auxiliary.name, auxiliary)
    return list(found.values())


def state(keys: Sequence[Field], maintained: Sequence[Maintained], rows: str, *, grouped: bool) -> str:
    """Keys and auxiliaries of the groups of some input rows."""
    names = [quote(key.name) for key in keys]
    return select(
        names + [f"{a.state} AS {quote(a.name)}" for a in auxiliaries(maintained)],
        derived(rows, "a"),
        group_by=names if grouped else None,
    )


def results(keys: Sequence[Field], maintained: Sequence[Maintained], state: str, extra: Sequence[str] = ()) -> str:
    """The aggregate's rows from keys and auxiliaries; ``extra`` columns are passed on."""
    finals = [f"{m.final} AS {quote(m.call.column.name)}" for m in maintained]
    return select([*(quote(key.name) for key in keys), *finals, *extra], derived(state, "g"))
