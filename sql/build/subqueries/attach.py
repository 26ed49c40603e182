"""Subqueries as operators: the rows of a subplan joined to those of the operator that has its arguments.

- ``EXISTS`` and ``NOT IN`` as conditions of WHERE, HAVING and ON are semi-joins and anti-joins, see `semi_joins`.
- A scalar aggregate over the rows that are equal to the outer row is one aggregate for all, see `subqueries.grouped`.
- A comparison with a scalar aggregate without outer columns is a semi-join with its one row, unless it is ``=``.
- Any other scalar subquery is unnested, and its column joined in on D. An aggregate without GROUP BY has a row for each
  outer row, so an inner join will do; otherwise it is a left join, and several rows for one outer row are an error.
- ``EXISTS`` anywhere else is the scalar ``count(*) > 0``; without outer columns a relation of one row.
- A subquery that reads no table is a function of its arguments, and stays an expression.

What D holds are the arguments of the operator's rows *after* everything that PostgreSQL computes before: a scalar
subquery of the select list is computed for rows that WHERE has let through only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from sql.base.columns import Field
from sql.build.protocol import Builder, Kind, Subplan
from sql.build.subqueries.domain import reference, unnested
from sql.build.subqueries.grouped import keyed_aggregate, strict
from sql.build.subqueries.guards import guard, may_raise, several_rows
from sql.build.subqueries.semi_joins import matching
from sql.build.subqueries.simple_select import at_most_one_row, counted, one_row
from sql.build.subqueries.subplan import has_placeholder, placeholder
from sql.canonical.dialect import generate
from sql.errors import NotDifferentiable
from sql.operators import AntiJoin, Constants, Filter, Join, LeftJoin, Operator, Project, Scan, SemiJoin, UnionAll
from sql.operators.consolidate import Consolidate
from sql.operators.subqueries.enforce_single_row import EnforceSingleRow

MOST_OPERATORS = 5000
"""How large a tree may grow, an operator counted wherever it is read. For one of 88 000 PostgreSQL needed 20 GB."""

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)


def attached(
    builder: Builder,
    operator: Operator,
    expressions: Sequence[exp.Expr],
    base: Operator | None = None,
    *,
    required: bool = False,
) -> tuple[Operator, list[exp.Expr]]:
    """The operator with the results of all subqueries in the expressions, and the expressions over its columns.

    They are computed for the rows of ``base``, of which the operator has some. ``required``: rows for which a result is
    NULL are not wanted.
    """
    result = list(expressions)
    base = base or operator
    while True:
        call = _first_call(result, _ready)
        if call is None:
            return operator, result
        subplan = builder.subplan(int(call.expressions[0].name))
        arguments = call.expressions[2:]
        asked = _guard(result, call)
        # A guard that depends on other subqueries, as any use of their results, makes the tree four times as large.
        known = _known(base, [*arguments, *asked])
        if asked and (several_rows(subplan, builder.special) or (known and may_raise(subplan))):
            within: Operator = base if known else operator
            within = Filter(within, exp.and_(*asked, wrap=True), within.columns)
            operator, values = _value(builder, within, operator, subplan, arguments, guarded=True)
        else:
            within = base if _known(base, arguments) else operator
            operator, values = _value(builder, within, operator, subplan, arguments, required=required)
        if _size(operator, {}) > MOST_OPERATORS:
            raise NotDifferentiable("so many subqueries that depend on each other's results")
        text = _text(call)
        result = [_replaced(e, text, values) for e in result]


def _size(operator: Operator, known: dict[int, int]) -> int:
    """The operators of a tree, each counted as often as it is read; ``known`` by node."""
    if operator.node not in known:
        known[operator.node] = 1 + sum(_size(each, known) for each in operator.inputs)
    return known[operator.node]


def _guard(expressions: Sequence[exp.Expr], call: exp.Expr) -> list[exp.Expr]:
    """The conditions under which a subquery is computed, wherever it stands; none if they differ."""
    others = [c for e in expressions for c in e.find_all(exp.Anonymous) if placeholder(c) and _text(c) == _text(call)]
    guards = [guard(other) for other in others]
    texts = {tuple(map(generate, some)) for some in guards}
    return guards[0] if len(texts) == 1 else []


def _text(call: exp.Expr) -> list[str]:
    """What is the same of two calls that ask for columns of one subquery."""
    return [generate(part) for part in (call.expressions[0], *call.expressions[2:])]


def _ready(call: exp.Expr) -> bool:
    """Whether neither the arguments of a subquery nor the conditions under which it is computed wait for another."""
    return _innermost(call) and not any(has_placeholder(condition) for condition in guard(call))


def _known(operator: Operator, expressions: Sequence[exp.Expr]) -> bool:
    """Whether expressions speak of nothing but an operator's columns."""
    names = {f.name for f in operator.columns}
    return all(column.name in names for e in expressions for column in e.find_all(exp.Column))


def _innermost(call: exp.Expr) -> bool:
    return not any(has_placeholder(argument) for argument in call.expressions)


def _replaced(expression: exp.Expr, text: list[str], values: Sequence[exp.Expr]) -> exp.Expr:
    def replaced(node: exp.Expr) -> exp.Expr:
        if placeholder(node) and _text(node) == text:
            return values[int(node.expressions[1].name)].copy()
        return node

    return expression.transform(replaced)


def _value(
    builder: Builder,
    base: Operator,
    operator: Operator,
    subplan: Subplan,
    arguments: Sequence[exp.Expr],
    *,
    required: bool = False,
    guarded: bool = False,
) -> tuple[Operator, list[exp.Expr]]:
    """The operator with the columns of a subquery. ``guarded``: `base` has but those rows that need them."""
    if not subplan.reads_tables:
        return operator, [_function(subplan, arguments)]
    query = subplan.query
    if subplan.kind is Kind.EXISTS:
        if not subplan.parameters:
            found, column = _any_row(builder, builder.query(query, subplan.scope).operator)
            return Join((operator, found), (), operator.columns + found.columns), [reference(column)]
        query = counted(query, builder)
    elif subplan.kind is not Kind.SCALAR:
        raise NotDifferentiable("NOT IN under another condition")
    by_key = keyed_aggregate(builder, subplan, query, arguments)
    if by_key is not None:
        groups = Consolidate(by_key.rows)
        if required and by_key.strict:
            columns = operator.columns + groups.columns
            return Join((operator, groups), by_key.conditions, columns), list(by_key.values)
        return LeftJoin(operator, groups, by_key.conditions), list(by_key.values)
    relation, width, conditions = unnested(builder, base, subplan, query, arguments)
    rows = relation.operator
    if not at_most_one_row(query, builder.special):
        rows = EnforceSingleRow(rows, tuple(dict.fromkeys(f for _, f in relation.output[:width])))
    rows = Consolidate(rows)
    values: list[exp.Expr] = [reference(f) for _, f in relation.output[width:]]
    if (required or one_row(query, builder.special)) and not guarded:
        return Join((operator, rows), tuple(conditions), operator.columns + rows.columns), values
    return LeftJoin(operator, rows, tuple(conditions)), values


def _any_row(builder: Builder, rows: Operator) -> tuple[Operator, Field]:
    """One row that says whether there are any."""
    column, once = Field(builder.fresh("found"), "boolean", not_null=True), Constants(((),), ())
    branches = [
        Project(kind(once, rows, ()), (value,), (Field(builder.fresh("found"), "boolean", not_null=True),))
        for kind, value in ((SemiJoin, exp.true()), (AntiJoin, exp.false()))
    ]
    return UnionAll(tuple(branches), tuple(branch.columns for branch in branches), (column,)), column


def _function(subplan: Subplan, arguments: Sequence[exp.Expr]) -> exp.Expr:
    """A subquery over its arguments alone."""
    known = dict(zip(subplan.parameters, arguments, strict=True))

    def replaced(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.table == subplan.outer:
            return known[node.name].copy()
        return node

    query = subplan.query.transform(replaced)
    if subplan.kind is Kind.EXISTS:
        return exp.Exists(this=query)
    if subplan.kind is Kind.NOT_IN:
        row = [operand.transform(replaced) for operand in subplan.operands]
        left = row[0] if len(row) == 1 else exp.Tuple(expressions=row)
        return exp.Not(this=exp.paren(exp.In(this=left, query=exp.Subquery(this=query))))
    # In parentheses of its own, since a subquery's are taken for those of an expression.
    return exp.Paren(this=exp.Subquery(this=query))


def filtered(builder: Builder, operator: Operator, conditions: Sequence[exp.Expr]) -> Operator:
    """The rows of an operator that satisfy all conditions, subqueries in them or not."""
    plain = [c for c in conditions if not has_placeholder(c)]
    if plain:
        operator = Filter(operator, exp.and_(*plain, wrap=True, copy=True), operator.columns)
    # For all of them D is that of the rows that the plain conditions let through, so the tree grows by one D each.
    base = operator
    results: list[exp.Expr] = []
    for condition in sorted((c for c in conditions if has_placeholder(c)), key=lambda c: _place(builder, c)):
        filtering = _tested(builder, operator, base, condition) or _compared(builder, operator, condition)
        if filtering is not None:
            operator = filtering
            continue
        operator, over = attached(builder, operator, [condition], base, required=_required(condition))
        results += over
    return Filter(operator, exp.and_(*results, wrap=True), operator.columns) if results else operator


def _place(builder: Builder, condition: exp.Expr) -> int:
    """When a condition is to be told, lest more rows than needed are looked up for it.

    Rows that a match is wanted of can be found by it. A comparison with one row looks up nothing. That a row has no
    match is found out row by row; a result that is joined in has to be computed.
    """
    _, subplan, wanted = _test(builder, condition)
    if subplan is not None:
        return 0 if (subplan.kind is Kind.EXISTS) == wanted else 2
    return 1 if _comparison(builder, condition) else 3


def _compared(builder: Builder, operator: Operator, condition: exp.Expr) -> Operator | None:
    """The rows of an operator that compare well with the one row of an aggregate, as ``x > (SELECT avg(y) FROM …)``.

    A semi-join, of which a change of that row touches the rows alone that compare differently now. They are found by
    their keys (`threshold_band`), so these are asked for. With ``=`` it would gain nothing.
    """
    found = _comparison(builder, condition)
    if found is None:
        return None
    call, subplan = found
    for scan in _scanned(operator):
        builder.usage[scan.number].update(scan.source.key)
    relation = builder.query(subplan.query, subplan.scope)
    over = _replaced(condition, _text(call), [reference(f) for _, f in relation.output])
    return SemiJoin(operator, Consolidate(relation.operator), (over,))


def _scanned(operator: Operator) -> Iterator[Scan]:
    """The tables whose columns are columns of an operator."""
    if isinstance(operator, Scan):
        yield operator
    elif isinstance(operator, Filter | Join):
        for below in operator.inputs:
            yield from _scanned(below)
    elif isinstance(operator, SemiJoin | AntiJoin):
        yield from _scanned(operator.left)


def _comparison(builder: Builder, condition: exp.Expr) -> tuple[exp.Expr, Subplan] | None:
    """The call of the one scalar aggregate without outer columns that a condition compares with, and the subquery."""
    calls = [c for c in condition.find_all(exp.Anonymous) if placeholder(c)]
    if len(calls) != 1 or isinstance(condition.unnest(), exp.EQ):
        return None
    subplan = builder.subplan(int(calls[0].expressions[0].name))
    plain = subplan.kind is Kind.SCALAR and not subplan.parameters and subplan.reads_tables
    return (calls[0], subplan) if plain and one_row(subplan.query, builder.special) else None


def _required(condition: exp.Expr) -> bool:
    """Whether a condition is not true where one of its subqueries is NULL."""

    def certain(side: exp.Expr) -> bool:
        side = side.unnest()
        if placeholder(side):
            return not any(has_placeholder(argument) for argument in side.expressions)
        if isinstance(side, exp.Add | exp.Sub | exp.Mul | exp.Div):
            return certain(side.left) and certain(side.right)
        if isinstance(side, exp.Cast):
            return certain(side.this)
        return strict(side)

    inner = condition.unnest()
    return isinstance(inner, _COMPARISONS) and certain(inner.left) and certain(inner.right)


def _test(builder: Builder, condition: exp.Expr) -> tuple[exp.Expr, Subplan | None, bool]:
    """A condition without its negations; the subquery whose rows it tests, if any; and whether it is not negated."""
    inner, wanted = condition.unnest(), True
    while isinstance(inner, exp.Not):
        inner, wanted = inner.this.unnest(), not wanted
    subplan = builder.subplan(int(inner.expressions[0].name)) if placeholder(inner) else None
    return inner, None if subplan is None or subplan.kind is Kind.SCALAR else subplan, wanted


def _tested(builder: Builder, operator: Operator, base: Operator, condition: exp.Expr) -> Operator | None:
    """The rows that satisfy a condition that is a test of a subquery's rows, or its negation. None if it is another."""
    test, subplan, wanted = _test(builder, condition)
    if subplan is None:
        return None
    arguments = test.expressions[2:]
    if any(has_placeholder(a) for a in arguments):
        operator, arguments = attached(builder, operator, arguments, base)
    if subplan.reads_tables:
        within = base if _known(base, arguments) else operator
        return matching(builder, within, operator, subplan, arguments, wanted=wanted)
    found = _function(subplan, arguments)
    return Filter(operator, found if wanted else exp.Not(this=exp.paren(found)), operator.columns)


def _first_call(expressions: Sequence[exp.Expr], wanted: Callable[[exp.Anonymous], bool]) -> exp.Anonymous | None:
    """The first call of a subquery in the expressions that is such."""
    calls = (call for expression in expressions for call in expression.find_all(exp.Anonymous) if placeholder(call))
    return next(filter(wanted, calls), None)


def on_condition(
    builder: Builder, kept: Operator, padded: Operator, conditions: Sequence[exp.Expr], *, full: bool = False
) -> tuple[Operator, Operator, list[exp.Expr]]:
    """The inputs of an outer join with the results of the subqueries in its conditions, and these over their columns.

    A result that depends on both sides has a row for every pair of arguments that can match; it is joined to the padded
    side, and the rest of its arguments are compared as a condition of the outer join.
    """
    plain = [c for c in conditions if not has_placeholder(c)]
    rest = [c for c in conditions if has_placeholder(c)]
    if not rest:
        return kept, padded, plain
    below = [c for c in rest if _known(padded, [c])]
    if below and not full:
        padded = filtered(builder, padded, below)
        rest = [c for c in rest if c not in below]
    pairs = Join((kept, padded), tuple(plain), kept.columns + padded.columns)
    while True:
        call = _first_call(rest, _innermost)
        if call is None:
            return kept, padded, [*plain, *rest]
        kept, padded, values, agree = _joined_to_a_side(builder, pairs, kept, padded, call, full=full)
        plain += agree
        text = _text(call)
        rest = [_replaced(e, text, values) for e in rest]


def _joined_to_a_side(
    builder: Builder, pairs: Operator, kept: Operator, padded: Operator, call: exp.Expr, *, full: bool
) -> tuple[Operator, Operator, list[exp.Expr], list[exp.Expr]]:
    """The inputs of an outer join, one of them with a subquery's columns, these, and further conditions of the join."""
    subplan, arguments = builder.subplan(int(call.expressions[0].name)), call.expressions[2:]
    of_kept = _known(kept, arguments)
    if of_kept and any(argument.find(exp.Column) for argument in arguments):
        kept, values = _value(builder, kept, kept, subplan, arguments)
        return kept, padded, values, []
    if of_kept or _known(padded, arguments):
        padded, values = _value(builder, padded, padded, subplan, arguments)
        return kept, padded, values, []
    if full:
        raise NotDifferentiable("subquery over both sides of a FULL JOIN in its condition")
    return kept, *_paired(builder, pairs, padded, subplan, arguments)


def _paired(
    builder: Builder,
    pairs: Operator,
    padded: Operator,
    subplan: Subplan,
    arguments: Sequence[exp.Expr],
) -> tuple[Operator, list[exp.Expr], list[exp.Expr]]:
    if not subplan.reads_tables:
        return padded, [_function(subplan, arguments)], []
    query = counted(subplan.query, builder) if subplan.kind is Kind.EXISTS else subplan.query
    total = not one_row(query, builder.special)
    relation, width, conditions = unnested(builder, pairs, subplan, query, arguments, total=total)
    rows = Consolidate(relation.operator)
    own = {f.name for f in padded.columns + rows.columns}
    inside = [c for c in conditions if {x.name for x in c.find_all(exp.Column)} <= own]
    joined = Join((padded, rows), tuple(inside), padded.columns + rows.columns)
    values: list[exp.Expr] = [reference(f) for _, f in relation.output[width:]]
    return joined, values, [c for c in conditions if c not in inside]
