"""The columns of a select list: expressions over an operator, and what PostgreSQL must be asked about their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from sql.base.columns import Column, Field
from sql.base.columns import field as described
from sql.base.text import aliased, derived, select
from sql.base.types import expression_scale, result_type
from sql.build.protocol import Builder
from sql.build.scope import Relation
from sql.build.subqueries.subplan import has_placeholder
from sql.canonical.dialect import generate
from sql.canonical.row_expressions import returns_set
from sql.errors import NotDifferentiable
from sql.operators import Distinct, Operator, Project, ProjectSet
from sql.operators.plan import NOTHING


def projected(
    builder: Builder,
    operator: Operator,
    expressions: Sequence[tuple[str, exp.Expr]],
    output: Sequence[Column] | None = None,
) -> tuple[Operator, list[Field]]:
    """Named expressions over an operator; for each the column that holds it. Equal ones share a column."""
    if any(has_placeholder(expression) for _, expression in expressions):
        operator, results = builder.attached(operator, [expression for _, expression in expressions])
        expressions = [(hint, result) for (hint, _), result in zip(expressions, results, strict=True)]
    fields = {column.name: column for column in operator.columns}
    columns, computed, result = _told_apart(builder, expressions, output, fields)
    if computed and not output:
        _describe(builder, operator, computed, fields)
    columns |= {key: _with_scale(expression, found, fields) for key, (expression, found) in computed.items()}
    written = [
        computed[key][0] if key in computed else exp.column(exp.to_identifier(column.name, quoted=True))
        for key, column in columns.items()
    ]
    project = Project(operator, tuple(written), tuple(columns.values()))
    sets = any(returns_set(expression, builder.special) for expression, _ in computed.values())
    return ProjectSet(project) if sets else project, [columns[key] for key in result]


def _told_apart(
    builder: Builder,
    expressions: Sequence[tuple[str, exp.Expr]],
    output: Sequence[Column] | None,
    fields: Mapping[str, Field],
) -> tuple[dict[str, Field], dict[str, tuple[exp.Expr, Field]], list[str]]:
    """By their texts the expressions that are columns, those that are computed, with their columns; and all texts."""
    columns: dict[str, Field] = {}
    computed: dict[str, tuple[exp.Expr, Field]] = {}
    plain = [expression.unnest() for _, expression in expressions]
    texts = [generate(expression) for expression in plain]
    for i, (expression, text) in enumerate(zip(plain, texts, strict=True)):
        if isinstance(expression, exp.Column):
            columns[text] = fields[expression.name]
        elif text not in computed:
            name = builder.fresh(expressions[i][0])
            computed[text] = expression, described(name, output[i]) if output else Field(name, "")
    return columns, computed, texts


def _with_scale(node: exp.Expr, described: Field, fields: Mapping[str, Field]) -> Field:
    """The column of an expression with the display scale that all its values have, if they have one."""
    if described.base_type != "numeric":
        return described
    scale = expression_scale(node, fields)
    # Numerics of one scale are equal only if they look the same.
    return replace(described, scale=scale, equality_is_identity=described.equality_is_identity or scale is not None)


def _describe(
    builder: Builder, operator: Operator, computed: dict[str, tuple[exp.Expr, Field]], fields: Mapping[str, Field]
) -> None:
    """Find the types of expressions over an operator; PostgreSQL is asked for those that are not obvious."""
    unknown = []
    for key, (plain, found) in computed.items():
        type_ = result_type(plain, fields)
        if type_ is None:
            unknown.append(key)
        else:
            known = Column(found.name, type_, equality_is_identity=type_ != "numeric")
            computed[key] = (plain, described(found.name, known))
    if unknown:
        probe = select([aliased(k, computed[k][1].name) for k in unknown], derived(operator.new(NOTHING), "p"))
        for key, column in zip(unknown, builder.types.describe(probe, len(unknown)), strict=True):
            plain, found = computed[key]
            computed[key] = (plain, described(found.name, column))


def distinct_rows(builder: Builder, relation: Relation) -> Relation:
    """Every row of a relation once."""
    operator, fields = projected(
        builder,
        relation.operator,
        [(f.name, exp.column(exp.to_identifier(f.name, quoted=True))) for _, f in relation.output],
    )
    require_groupable(operator.columns, "DISTINCT")
    names = [name for name, _ in relation.output]
    distinct = Distinct(operator, operator.columns, (), True)
    return Relation(distinct, tuple(zip(names, fields, strict=True)), relation.order)


def require_groupable(columns: Sequence[Field], construct: str) -> None:
    """A key must be hashable, or at least look different where it differs."""
    for column in columns:
        if not (column.hashable or column.equality_is_identity):
            raise NotDifferentiable(f"{construct} of type {column.type}")
