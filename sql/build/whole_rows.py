"""A reference to a whole row (``row_to_json(t.*)``).

Of a table it is one more column, a value of the table's row type, computed where the table is read: below any outer
join, which makes it NULL, not a row of NULLs. Of a subquery it is a value of no type that a column could have, made
of the subquery's columns where it is used; one more column tells whether there is a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from sql.base.columns import Field, Source
from sql.base.text import quote
from sql.build.projection import projected
from sql.build.protocol import Builder
from sql.build.scope import Binding, FromClause, Relation
from sql.canonical.expressions import Worded
from sql.operators import Operator

THERE = "* there"
"""The name of the column that tells whether there is a row of a subquery; no user's column stands beside it."""


def wanted(table: exp.Table | exp.Subquery) -> bool:
    """Whether the query speaks of whole rows of an item in its FROM."""
    query = table.find_ancestor(exp.Select)
    if query is None:
        return False
    if "whole_rows" not in query.meta:
        columns = query.find_all(exp.Column)
        query.meta["whole_rows"] = frozenset(c.table for c in columns if isinstance(c.this, exp.Star))
    return (table.alias or table.name) in query.meta["whole_rows"]


def with_marker(builder: Builder, clause: FromClause) -> FromClause:
    """A subquery in FROM with one more column, which tells whether there is a row."""
    (operator,), (binding,) = clause.operators, clause.bindings
    columns = [(f.name, exp.column(exp.to_identifier(f.name, quoted=True))) for f in operator.columns]
    marked, fields = projected(builder, operator, [*columns, ("there", exp.true())])
    clause.operators = [marked]
    clause.bindings = [replace(binding, columns={**binding.columns, THERE: fields[-1]})]
    return clause


def expanded(node: exp.Expr, bindings: Sequence[Binding]) -> exp.Expr:
    """An expression with whole rows of subqueries written as their columns."""
    known = {binding.alias: list(binding.columns) for binding in bindings if THERE in binding.columns}
    if not known:
        return node

    def replaced(part: exp.Expr) -> exp.Expr:
        if not (isinstance(part, exp.Column) and isinstance(part.this, exp.Star) and part.table in known):
            return part
        if isinstance(part.parent, exp.Count):
            return _reference(THERE, part.table)
        pieces: list[exp.Expr] = [
            exp.var("(CASE WHEN"),
            _reference(THERE, part.table),
            exp.var("THEN (SELECT w FROM (SELECT"),
        ]
        for i, name in enumerate(name for name in known[part.table] if name != THERE):
            pieces += [*([exp.var(",")] if i else []), _reference(name, part.table), exp.var(f"AS {quote(name)}")]
        return Worded(expressions=[*pieces, exp.var(") AS w) END)")])

    result: exp.Expr = node.transform(replaced)
    return result


def _reference(name: str, table: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(table, quoted=True))


def with_whole_row(builder: Builder, source: Source, relation: Relation) -> tuple[Operator, Field]:
    """A scan with one more column, which holds the row, and that column."""
    fields = [field for _, field in relation.output]
    for field in fields:
        if field.origin is not None:
            builder.usage[field.origin[0]].add(field.origin[1])
    columns = [exp.column(exp.to_identifier(field.name, quoted=True)) for field in fields]
    kind = exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=quote(source.schema, source.name))
    row = exp.Cast(this=exp.Anonymous(this="ROW", expressions=columns), to=kind)
    named = [(field.name, column.copy()) for field, column in zip(fields, columns, strict=True)]
    operator, found = projected(builder, relation.operator, [*named, (source.name, row)])
    return operator, found[-1]
