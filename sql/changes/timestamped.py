"""Dating: an operator tree whose delta says of each change when it happened.

What is linear does with a change what it does whenever the change happens: the timestamp is one more column, which goes
through. What others do follows from the state at the time, of which nothing is kept but the last.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from sql.base.columns import Field
from sql.operators import Filter, Operator, Project, ProjectSet, Scan, SetReturning, UnionAll
from sql.operators.captured_changes import AT

TIMESTAMP = Field(AT, "bigint", not_null=True)
"""In milliseconds since the epoch."""


def with_timestamp(operator: Operator) -> Operator | None:
    """The operator with a last column `TIMESTAMP` in its delta; None if something in it is not linear."""
    if not operator.sources:
        return operator  # it has no delta
    inputs = [with_timestamp(each) for each in operator.inputs]
    known = [each for each in inputs if each is not None]
    columns = (*operator.columns, TIMESTAMP)
    if len(known) < len(inputs):
        return None
    match operator:
        case Scan():
            return replace(operator, columns=(*operator.columns, replace(TIMESTAMP, origin=(operator.number, AT))))
        case Filter():
            return replace(operator, input=known[0], columns=columns)
        case Project():
            passed = exp.column(AT, quoted=True)
            return replace(operator, input=known[0], expressions=(*operator.expressions, passed), columns=columns)
        case ProjectSet():
            projection = with_timestamp(operator.projection)
            assert isinstance(projection, Project)
            return replace(operator, projection=projection)
        case SetReturning():
            return replace(operator, input=known[0])
        case UnionAll():
            outputs = tuple((*each, TIMESTAMP) for each in operator.outputs)
            return replace(operator, branches=tuple(known), outputs=outputs, columns=columns)
        case _:
            return None
