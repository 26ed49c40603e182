"""The constructs of a query, each built by one function: the registry that a new construct is added to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from .build import Binding, Builder, CommonTable, FromClause, Relation, require_groupable
from .columns import Column, Field
from .columns import field as described
from .dialect import generate
from .dialect_rows import ValuesQuery
from .errors import NotDifferentiable
from .expressions import SIMPLE_AGGREGATES, conjuncts
from .joins import build_full_join, build_inner_join, build_left_join, build_right_join
from .operators import Aggregate, Call, Filter, Operator, Scan
from .ordering import Ordering, distinct_on, lift
from .plan import Plan
from .set_operations import build_set_operation, build_union, build_values_query
from .types import aggregate_result
from .windows import Windows

Scope = Mapping[str, CommonTable]
_AGGREGATE_NODES = tuple(SIMPLE_AGGREGATES)
_GROUPINGS: dict[type, str] = {exp.GroupingSets: "GROUPING SETS", exp.Cube: "CUBE", exp.Rollup: "ROLLUP"}


def build_select(builder: Builder, query: exp.Select, scope: Scope, output: Sequence[Column] | None) -> Relation:
    """SELECT: FROM, WHERE, GROUP BY and HAVING, the select list, DISTINCT."""
    clause = builder.from_clause(query, scope)
    where = query.args.get("where")
    operator = builder.combined(clause, where.this if where else None)
    windows, ordering = Windows.of(query), Ordering.of(query)
    expressions = [
        (node.alias_or_name or "column", builder.resolve(windows.take(node.unalias()), clause.bindings))
        for node in query.expressions
    ]
    hidden = [builder.resolve(windows.take(node), clause.bindings) for node in ordering.expressions]
    components = [builder.resolve(node, clause.bindings) for node in windows.components]
    having = query.args.get("having")
    condition = builder.resolve(having.this, clause.bindings) if having else None
    group = query.args.get("group")
    parts = [expression for _, expression in expressions] + hidden + components
    parts += [condition] if condition is not None else []
    if group or condition is not None or any(part.find(*_AGGREGATE_NODES) for part in parts):
        keys = _group_keys(builder, group, clause.bindings)
        operator, parts = build_aggregate(builder, operator, keys, parts, grouped=group is not None)
    if condition is not None:
        operator = Filter(operator, exp.and_(*conjuncts(parts.pop()), wrap=True), operator.columns)
    if components:
        components, parts = parts[-len(components) :], parts[: -len(components)]
    operator, parts = windows.build(builder, operator, parts, components)
    parts, hidden = parts[: len(expressions)], parts[len(expressions) :]
    operator, hidden = lift(builder, operator, parts, hidden)
    named = [(name, part) for (name, _), part in zip(expressions, parts, strict=True)]
    operator, fields = builder.project(operator, [*named, *(("order", part) for part in hidden)], output)
    order, on = ordering.keys(fields[len(named) :])
    relation = Relation(operator, tuple((n, f) for (n, _), f in zip(named, fields, strict=False)), order)
    distinct = query.args.get("distinct")
    if distinct is None:
        return relation
    return distinct_on(relation, on) if distinct.args.get("on") else builder.distinct(relation)


def _group_keys(builder: Builder, group: exp.Group | None, bindings: Sequence[Binding]) -> list[exp.Expr]:
    if group is None:
        return []
    for node in group.expressions:
        construct = _GROUPINGS.get(type(node))
        if construct is not None:
            raise NotDifferentiable(construct)
    return [builder.resolve(node, bindings) for node in group.expressions]


def build_aggregate(
    builder: Builder, operator: Operator, keys: list[exp.Expr], parts: list[exp.Expr], *, grouped: bool
) -> tuple[Operator, list[exp.Expr]]:
    """GROUP BY: the aggregate, and the given expressions rewritten to its columns."""
    calls = _calls(parts)
    keys = keys + _dependent_columns(operator, keys, parts)
    wanted = [("key", key) for key in keys]
    for argument, condition, _ in map(_operands, calls.values()):
        wanted += [("argument", argument)] if argument is not None else []
        wanted += [("filter", condition)] if condition is not None else []
    feed, fields = builder.project(operator, wanted)
    remaining = iter(fields)
    key_fields = [next(remaining) for _ in keys]
    unique_keys = tuple(dict.fromkeys(key_fields))
    require_groupable(unique_keys, "GROUP BY")
    built: dict[str, Call] = {}
    for sql, node in calls.items():
        argument, condition, distinct = _operands(node)
        operand = next(remaining) if argument is not None else None
        predicate = next(remaining) if condition is not None else None
        inner = node.this if isinstance(node, exp.Filter) else node
        function = SIMPLE_AGGREGATES[type(inner)]
        # DISTINCT makes no difference to an extremum.
        distinct = distinct and function not in ("min", "max")
        column = aggregate_result(builder.fresh(function), function, operand) or Field(builder.fresh(function), "")
        built[sql] = Call(column, function, (operand,) if operand is not None else (), predicate, distinct)
    aggregate = _typed(builder, Aggregate(feed, unique_keys, tuple(built.values()), grouped))
    columns = {sql: call.column for sql, call in zip(built, aggregate.calls, strict=True)}
    columns |= {generate(key.unnest()): f for key, f in zip(keys, key_fields, strict=True)}
    return aggregate, [_rewritten(part, columns) for part in parts]


def _calls(parts: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    calls: dict[str, exp.Expr] = {}
    for part in parts:
        for node in part.find_all(*_AGGREGATE_NODES):
            call = node.parent if isinstance(node.parent, exp.Filter) and node.arg_key == "this" else node
            calls.setdefault(generate(call), call)
    return calls


def _operands(call: exp.Expr) -> tuple[exp.Expr | None, exp.Expr | None, bool]:
    condition = call.expression.this if isinstance(call, exp.Filter) else None
    node = call.this if isinstance(call, exp.Filter) else call
    if node.args.get("expressions"):
        raise NotDifferentiable(f"aggregate {generate(node)}")
    argument = node.this
    if isinstance(argument, exp.Star):
        return None, condition, False
    if isinstance(argument, exp.Distinct):
        if len(argument.expressions) != 1:
            raise NotDifferentiable(f"aggregate {generate(node)}")
        return argument.expressions[0], condition, True
    return argument, condition, False


def _dependent_columns(operator: Operator, keys: Sequence[exp.Expr], parts: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Columns that stand in the select list because a primary key is grouped by: they are keys that change no group."""
    fields = {column.name: column for column in operator.columns}
    grouped = {generate(key.unnest()) for key in keys}
    origins = {fields[key.unnest().name].origin for key in keys if isinstance(key.unnest(), exp.Column)}
    primary = {scan.number: scan.source.key for scan in operator.walk() if isinstance(scan, Scan)}
    found: dict[str, exp.Expr] = {}

    def visit(node: exp.Expr) -> None:
        if isinstance(node, (exp.Filter, *_AGGREGATE_NODES)) or generate(node.unnest()) in grouped:
            return
        if isinstance(node, exp.Column):
            origin = fields[node.name].origin
            key = primary.get(origin[0], ()) if origin else ()
            if not (origin and key and all((origin[0], name) in origins for name in key)):
                raise NotDifferentiable(f"column outside GROUP BY in {generate(node)}")
            found[node.name] = node.copy()
        for child in node.iter_expressions():
            visit(child)

    for part in parts:
        visit(part)
    return list(found.values())


def _typed(builder: Builder, aggregate: Aggregate) -> Aggregate:
    """The aggregate with the types of results that only PostgreSQL knows."""
    unknown = [call for call in aggregate.calls if not call.column.type]
    if not unknown:
        return aggregate
    probe = replace(aggregate, calls=tuple(unknown)).new(Plan(frozenset()))
    answers = builder.types.describe(probe, len(aggregate.keys) + len(unknown))[len(aggregate.keys) :]
    columns = {call.column.name: described(call.column.name, a) for call, a in zip(unknown, answers, strict=True)}
    return replace(
        aggregate,
        calls=tuple(replace(call, column=columns.get(call.column.name, call.column)) for call in aggregate.calls),
    )


def _rewritten(part: exp.Expr, columns: Mapping[str, Field]) -> exp.Expr:
    def replaced(node: exp.Expr) -> exp.Expr:
        found = columns.get(generate(node.unnest()))
        return exp.column(exp.to_identifier(found.name, quoted=True)) if found else node

    return part.copy().transform(replaced)


QUERIES: dict[type, Callable[..., Relation]] = {
    exp.Select: build_select,
    exp.Union: build_union,
    exp.Intersect: build_set_operation,
    exp.Except: build_set_operation,
    ValuesQuery: build_values_query,
}

JOINS: dict[str, Callable[[Builder, FromClause, exp.Join, Scope], None]] = {
    "": build_inner_join,
    "INNER": build_inner_join,
    "CROSS": build_inner_join,
    "LEFT": build_left_join,
    "RIGHT": build_right_join,
    "FULL": build_full_join,
}
