"""SELECT, clause by clause in the order in which PostgreSQL evaluates them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sql.base.columns import Column
from sql.build.aggregation import build_aggregate, has_aggregates
from sql.build.grouping_sets import grouped_by
from sql.build.ordering import Ordering, distinct_on, lift
from sql.build.projection import distinct_rows, projected
from sql.build.protocol import Builder, Scope
from sql.build.scope import FromClause, Relation
from sql.build.windows import Windows
from sql.canonical.dialect import generate
from sql.canonical.other_filter import without_change
from sql.canonical.row_expressions import conjuncts
from sql.operators import Operator
from sql.operators.filter import Refiltered


def build_select(builder: Builder, query: exp.Select, scope: Scope, output: Sequence[Column] | None) -> Relation:
    """SELECT: FROM, WHERE, GROUP BY and HAVING, the select list, DISTINCT."""
    clause = builder.from_clause(query, scope)
    operator = _where(builder, query, clause)
    windows, ordering = Windows.of(query), Ordering.of(query)

    known: dict[str, exp.Expr] = {}

    def resolved(node: exp.Expr) -> exp.Expr:
        """What is given out and also sorted by is one expression, even if its subqueries would be two."""
        text = generate(node.unnest())
        if text not in known:
            node = windows.take(builder.without_subqueries(node, clause.bindings))
            known[text] = builder.resolve(node, clause.bindings)
        return known[text].copy()

    expressions = [(node.alias_or_name or "column", resolved(node.unalias())) for node in query.expressions]
    hidden = [resolved(node) for node in ordering.expressions]
    components = [resolved(node) for node in list(windows.components)]
    parts = [expression for _, expression in expressions] + hidden + components
    operator, parts = _grouped(builder, query, clause, operator, parts, len(expressions) + len(hidden))
    if components:
        components, parts = parts[-len(components) :], parts[: -len(components)]
    operator, parts = windows.build(builder, operator, parts, components)
    parts, hidden = parts[: len(expressions)], parts[len(expressions) :]
    operator, hidden = lift(builder, operator, parts, hidden)
    named = [(name, part) for (name, _), part in zip(expressions, parts, strict=True)]
    operator, fields = projected(builder, operator, [*named, *(("order", part) for part in hidden)], output)
    order, on = ordering.keys(fields[len(named) :])
    relation = Relation(operator, tuple((n, f) for (n, _), f in zip(named, fields, strict=False)), order)
    distinct = query.args.get("distinct")
    if distinct is None:
        return relation
    return distinct_on(relation, on) if distinct.args.get("on") else distinct_rows(builder, relation)


def _where(builder: Builder, query: exp.Select, clause: FromClause) -> Operator:
    """WHERE; where some of its conditions take the place of others, what is above learns of it as of a change."""
    where = query.args.get("where")
    condition = where.this if where else None
    both, change = without_change(condition)
    if change is None:
        return builder.combined(clause, condition)
    operator = builder.combined(clause, exp.and_(*both, wrap=True) if both else None)
    then, now = (
        builder.resolve(side, clause.bindings, condition=True) if side is not None else None
        for side in (change.this, change.expression)
    )
    return Refiltered(operator, then, now)


def _grouped(
    builder: Builder, query: exp.Select, clause: FromClause, operator: Operator, parts: list[exp.Expr], columns: int
) -> tuple[Operator, list[exp.Expr]]:
    """GROUP BY and HAVING, and the expressions over what is left; so many of the first are columns of the query."""
    having, group = query.args.get("having"), query.args.get("group")
    condition = builder.resolve(having.this, clause.bindings, condition=True) if having else None
    if condition is not None:
        parts = [*parts, condition]
    if group or condition is not None or has_aggregates(builder, parts):
        keys = grouped_by(group, lambda node: builder.resolve(node, clause.bindings)) if group else None
        operator, parts = build_aggregate(builder, operator, keys, parts, columns)
    if condition is None:
        return operator, parts
    return builder.filtered(operator, conjuncts(parts[-1])), parts[:-1]
