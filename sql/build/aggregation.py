"""GROUP BY and aggregate calls: from the expressions of a SELECT to an `Aggregate`.

The calls are taken out of the expressions. What they are applied to (arguments, FILTER, ORDER BY) and the keys are
computed by a projection below the aggregate; the expressions are rewritten to the aggregate's columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.base.columns import field as described
from sql.base.text import quote
from sql.base.types import aggregate_result
from sql.build.grouping_sets import GroupBy, expand, grouping, is_record, leaves, require_certain, without_absent
from sql.build.projection import projected, require_groupable
from sql.build.protocol import Builder
from sql.build.subqueries.subplan import has_placeholder
from sql.canonical.aggregates import JsonAggregate
from sql.canonical.dialect import generate
from sql.canonical.row_expressions import aggregate_name
from sql.errors import NotDifferentiable
from sql.operators import Aggregate, Call, Expand, Operator, Scan
from sql.operators.ordering import SortKey
from sql.operators.plan import Plan

_WRAPPERS = (exp.Filter, exp.WithinGroup)
_SIMPLE = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)


def has_aggregates(builder: Builder, parts: Sequence[exp.Expr]) -> bool:
    """Whether any of the expressions calls an aggregate."""
    return any(next(calls(part, builder.special), None) is not None for part in parts)


def calls(part: exp.Expr, special: frozenset[str]) -> Iterator[exp.Expr]:
    """The aggregate calls in an expression, with their FILTER and WITHIN GROUP."""
    inside = part
    while isinstance(inside, _WRAPPERS):
        inside = inside.this
    if aggregate_name(inside, special) and not isinstance(part.parent, exp.Window):
        yield part
        return
    for child in part.iter_expressions():
        yield from calls(child, special)


@dataclass(slots=True)
class _Written:
    """A call as it is written."""

    function: str
    arguments: list[exp.Expr]
    order: list[exp.Ordered]
    condition: exp.Expr | None = None
    distinct: bool = False
    within: bool = False
    variadic: bool = False
    syntax: str | None = None

    @property
    def operands(self) -> list[exp.Expr]:
        """What the call needs as columns: not the direct arguments of WITHIN GROUP, nor constants after the first."""
        used = [] if self.within else self.arguments[:1] + [a for a in self.arguments[1:] if not _constant(a)]
        arguments = [leaf for argument in used for leaf in leaves(argument)]
        order = [key.this for key in self.order if self.within or not _constant(key.this)]
        return arguments + order + ([self.condition] if self.condition is not None else [])


def _constant(node: exp.Expr) -> bool:
    return not (node.find(exp.Column) or has_placeholder(node))


def _object_function(syntax: str) -> str:
    """The function that JSON_OBJECTAGG is carried out by; other than the latter it can be given an order.

    >>> _object_function("ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb")
    'jsonb_object_agg_unique_strict'
    """
    words = syntax.upper()
    kind = words.rpartition("RETURNING ")[2]
    if kind not in ("JSON", "JSONB"):
        raise NotDifferentiable(f"JSON_OBJECTAGG with RETURNING {kind.lower()}")
    unique = "_unique" if words.startswith("WITH UNIQUE") or " WITH UNIQUE" in words else ""
    return f"{kind.lower()}_object_agg{unique}{'_strict' if 'ABSENT ON NULL' in words else ''}"


def _unwrapped(node: exp.Expr) -> tuple[exp.Expr, exp.Expr | None, exp.Expr | None]:
    """A call, the condition of its FILTER, and what follows WITHIN GROUP."""
    condition = within = None
    while isinstance(node, _WRAPPERS):
        if isinstance(node, exp.Filter):
            condition = node.expression.this
        else:
            within = node.expression
        node = node.this
    return node, condition, within


def _arguments(call: exp.Expr, function: str) -> list[exp.Expr]:
    """What a call is of, as it is written."""
    arguments = list(call.expressions)
    if isinstance(call, _SIMPLE):
        whole = isinstance(call.this, exp.Star | exp.Literal) and function == "count"
        return [] if whole else [call.this, *arguments]
    return arguments


def _order(call: _Written, within: exp.Expr | None) -> None:
    """Take the ORDER BY, that of WITHIN GROUP or the one behind the arguments, into the call."""
    arguments = call.arguments
    if within is not None:
        if any(map(has_placeholder, arguments)):
            raise NotDifferentiable("subquery in a direct argument of WITHIN GROUP")
        call.order, call.within = within.expressions, True
    elif arguments and isinstance(arguments[-1], exp.Order):
        call.order = arguments[-1].expressions
        arguments[-1] = arguments[-1].this


def _written(node: exp.Expr, special: frozenset[str]) -> _Written:
    node, condition, within = _unwrapped(node)
    function = aggregate_name(node, special) or ""
    call = node.expression if isinstance(node, exp.Dot) else node
    arguments = _arguments(call, function)
    result = _Written(function, arguments, [], condition)
    if isinstance(call, JsonAggregate):
        result.syntax = call.args.get("syntax") or ""
        if function == "JSON_OBJECTAGG":
            result.function, result.syntax = _object_function(result.syntax), None
    _order(result, within)
    if arguments and isinstance(arguments[0], exp.Distinct):
        arguments[:1] = arguments[0].expressions
        # DISTINCT makes no difference to an extremum.
        result.distinct = function not in ("min", "max")
    if result.distinct and function != "count" and any(map(is_record, arguments)):
        raise NotDifferentiable(f"{function}(DISTINCT ROW(...))")
    if arguments and isinstance(arguments[-1], exp.Variadic):
        arguments[-1] = arguments[-1].this
        result.variadic = True
    return result


def build_aggregate(
    builder: Builder, operator: Operator, group: GroupBy | None, parts: list[exp.Expr], columns: int
) -> tuple[Operator, list[exp.Expr]]:
    """GROUP BY (or an aggregate without): the aggregate, and the given expressions rewritten to its columns.

    ``group`` and ``parts`` speak of the operator's columns. So many of the parts are columns of the query: the first.
    """
    group = group or GroupBy((), (frozenset(),))
    own, sets = [*group.keys], group.sets
    written: dict[str, _Written] = {}
    positions = {generate(key.unnest()): i for i, key in enumerate(own)}
    parts = _taken(builder, parts, written)
    require_certain(group, parts, columns)
    keys = own + _dependent_columns(operator, own, parts, written)
    sets = tuple(some | frozenset(range(len(own), len(keys))) for some in sets)
    wanted = [("key", key) for key in keys]
    wanted += [("argument", operand) for call in written.values() for operand in call.operands]
    feed, fields = projected(builder, operator, wanted)
    key_fields, operands = list(fields[: len(keys)]), iter(fields[len(keys) :])
    require_groupable(key_fields, "GROUP BY")
    if len(sets) > 1:
        feed, key_fields = expand(builder, feed, key_fields, sets)
    held = {generate(key.unnest()): f for key, f in zip(keys, key_fields, strict=True)}
    calls = [_call(builder, name, call, operands, held) for name, call in written.items()]
    if isinstance(feed, Expand):
        key_fields.append(feed.number)
        calls = [without_absent(call, feed) for call in calls]
    parts = [grouping(part, positions, sets, feed) for part in parts]
    grouped = len(sets) > 1 or bool(sets[0])
    aggregate = _typed(builder, Aggregate(feed, tuple(dict.fromkeys(key_fields)), tuple(calls), grouped))
    return aggregate, [rewritten(part, held) for part in parts]


def _taken(builder: Builder, parts: Sequence[exp.Expr], written: dict[str, _Written]) -> list[exp.Expr]:
    """The expressions with columns in place of the aggregate calls; equal calls share one."""
    names: dict[str, str] = {}

    def column(node: exp.Expr) -> exp.Expr:
        text = generate(node)
        if text not in names:
            call = _written(node, builder.special)
            names[text] = builder.fresh(call.function.rpartition(".")[2].strip('"').lower())
            written[names[text]] = call
        return _reference(names[text])

    result = []
    for part in parts:
        found = list(calls(part, builder.special))
        if found and found[0] is not part:
            # The calls of a copy, in the same order.
            part = part.copy()
            for node in list(calls(part, builder.special)):
                node.replace(column(node))
        result.append(column(part) if found and found[0] is part else part)
    return result


def _call(builder: Builder, name: str, call: _Written, operands: Iterator[Field], columns: Mapping[str, Field]) -> Call:
    """The call over the feed's columns, its result still without a type unless it is known."""
    taken = {id(operand): next(operands) for operand in call.operands}

    def argument(node: exp.Expr) -> Field | str:
        if not call.within and is_record(node):
            parts = map(argument, node.expressions)
            return f"ROW({', '.join(part if isinstance(part, str) else quote(part.name) for part in parts)})"
        return taken.get(id(node)) or generate(rewritten(node, columns))

    order = tuple(
        SortKey(taken[id(key.this)], bool(key.args.get("desc")), bool(key.args.get("nulls_first")))
        for key in call.order
        if id(key.this) in taken
    )
    condition = taken[id(call.condition)] if call.condition is not None else None
    built = Call(
        Field(name, ""),
        call.function,
        tuple(map(argument, call.arguments)),
        condition,
        call.distinct,
        order,
        call.within,
        call.variadic,
        call.syntax,
    )
    return replace(built, column=aggregate_result(name, call.function, built.argument) or built.column)


def _dependent_columns(
    operator: Operator, keys: Sequence[exp.Expr], parts: Sequence[exp.Expr], written: Mapping[str, _Written]
) -> list[exp.Expr]:
    """Columns that stand in the select list because a primary key is grouped by: they are keys that change no group."""
    fields = {column.name: column for column in operator.columns}
    grouped, kinds = {generate(key.unnest()) for key in keys}, {type(key.unnest()) for key in keys}
    origins = {fields[key.unnest().name].origin for key in keys if isinstance(key.unnest(), exp.Column)}
    primary = {scan.number: scan.source.key for scan in operator.walk() if isinstance(scan, Scan)}
    found: dict[str, exp.Expr] = {}

    def visit(node: exp.Expr) -> None:
        if type(node.unnest()) in kinds and generate(node.unnest()) in grouped:
            return
        if isinstance(node, exp.Column):
            if node.name in written:
                return
            origin = fields[node.name].origin
            key = primary.get(origin[0], ()) if origin else ()
            if not (origin and key and all((origin[0], name) in origins for name in key)):
                raise NotDifferentiable(f"column outside GROUP BY in {generate(node)}")
            found[node.name] = node.copy()
        for child in node.iter_expressions():
            visit(child)

    direct = [argument for call in written.values() if call.within for argument in call.arguments]
    for part in [*parts, *direct]:
        visit(part)
    return list(found.values())


def _typed(builder: Builder, aggregate: Aggregate) -> Aggregate:
    """The aggregate with the types of results that only PostgreSQL knows."""
    unknown = [call for call in aggregate.calls if not call.column.type]
    if not unknown or any(not column.type for column in aggregate.input.columns):
        # The second: there will be another pass, when the operands' types are known.
        return aggregate
    probe = replace(aggregate, calls=tuple(unknown)).new(Plan(frozenset()))
    answers = builder.types.describe(probe, len(aggregate.keys) + len(unknown))[len(aggregate.keys) :]
    columns = {call.column.name: described(call.column.name, a) for call, a in zip(unknown, answers, strict=True)}
    return replace(
        aggregate,
        calls=tuple(replace(call, column=columns.get(call.column.name, call.column)) for call in aggregate.calls),
    )


def rewritten(part: exp.Expr, columns: Mapping[str, Field]) -> exp.Expr:
    """An expression with columns in place of what they hold, given by its text."""
    # Mostly that are columns, whose text is a quoted name.
    columns_only = all(text.startswith('"') and text.count('"') == 2 and text.endswith('"') for text in columns)

    def replaced(node: exp.Expr) -> exp.Expr:
        if columns_only and not isinstance(node, exp.Column):
            return node
        found = columns.get(generate(node.unnest()))
        return _reference(found.name) if found else node

    return part.transform(replaced)


def _reference(name: str) -> exp.Expr:
    return exp.column(exp.to_identifier(name, quoted=True))
