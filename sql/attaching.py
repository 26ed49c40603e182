"""Subqueries as operators: the rows of a subplan joined to those of the operator that has its arguments.

- ``EXISTS`` and ``NOT IN`` as conditions of WHERE, HAVING and ON are semi-joins and anti-joins. Where the subquery is a
  plain SELECT its conditions on outer columns are those of the join; any other shape is unnested, and the join is on D.
- A scalar subquery is unnested, and its column joined in on D. An aggregate without GROUP BY has a row for each outer
  row, so an inner join will do; otherwise it is a left join, and several rows for one outer row are an error.
- ``EXISTS`` anywhere else is the scalar ``count(*) > 0``.
- A subquery that reads no table is a function of its arguments, and stays an expression.

What D holds are the arguments of the operator's rows *after* everything that PostgreSQL computes before: a scalar
subquery of the select list is computed for rows that WHERE has let through only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from .build import Binding, Builder, CommonTable, FromClause, Relation, require_groupable
from .columns import Field
from .dialect import generate
from .errors import NotDifferentiable
from .operators import AntiJoin, Filter, Join, LeftJoin, Operator, Project, SemiJoin
from .operators.every import Every
from .operators.settled import Settled
from .operators.single import Single
from .same import Same
from .subplan import Kind, Subplan, has_placeholder, placeholder
from .subqueries import at_most_one_row, one_row
from .unnesting import PRESENT, EveryQuery, Unnesting


@dataclass(frozen=True, slots=True)
class OuterRows(CommonTable):
    """D, as a table that an unnested query reads."""

    distinct: Operator
    output: tuple[tuple[str, Field], ...]

    def relation(self, builder: Builder) -> Relation:
        """D's rows under column names of their own."""
        fields = tuple(dict.fromkeys(f for _, f in self.output))
        renamed = {f.name: replace(f, name=builder.fresh("outer")) for f in fields}
        project = Project(self.distinct, tuple(_reference(f) for f in fields), tuple(renamed.values()))
        return Relation(project, tuple((name, renamed[f.name]) for name, f in self.output))


@dataclass(frozen=True, slots=True)
class EveryRow(CommonTable):
    """The body of an aggregate without GROUP BY, and one more row for each of D's, as a table."""

    every: EveryQuery
    outer: OuterRows
    scope: Mapping[str, CommonTable]

    def relation(self, builder: Builder) -> Relation:
        """Both together."""
        body = builder.query(self.every.body, self.scope)
        outer = self.outer.relation(builder)
        width = len(outer.output)
        columns = []
        for i, (name, f) in enumerate(body.output):
            kept = outer.output[i][1].not_null if i < width else name == PRESENT
            columns.append(replace(f, name=builder.fresh(name), not_null=kept, origin=None))
        fields = tuple(f for _, f in body.output), tuple(f for _, f in outer.output)
        operator = Every(body.operator, outer.operator, *fields, tuple(columns))
        return Relation(operator, tuple((name, f) for (name, _), f in zip(body.output, columns, strict=True)))


def attached(builder: Builder, operator: Operator, expressions: Sequence[exp.Expr]) -> tuple[Operator, list[exp.Expr]]:
    """The operator with the results of all subqueries in the expressions, and the expressions over its columns."""
    result = list(expressions)
    base = operator
    while True:
        call = next((c for e in result for c in e.find_all(exp.Anonymous) if placeholder(c) and _innermost(c)), None)
        if call is None:
            return operator, result
        subplan = builder.subplan(int(call.expressions[0].name))
        arguments = call.expressions[2:]
        known = {f.name for f in base.columns}
        within = base if all(c.name in known for a in arguments for c in a.find_all(exp.Column)) else operator
        operator, values = _value(builder, within, operator, subplan, arguments)
        text = [generate(a) for a in (call.expressions[0], *arguments)]
        result = [_replaced(e, text, values) for e in result]


def _innermost(call: exp.Expr) -> bool:
    return not any(has_placeholder(argument) for argument in call.expressions)


def _replaced(expression: exp.Expr, text: list[str], values: Sequence[exp.Expr]) -> exp.Expr:
    def replaced(node: exp.Expr) -> exp.Expr:
        if placeholder(node) and [generate(a) for a in (node.expressions[0], *node.expressions[2:])] == text:
            return values[int(node.expressions[1].name)].copy()
        return node

    return expression.copy().transform(replaced)


def _value(
    builder: Builder, base: Operator, operator: Operator, subplan: Subplan, arguments: Sequence[exp.Expr]
) -> tuple[Operator, list[exp.Expr]]:
    """The operator with the columns of a subquery; they may be computed for `base`'s rows, of which it has some."""
    if not subplan.reads_tables:
        return operator, [_function(subplan, arguments)]
    query = subplan.query
    if subplan.kind is Kind.EXISTS:
        query = _counted(query, builder)
    elif subplan.kind is not Kind.SCALAR:
        raise NotDifferentiable("NOT IN under another condition")
    relation, width, conditions = unnested(builder, base, subplan, query, arguments)
    rows = relation.operator
    if not at_most_one_row(query, builder.special):
        rows = Single(rows, tuple(dict.fromkeys(f for _, f in relation.output[:width])))
    rows = Settled(rows)
    values: list[exp.Expr] = [_reference(f) for _, f in relation.output[width:]]
    if one_row(query, builder.special):
        return Join((operator, rows), tuple(conditions), operator.columns + rows.columns), values
    return LeftJoin(operator, rows, tuple(conditions)), values


def _function(subplan: Subplan, arguments: Sequence[exp.Expr]) -> exp.Expr:
    """A subquery over its arguments alone."""
    known = dict(zip(subplan.parameters, arguments, strict=True))

    def replaced(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.table == subplan.outer:
            return known[node.name].copy()
        return node

    query = subplan.query.copy().transform(replaced)
    if subplan.kind is Kind.EXISTS:
        return exp.Exists(this=query)
    if subplan.kind is Kind.NOT_IN:
        row = [operand.copy().transform(replaced) for operand in subplan.operands]
        left = row[0] if len(row) == 1 else exp.Tuple(expressions=row)
        return exp.Not(this=exp.paren(exp.In(this=left, query=exp.Subquery(this=query))))
    # In parentheses of its own, since a subquery's are taken for those of an expression.
    return exp.Paren(this=exp.Subquery(this=query))


def _counted(query: exp.Expr, builder: Builder) -> exp.Select:
    """``EXISTS (Q)`` as an aggregate."""
    some = exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(0))
    plain = _plain(query)
    if plain is None:
        alias = exp.TableAlias(this=exp.to_identifier(builder.fresh("__pgt_q"), quoted=True))
        plain = exp.Select(from_=exp.From(this=exp.Subquery(this=query.copy(), alias=alias)))
    plain.set("expressions", [exp.alias_(some, "found", quoted=True)])
    return plain


def _plain(query: exp.Expr) -> exp.Select | None:
    """The query without what makes no difference to whether it has rows, None if more than FROM and WHERE remains."""
    if type(query) is not exp.Select:
        return None
    result = query.copy()
    limit = result.args.get("limit")
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Literal) and int(limit.expression.name) > 0:
        result.set("limit", None)
    result.set("distinct", None)
    if any(result.args.get(key) for key in ("group", "having", "limit", "offset", "from_") if key != "from_"):
        return None
    result.set("order", None)
    if not result.args.get("from_") or not all(_scalar(node) for node in result.expressions):
        return None
    return result


def _scalar(node: exp.Expr) -> bool:
    """Whether an item of a select list gives one value for a row, surely."""
    node = node.unalias().unnest()
    return isinstance(node, exp.Column | exp.Literal | exp.Boolean | exp.Null) or (
        isinstance(node, exp.Cast) and _scalar(node.this)
    )


def unnested(
    builder: Builder, base: Operator, subplan: Subplan, query: exp.Expr, arguments: Sequence[exp.Expr]
) -> tuple[Relation, int, list[exp.Expr]]:
    """A subquery for all values that its arguments take in `base`.

    Returns its relation, how many of its first columns are D's, and the conditions that its rows belong to a row.
    """
    if not subplan.parameters:
        return builder.query(query, subplan.scope), 0, []
    distinct, parameters, sides = _outer_rows(builder, base, subplan.parameters, arguments)
    every: list[EveryQuery] = []
    unnesting = Unnesting(subplan.outer, parameters, builder.fresh, builder.special, every)
    text = unnesting.query(query)
    scope: dict[str, CommonTable] = {**subplan.scope, subplan.outer: distinct}
    for body in every:
        scope[body.name] = EveryRow(body, distinct, dict(scope))
    relation = builder.query(text, scope)
    conditions: list[exp.Expr] = []
    for side, (_, f) in zip(sides, relation.output, strict=False):
        sure = f.not_null or _not_null(side, base)
        kind = exp.EQ if sure else Same
        conditions.append(kind(this=side.copy(), expression=_reference(f)))
    return relation, len(parameters), conditions


def _not_null(node: exp.Expr, operator: Operator) -> bool:
    return isinstance(node, exp.Column) and any(f.name == node.name and f.not_null for f in operator.columns)


def _outer_rows(
    builder: Builder, base: Operator, parameters: Sequence[str], arguments: Sequence[exp.Expr]
) -> tuple[OuterRows, list[str], list[exp.Expr]]:
    """D, the names of its columns, and the expressions over `base` that they are compared with.

    Values that are equal and look different are told apart by their text, since the subquery may look at it.
    """
    project, fields = builder.project(base, [("outer", argument) for argument in arguments])
    require_groupable(fields, "outer column of a subquery")
    names, sides = list(parameters), [argument.copy() for argument in arguments]
    for i, f in enumerate(fields):
        if not f.faithful and f.type:
            names.append(f"__pgt_t{i}")
            text = exp.cast(exp.paren(arguments[i].copy()), "text")
            sides.append(exp.Collate(this=exp.paren(text), expression=exp.to_identifier("C", quoted=True)))
    if len(sides) > len(fields):
        project, fields = builder.project(base, [("outer", side) for side in sides])
    output = tuple(zip(names, fields, strict=True))
    relation = builder.distinct(Relation(project, output))
    return OuterRows(relation.operator, relation.output), names, sides


def filtered(builder: Builder, operator: Operator, conditions: Sequence[exp.Expr]) -> Operator:
    """The rows of an operator that satisfy all conditions, subqueries in them or not."""
    plain = [c for c in conditions if not has_placeholder(c)]
    if plain:
        operator = Filter(operator, exp.and_(*plain, wrap=True, copy=True), operator.columns)
    rest = []
    for condition in [c for c in conditions if has_placeholder(c)]:
        inner, wanted = condition.unnest(), True
        while isinstance(inner, exp.Not):
            inner, wanted = inner.this.unnest(), not wanted
        if placeholder(inner) and builder.subplan(int(inner.expressions[0].name)).kind is not Kind.SCALAR:
            operator = _matching(builder, operator, inner, wanted=wanted)
        else:
            rest.append(condition)
    if rest:
        operator, rest = attached(builder, operator, rest)
        operator = Filter(operator, exp.and_(*rest, wrap=True), operator.columns)
    return operator


def _matching(builder: Builder, operator: Operator, call: exp.Expr, *, wanted: bool) -> Operator:
    """``[NOT] EXISTS`` and ``NOT IN``."""
    subplan = builder.subplan(int(call.expressions[0].name))
    arguments = call.expressions[2:]
    if any(has_placeholder(a) for a in arguments):
        operator, arguments = attached(builder, operator, arguments)
    if not subplan.reads_tables:
        condition = _function(subplan, arguments)
        condition = condition if wanted else exp.Not(this=exp.paren(condition))
        return Filter(operator, condition, operator.columns)
    rows, output, conditions = _pulled_up(builder, operator, subplan, arguments)
    if subplan.kind is Kind.NOT_IN:
        return _not_in(builder, operator, subplan, arguments, rows, output, conditions)
    conditions = [c for c in conditions if not (isinstance(c, exp.Boolean) and c.this)]
    return (SemiJoin if wanted else AntiJoin)(operator, rows, tuple(conditions))


def _pulled_up(
    builder: Builder, operator: Operator, subplan: Subplan, arguments: Sequence[exp.Expr]
) -> tuple[Operator, tuple[Field, ...], list[exp.Expr]]:
    """A subquery's rows, its own columns, and the conditions under which a row belongs to a row of `operator`."""
    plain = _plain(subplan.query)
    if subplan.parameters and plain is not None:
        split = _split(plain, subplan.outer)
        if split is not None:
            return _plain_rows(builder, plain, *split, subplan, arguments)
    query = subplan.query
    if not subplan.parameters and plain is not None and subplan.kind is Kind.EXISTS:
        plain.set("expressions", [exp.alias_(exp.true(), "found", quoted=True)])
        query = plain
    relation, width, conditions = unnested(builder, operator, subplan, query, arguments)
    return relation.operator, tuple(f for _, f in relation.output[width:]), conditions


def _split(plain: exp.Select, outer: str) -> tuple[list[exp.Expr], list[exp.Expr]] | None:
    """The conditions of WHERE without and with outer columns, None if these are used elsewhere, too."""
    where = plain.args.get("where")
    inner: list[exp.Expr] = []
    joining: list[exp.Expr] = []
    for condition in _conjuncts(where.this) if where is not None else []:
        if not any(c.table == outer for c in condition.find_all(exp.Column)):
            inner.append(condition)
        elif condition.find(exp.Query):
            return None
        else:
            joining.append(condition)
    elsewhere = [part for key, part in plain.args.items() if key not in ("where", "expressions") and part]
    flat = [node for part in elsewhere for node in (part if isinstance(part, list) else [part])]
    for node in [*flat, *plain.expressions]:
        if isinstance(node, exp.Expr) and any(c.table == outer for c in node.find_all(exp.Column)):
            return None
    return inner, joining


def _conjuncts(node: exp.Expr) -> list[exp.Expr]:
    node = node.unnest()
    return [*_conjuncts(node.left), *_conjuncts(node.right)] if isinstance(node, exp.And) else [node]


def _plain_rows(
    builder: Builder,
    plain: exp.Select,
    inner: list[exp.Expr],
    joining: list[exp.Expr],
    subplan: Subplan,
    arguments: Sequence[exp.Expr],
) -> tuple[Operator, tuple[Field, ...], list[exp.Expr]]:
    """The rows of FROM and the conditions without outer columns; the others are conditions of the join."""
    own = [e.unalias() for e in plain.expressions] if subplan.kind is Kind.NOT_IN else []
    used: dict[str, exp.Expr] = {}
    for condition in joining:
        for column in condition.find_all(exp.Column):
            if column.table != subplan.outer:
                used.setdefault(generate(column), column.copy())
    columns = [*own, *used.values()] or [exp.true()]
    plain.set("expressions", [exp.alias_(c.copy(), f"c{i}", quoted=True) for i, c in enumerate(columns)])
    plain.set("where", exp.Where(this=exp.and_(*inner, wrap=True)) if inner else None)
    relation = builder.query(plain, subplan.scope)
    fields = [f for _, f in relation.output]
    theirs = dict(zip(used, fields[len(own) :], strict=False))
    mine = dict(zip(subplan.parameters, arguments, strict=True))

    def replaced(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        if node.table == subplan.outer:
            return mine[node.name].copy()
        return _reference(theirs[generate(node)])

    conditions = [condition.copy().transform(replaced) for condition in joining]
    return relation.operator, tuple(fields[: len(own)]), conditions


def _not_in(
    builder: Builder,
    operator: Operator,
    subplan: Subplan,
    arguments: Sequence[exp.Expr],
    rows: Operator,
    output: tuple[Field, ...],
    conditions: list[exp.Expr],
) -> Operator:
    """``x NOT IN (Q)``: there is no row for which ``x = y`` is true or unknown.

    One value is compared by three anti-joins that can be hashed: rows with ``x = y``, rows with a NULL, and any row
    where x is NULL.
    """
    mine = dict(zip(subplan.parameters, arguments, strict=True))
    operands = [
        mine[o.name].copy() if isinstance(o, exp.Column) and o.table == subplan.outer else o.copy()
        for o in subplan.operands
    ]
    sure = [_not_null(x, operator) or isinstance(x.unnest(), exp.Literal) for x in operands]
    parts = []
    for x, known, y in zip(operands, sure, output, strict=True):
        equal: exp.Expr = exp.EQ(this=x, expression=_reference(y))
        single = len(operands) == 1 or (known and y.not_null)
        parts.append(equal if single else exp.Not(this=exp.Is(this=exp.paren(equal), expression=exp.false())))
    result: Operator = AntiJoin(operator, rows, (*conditions, *parts))
    if len(operands) > 1:
        return result
    if not output[0].not_null:
        unknown = Filter(rows, exp.Is(this=_reference(output[0]), expression=exp.null()), rows.columns)
        result = AntiJoin(result, unknown, tuple(conditions))
    if not sure[0]:
        nothing = exp.Is(this=exp.paren(operands[0].copy()), expression=exp.null())
        if not conditions:
            rows = _some(builder, rows)
        result = AntiJoin(result, rows, (*conditions, nothing))
    return result


def _some(builder: Builder, rows: Operator) -> Operator:
    """One row if there are any."""
    from .operators import Aggregate, Call

    count = Field(builder.fresh("count"), "bigint", not_null=True, scale=0)
    total = Aggregate(rows, (), (Call(count, "count", ()),), False)
    some = exp.GT(this=_reference(count), expression=exp.Literal.number(0))
    return Filter(total, some, total.columns)


def on_condition(
    builder: Builder, kept: Operator, padded: Operator, conditions: Sequence[exp.Expr]
) -> tuple[Operator, Operator, list[exp.Expr]]:
    """The inputs of an outer join with the results of the subqueries in its conditions, and these over their columns.

    A result that depends on both sides has a row for every pair of arguments that can match; it is joined to the padded
    side, and the rest of its arguments are compared as a condition of the outer join.
    """
    plain = [c for c in conditions if not has_placeholder(c)]
    rest = [c for c in conditions if has_placeholder(c)]
    below = [c for c in rest if {x.name for x in c.find_all(exp.Column)} <= {f.name for f in padded.columns}]
    if below:
        padded = filtered(builder, padded, below)
    rest = [c for c in rest if c not in below]
    while True:
        call = next((c for e in rest for c in e.find_all(exp.Anonymous) if placeholder(c) and _innermost(c)), None)
        if call is None:
            return kept, padded, [*plain, *rest]
        subplan = builder.subplan(int(call.expressions[0].name))
        arguments = call.expressions[2:]
        used = {c.name for a in arguments for c in a.find_all(exp.Column)}
        values: list[exp.Expr]
        if not used <= {f.name for f in kept.columns} and not used <= {f.name for f in padded.columns}:
            padded, values, agree = _paired(builder, kept, padded, plain, subplan, arguments)
            plain += agree
        elif used and used <= {f.name for f in kept.columns}:
            kept, values = _value(builder, kept, kept, subplan, arguments)
        else:
            padded, values = _value(builder, padded, padded, subplan, arguments)
        text = [generate(a) for a in (call.expressions[0], *arguments)]
        rest = [_replaced(e, text, values) for e in rest]


def _paired(
    builder: Builder,
    kept: Operator,
    padded: Operator,
    plain: Sequence[exp.Expr],
    subplan: Subplan,
    arguments: Sequence[exp.Expr],
) -> tuple[Operator, list[exp.Expr], list[exp.Expr]]:
    if not subplan.reads_tables:
        return padded, [_function(subplan, arguments)], []
    query = _counted(subplan.query, builder) if subplan.kind is Kind.EXISTS else subplan.query
    if not one_row(query, builder.special):
        raise NotDifferentiable("subquery over both sides of an outer join in its condition")
    pairs = Join((kept, padded), tuple(plain), kept.columns + padded.columns)
    relation, width, conditions = unnested(builder, pairs, subplan, query, arguments)
    rows = Settled(relation.operator)
    own = {f.name for f in padded.columns + rows.columns}
    inside = [c for c in conditions if {x.name for x in c.find_all(exp.Column)} <= own]
    joined = Join((padded, rows), tuple(inside), padded.columns + rows.columns)
    values: list[exp.Expr] = [_reference(f) for _, f in relation.output[width:]]
    return joined, values, [c for c in conditions if c not in inside]


def lateral(builder: Builder, left: FromClause, node: exp.Lateral) -> FromClause:
    """LATERAL (subquery): its rows for each value of the outer columns, joined on them."""
    from .subqueries import lateral_subplan

    inner = node.this
    subplan, columns = lateral_subplan(builder, inner, left.bindings)
    fields = [builder.column(column, left.bindings) for column in columns]
    base = _supplier(builder, left, fields)
    relation, width, conditions = unnested(builder, base, subplan, subplan.query, [_reference(f) for f in fields])
    output = Relation(relation.operator, relation.output[width:])
    result = builder.derived_table(node.alias, output, node.args.get("alias"))
    result.lateral = conditions
    return result


def _supplier(builder: Builder, left: FromClause, fields: Sequence[Field]) -> Operator:
    """The operator that has the columns: one item of FROM, or those that it takes, joined."""
    wanted = {f.name for f in fields}
    operators = [o for o in left.operators if wanted & {f.name for f in o.columns}]
    if len(operators) <= 1:
        return operators[0] if operators else left.operators[0]
    names = {f.name for o in operators for f in o.columns}
    conditions = [c for c in left.conditions if {x.name for x in c.find_all(exp.Column)} <= names]
    columns = tuple(f for o in operators for f in o.columns)
    return Join(tuple(operators), tuple(c for c in conditions if not has_placeholder(c)), columns)


def _reference(column: Field) -> exp.Column:
    return exp.column(exp.to_identifier(column.name, quoted=True))


__all__ = ["Binding", "attached", "filtered", "lateral", "unnested"]
