"""Streaming: which sources' changes are read straight from their buffers, as captured, by an operator that nets them.

The right side of a semi-join or anti-join matters only in the columns that its conditions mention, and its delta is
consolidated in these. Where it is one table, read nowhere else, under filters and plain columns, consolidating the
table's changes before is work done twice. As a row that came and went is looked at then, its conditions must not raise
errors.
"""

from __future__ import annotations

from collections import Counter

from sqlglot import exp

from sql.operators import AntiJoin, Filter, Operator, Project, Recursion, Scan, SemiJoin
from sql.optimize.predicate_pushdown import harmless


def netted_later(root: Operator) -> frozenset[int]:
    """The oids of sources whose changes the operators above them net in any case."""
    if any(isinstance(operator, Recursion) for operator in root.walk()):
        return frozenset()
    scans = Counter(operator.source.oid for operator in root.walk() if isinstance(operator, Scan))
    sides = (_scanned(operator.right) for operator in root.walk() if isinstance(operator, SemiJoin | AntiJoin))
    return frozenset(scan.source.oid for scan in sides if scan is not None and scans[scan.source.oid] == 1)


def _scanned(operator: Operator) -> Scan | None:
    """The table under filters that raise no errors and projections that compute nothing."""
    if isinstance(operator, Scan):
        return operator
    if isinstance(operator, Project):
        plain = all(isinstance(expression, exp.Column | exp.Literal | exp.Null) for expression in operator.expressions)
        return _scanned(operator.input) if plain else None
    if isinstance(operator, Filter):
        sure = harmless(operator.condition, {column.name: column for column in operator.input.columns})
        return _scanned(operator.input) if sure else None
    return None
