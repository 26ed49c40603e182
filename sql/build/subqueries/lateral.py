"""LATERAL subqueries: their rows for each value of the outer columns, joined on them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sql.base.columns import Field
from sql.build.protocol import Builder
from sql.build.scope import FromClause, Relation
from sql.build.subqueries.domain import reference, unnested
from sql.build.subqueries.extract import lateral_subplan
from sql.build.subqueries.subplan import has_placeholder
from sql.operators import Join, Operator


def lateral(builder: Builder, left: FromClause, node: exp.Lateral) -> FromClause:
    """LATERAL (subquery): its rows for each value of the outer columns, joined on them."""
    inner = node.this
    subplan, columns = lateral_subplan(builder, inner, left.bindings)
    fields = [builder.column(column, left.bindings) for column in columns]
    base = _supplier(builder, left, fields)
    relation, width, conditions = unnested(builder, base, subplan, subplan.query, [reference(f) for f in fields])
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
    columns = tuple(f for o in operators for f in o.columns)
    names = {f.name for f in columns}
    conditions = [c for c in left.conditions if {x.name for x in c.find_all(exp.Column)} <= names]
    return Join(tuple(operators), tuple(c for c in conditions if not has_placeholder(c)), columns)
