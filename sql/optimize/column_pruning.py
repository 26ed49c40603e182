"""Narrowing: which columns of a join anybody reads.

A join gives out all columns of its inputs, most of which are there for its conditions. Right below a select list, or a
filter below one, only those are carried along that an expression mentions: rows are narrower wherever a delta puts
them down, and the statement is shorter to parse and to plan. What is read in several places is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlglot import exp

from sql.operators import Filter, Join, Operator, Project


def narrowed(root: Operator) -> Mapping[int, frozenset[str]]:
    """By the `id` of joins, the names of the columns that are read."""
    operators = {operator.node: operator for operator in root.walk()}
    readers = Counter(below.node for operator in operators.values() for below in operator.inputs)
    found = {}
    for operator in operators.values():
        if not isinstance(operator, Project):
            continue
        read = [*operator.expressions]
        below = operator.input
        while isinstance(below, Filter) and readers[below.node] == 1:
            read.append(below.condition)
            below = below.input
        if isinstance(below, Join) and readers[below.node] == 1:
            used = {column.name for expression in read for column in expression.find_all(exp.Column)}
            # A relation has one column at least, whoever executes it.
            found[below.node] = frozenset(used or {below.columns[0].name})
    return found
