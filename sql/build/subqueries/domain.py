"""D, the distinct outer rows that a subquery is computed for, and the subquery for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.build.projection import distinct_rows, projected, require_groupable
from sql.build.protocol import Builder, CommonTable, Subplan
from sql.build.scope import Relation
from sql.build.subqueries.unnest import PRESENT, EveryQuery, Unnesting
from sql.canonical.null_safe_equal import NullSafeEqual, same
from sql.operators import LeftJoin, Operator, Project
from sql.operators.shared_subplan import SharedSubplan
from sql.operators.subqueries.enforce_single_row import EnforceSingleRow
from sql.operators.subqueries.outer_domain_union import OuterDomainUnion


def reference(column: Field) -> exp.Column:
    """A column of the operator tree in an expression."""
    return exp.column(exp.to_identifier(column.name, quoted=True))


@dataclass(frozen=True, slots=True)
class OuterRows(CommonTable):
    """D, as a table that an unnested query reads."""

    distinct: Operator
    output: tuple[tuple[str, Field], ...]

    def relation(self, builder: Builder) -> Relation:
        """D's rows under column names of their own."""
        fields = tuple(dict.fromkeys(f for _, f in self.output))
        renamed = {f.name: replace(f, name=builder.fresh("outer")) for f in fields}
        project = Project(self.distinct, tuple(reference(f) for f in fields), tuple(renamed.values()))
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
        operator = OuterDomainUnion(body.operator, outer.operator, *fields, tuple(columns))
        return Relation(operator, tuple((name, f) for (name, _), f in zip(body.output, columns, strict=True)))


def unnested(
    builder: Builder,
    base: Operator,
    subplan: Subplan,
    query: exp.Expr,
    arguments: Sequence[exp.Expr],
    *,
    total: bool = False,
) -> tuple[Relation, int, list[exp.Expr]]:
    """A subquery for all values that its arguments take in `base`; ``total``: with one row for each of them.

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
    if total:
        relation = _total(builder, relation, distinct)
    conditions: list[exp.Expr] = []
    for side, (_, f) in zip(sides, relation.output, strict=False):
        sure = f.not_null or not_null(side, base)
        kind = exp.EQ if sure else NullSafeEqual
        conditions.append(kind(this=side.copy(), expression=reference(f)))
    return relation, len(parameters), conditions


def _total(builder: Builder, relation: Relation, distinct: OuterRows) -> Relation:
    """At most one row for each of D's as one row for each."""
    outer = distinct.relation(builder)
    pairs = list(zip((f for _, f in outer.output), (f for _, f in relation.output), strict=False))
    rows = EnforceSingleRow(relation.operator, tuple(dict.fromkeys(f for _, f in pairs)))
    operator = LeftJoin(outer.operator, rows, tuple(same(mine, theirs) for mine, theirs in pairs))
    columns = {f.name: f for f in operator.columns}
    values = tuple((name, columns[f.name]) for name, f in relation.output[len(pairs) :])
    return Relation(operator, outer.output + values)


def not_null(node: exp.Expr, operator: Operator) -> bool:
    return isinstance(node, exp.Column) and any(f.name == node.name and f.not_null for f in operator.columns)


def _outer_rows(
    builder: Builder, base: Operator, parameters: Sequence[str], arguments: Sequence[exp.Expr]
) -> tuple[OuterRows, list[str], list[exp.Expr]]:
    """D, the names of its columns, and the expressions over `base` that they are compared with.

    Values that are equal and look different are told apart by their text, since the subquery may look at it.
    """
    base = SharedSubplan(base)
    project, fields = projected(builder, base, [("outer", argument) for argument in arguments])
    require_groupable(fields, "outer column of a subquery")
    names, sides = list(parameters), [argument.copy() for argument in arguments]
    for i, f in enumerate(fields):
        if not f.equality_is_identity and f.type:
            names.append(f"__pgt_t{i}")
            text = exp.cast(exp.paren(arguments[i].copy()), "text")
            sides.append(exp.Collate(this=exp.paren(text), expression=exp.to_identifier("C", quoted=True)))
    if len(sides) > len(fields):
        project, fields = projected(builder, base, [("outer", side) for side in sides])
    output = tuple(zip(names, fields, strict=True))
    relation = distinct_rows(builder, Relation(project, output))
    return OuterRows(relation.operator, relation.output), names, sides
