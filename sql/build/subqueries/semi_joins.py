"""Subqueries as conditions: ``[NOT] EXISTS`` and ``NOT IN`` as semi-joins and anti-joins.

Where the subquery is a plain SELECT its conditions on outer columns are those of the join; any other shape is unnested,
and the join is on D.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sql.base.columns import Field
from sql.build.protocol import Builder, Kind, Subplan
from sql.build.subqueries.domain import not_null, reference, unnested
from sql.build.subqueries.simple_select import plain_select, split_conditions
from sql.canonical.dialect import generate
from sql.operators import AntiJoin, Constants, Filter, Join, Operator, Project, Scan, SemiJoin


def matching(
    builder: Builder,
    base: Operator,
    operator: Operator,
    subplan: Subplan,
    arguments: Sequence[exp.Expr],
    *,
    wanted: bool,
) -> Operator:
    """The rows of an operator for which ``EXISTS`` is as wanted, or ``NOT IN`` true. D is that of ``base``."""
    rows, output, conditions = _pulled_up(builder, base, subplan, arguments)
    if subplan.kind is Kind.NOT_IN:
        return _not_in(builder, operator, subplan, arguments, rows, output, conditions)
    conditions = [c for c in conditions if not (isinstance(c, exp.Boolean) and c.this)]
    return _placed(SemiJoin if wanted else AntiJoin, operator, rows, tuple(conditions))


def _only_input(join: Join, conditions: Sequence[exp.Expr]) -> int | None:
    """The one input that conditions speak of. None if there are several, or if the join leaves out rows of one."""
    owner = {f.name: number for number, below in enumerate(join.joined) for f in below.columns}
    owners = [{owner[c.name] for c in condition.find_all(exp.Column)} for condition in join.conditions]
    speaks_of = {owner[c.name] for condition in conditions for c in condition.find_all(exp.Column) if c.name in owner}
    return speaks_of.pop() if len(speaks_of) == 1 and all(len(some) > 1 for some in owners) else None


def _placed(
    kind: type[SemiJoin | AntiJoin], operator: Operator, rows: Operator, conditions: tuple[exp.Expr, ...]
) -> Operator:
    """A semi-join or anti-join; of a join of whole tables with groups, that of the one table that it speaks of.

    ``(A ⋈ B) ⋉ R = A ⋈ (B ⋉ R)``. Where nothing else leaves rows out, it is better to join those alone that are left.
    """
    if not (isinstance(operator, Join) and rows.barrier and all(isinstance(i, Scan) for i in operator.joined)):
        return kind(operator, rows, conditions)
    number = _only_input(operator, conditions)
    if number is None:
        return kind(operator, rows, conditions)
    inputs = list(operator.joined)
    inputs[number] = kind(inputs[number], rows, conditions)
    changed = {f.name: f for f in inputs[number].columns}
    columns = tuple(changed.get(f.name, f) for f in operator.columns)
    return Join(tuple(inputs), operator.conditions, columns)


def _pulled_up(
    builder: Builder, operator: Operator, subplan: Subplan, arguments: Sequence[exp.Expr]
) -> tuple[Operator, tuple[Field, ...], list[exp.Expr]]:
    """A subquery's rows, its own columns, and the conditions under which a row belongs to a row of `operator`."""
    plain = plain_select(subplan.query, compared=subplan.kind is Kind.NOT_IN)
    if subplan.parameters and plain is not None:
        split = split_conditions(plain, subplan.outer)
        if split is not None:
            return _plain_rows(builder, plain, *split, subplan, arguments)
    query = subplan.query
    if not subplan.parameters and plain is not None and subplan.kind is Kind.EXISTS:
        plain.set("expressions", [exp.alias_(exp.true(), "found", quoted=True)])
        query = plain
    relation, width, conditions = unnested(builder, operator, subplan, query, arguments)
    return relation.operator, tuple(f for _, f in relation.output[width:]), conditions


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
        return reference(theirs[generate(node)])

    conditions = [condition.transform(replaced) for condition in joining]
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
    sure = [not_null(x, operator) or isinstance(x.unnest(), exp.Literal) for x in operands]
    parts = []
    for x, known, y in zip(operands, sure, output, strict=True):
        equal: exp.Expr = exp.EQ(this=x, expression=reference(y))
        single = len(operands) == 1 or (known and y.not_null)
        parts.append(equal if single else exp.Not(this=exp.Is(this=exp.paren(equal), expression=exp.false())))
    result: Operator = AntiJoin(operator, rows, (*conditions, *parts))
    if len(operands) > 1:
        return result
    if not output[0].not_null:
        unknown = Filter(rows, exp.Is(this=reference(output[0]), expression=exp.null()), rows.columns)
        result = AntiJoin(result, unknown, tuple(conditions))
    if not sure[0]:
        nothing = exp.Is(this=exp.paren(operands[0].copy()), expression=exp.null())
        if not conditions:
            rows = _some(builder, rows)
        result = AntiJoin(result, rows, (*conditions, nothing))
    return result


def _some(builder: Builder, rows: Operator) -> Operator:
    """One row if there are any."""
    column = Field(builder.fresh("found"), "boolean", not_null=True)
    return Project(SemiJoin(Constants(((),), ()), rows, ()), (exp.true(),), (column,))
