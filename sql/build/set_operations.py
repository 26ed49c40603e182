"""UNION, INTERSECT and EXCEPT, VALUES, and the row that SELECT without FROM reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from sql.base.columns import Column, Field
from sql.base.columns import field as described
from sql.build.collations import agreed, refuse_unclear
from sql.build.projection import distinct_rows, require_groupable
from sql.build.protocol import Builder, Scope
from sql.build.scope import Relation
from sql.canonical.from_items import ValuesQuery
from sql.canonical.row_expressions import check
from sql.errors import NotDifferentiable
from sql.operators import Constants, Operator, Project, SetOperation, UnionAll
from sql.operators.plan import NOTHING


def build_union(builder: Builder, query: exp.Union, scope: Scope, output: Sequence[Column] | None) -> Relation:
    """UNION [ALL]. Within a UNION it makes no difference whether a branch gives its rows once."""
    distinct = bool(query.args.get("distinct"))
    nodes = agreed([query.left, query.right], builder.fresh)
    branches = [_branch(builder, node, scope, distinct=distinct) for node in nodes]
    refuse_unclear(nodes, [[f.type for f in _fields(branch)] for branch in branches])
    columns = _common_columns(builder, branches, output)
    union = UnionAll.of([b.operator for b in branches], [_fields(b) for b in branches], columns)
    relation = Relation(union, tuple(zip([name for name, _ in branches[0].output], columns, strict=True)))
    return distinct_rows(builder, relation) if distinct else relation


def _branch(builder: Builder, node: exp.Expr, scope: Scope, *, distinct: bool) -> Relation:
    inner = node.unnest() if isinstance(node, exp.Subquery) else node
    if distinct and isinstance(inner, exp.Union) and not any(inner.args.get(part) for part in ("limit", "offset")):
        node = inner.copy()
        node.set("distinct", False)
    return builder.query(node, scope)


def build_set_operation(
    builder: Builder, query: exp.SetOperation, scope: Scope, output: Sequence[Column] | None
) -> Relation:
    """INTERSECT [ALL] and EXCEPT [ALL]."""
    kind = type(query).__name__.upper()
    nodes = agreed([query.left, query.right], builder.fresh)
    branches = [builder.query(node, scope) for node in nodes]
    refuse_unclear(nodes, [[f.type for f in _fields(branch)] for branch in branches])
    columns = _common_columns(builder, branches, output)
    require_groupable(columns, kind)
    side = Field(builder.fresh("side"), "integer", not_null=True)
    tagged = UnionAll(
        tuple(_tagged(branch.operator, side, number) for number, branch in enumerate(branches, 1)),
        tuple((*_fields(branch), side) for branch in branches),
        (*columns, side),
    )
    operator = SetOperation(tagged, columns, side, kind, not query.args.get("distinct"))
    return Relation(operator, tuple(zip([name for name, _ in branches[0].output], columns, strict=True)))


def _fields(relation: Relation) -> tuple[Field, ...]:
    return tuple(f for _, f in relation.output)


def _tagged(operator: Operator, side: Field, number: int) -> Operator:
    columns = tuple(exp.column(exp.to_identifier(f.name, quoted=True)) for f in operator.columns)
    return Project(operator, (*columns, exp.Literal.number(number)), (*operator.columns, side))


def _common_columns(
    builder: Builder, branches: Sequence[Relation], output: Sequence[Column] | None
) -> tuple[Field, ...]:
    """The columns of all branches together, of the types that PostgreSQL brings them to."""
    outputs = tuple(_fields(branch) for branch in branches)
    fresh = [builder.fresh(name) for name, _ in branches[0].output]
    types = output
    if types is None and any(left.type != right.type for left, right in zip(*outputs, strict=True)):
        untyped = tuple(Field(name, "") for name in fresh)
        union = UnionAll(tuple(branch.operator for branch in branches), outputs, untyped)
        types = builder.types.describe(union.new(NOTHING), len(fresh))
    columns = []
    for i, (left, right) in enumerate(zip(*outputs, strict=True)):
        column = described(fresh[i], types[i]) if types is not None else replace(left, name=fresh[i], origin=None)
        columns.append(
            replace(
                column,
                not_null=left.not_null and right.not_null,
                equality_is_identity=column.equality_is_identity
                and left.equality_is_identity
                and right.equality_is_identity,
                scale=(left.scale if left.scale == right.scale else None)
                if column.base_type == "numeric"
                else column.scale,
            )
        )
    return tuple(columns)


def build_values_query(builder: Builder, query: ValuesQuery, scope: Scope, output: Sequence[Column] | None) -> Relation:
    """VALUES where a query stands."""
    return build_values(builder, query.args["from_"].this, output)


def build_values(builder: Builder, query: exp.Values, output: Sequence[Column] | None = None) -> Relation:
    """VALUES: rows of constants, their columns called column1, column2 and so on."""
    rows = tuple(tuple(row.expressions) for row in query.expressions)
    for row in rows:
        for value in row:
            check(value, builder.special)
            if value.find(exp.Column):
                raise NotDifferentiable("VALUES with columns of other relations")
    columns = tuple(Field(builder.fresh("column"), "") for _ in rows[0])
    types = output or builder.types.describe(Constants(rows, columns).new(NOTHING), len(columns))
    columns = tuple(described(f.name, c) for f, c in zip(columns, types, strict=True))
    return Relation(Constants(rows, columns), tuple((f"column{i}", f) for i, f in enumerate(columns, 1)))
