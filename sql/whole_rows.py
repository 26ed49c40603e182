"""A reference to a whole row of a table (``row_to_json(t.*)``): one more column, a value of the table's row type.

It is computed where the table is read, below any outer join, which makes it NULL, not a row of NULLs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from .columns import Field, Source
from .operators import Operator
from .render import quote

if TYPE_CHECKING:
    from .build import Builder, Relation


def wanted(table: exp.Table) -> bool:
    """Whether the query speaks of whole rows of a table in its FROM."""
    query = table.find_ancestor(exp.Select)
    if query is None:
        return False
    if "whole_rows" not in query.meta:
        columns = query.find_all(exp.Column)
        query.meta["whole_rows"] = frozenset(c.table for c in columns if isinstance(c.this, exp.Star))
    return (table.alias or table.name) in query.meta["whole_rows"]


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
    operator, found = builder.project(relation.operator, [*named, (source.name, row)])
    return operator, found[-1]
