"""Pushdown: the conditions that the changes of a source have to satisfy to matter to anybody.

A condition on the columns of one table, in a filter or a join right above its scan, is a condition on the captured
changes as well: those that do not satisfy it need not be consolidated, let alone joined. If the query reads a table
several times, a change matters that satisfies the conditions of one of them. What is pushed
may be weaker than the conditions, which the operators apply all the same, but must not raise an error for a row that
came and went between two refreshes. Where all is pushed that a reader says of a table alone, he need not say it again:
PostgreSQL, which has statistics of buffers but none of their net, would take few changes for hardly any.

Of ``(A AND x) OR (B AND y)``, with A and B over one table, follows ``A OR B``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from sql.base.columns import Field
from sql.canonical.dialect import generate
from sql.canonical.expressions import Worded
from sql.canonical.row_expressions import conjuncts
from sql.operators import Filter, Join, Operator, Recursion, Scan

_TESTS = (
    *(exp.And, exp.Or, exp.Not, exp.Paren, exp.Is, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
    *(exp.Like, exp.In, exp.Between, exp.Any, exp.Boolean, exp.Null),
)
_CONSTANTS = (
    *(exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Array, exp.Neg, exp.Add, exp.Sub),
    *(exp.Cast, exp.DataType, exp.DataTypeParam),
)
_TEXTS = frozenset({"text", "character varying", "character"})


def pushed_conditions(root: Operator) -> Mapping[int, str]:
    """By the oids of sources, conditions on the rows of their change buffers (alias c); for some there is none."""
    if any(isinstance(operator, Recursion) for operator in root.walk()):
        return {}
    readers: dict[int, dict[str, None] | None] = {}
    for scan, conditions in _readers(root, None):
        before = readers.setdefault(scan.source.oid, {})
        if before is not None and conditions:
            before[" AND ".join(conditions)] = None
        else:
            readers[scan.source.oid] = None
    return {oid: " OR ".join(f"({c})" for c in found) for oid, found in readers.items() if found}


def wholly_pushed(root: Operator) -> frozenset[int]:
    """The scans, by node, whose pushed condition is all that is said of their rows alone."""
    if any(isinstance(operator, Recursion) for operator in root.walk()):
        return frozenset()
    said: dict[int, set[str]] = {}
    for scan, conditions in _readers(root, None):
        said.setdefault(scan.source.oid, set()).add(" AND ".join(conditions))
    read = [(scan, above) for above in root.walk() for scan in above.inputs if isinstance(scan, Scan)]
    once = {scan.node for scan, _ in read if len(said[scan.source.oid]) == 1 and "" not in said[scan.source.oid]}
    return frozenset(once - {scan.node for scan, above in read if not _all_pushed(scan, above)})


def _all_pushed(scan: Scan, above: Operator) -> bool:
    columns = {f.name: f for f in scan.columns}
    return all(_pushed(condition, columns) for condition in _said(above))


def _pushed(condition: exp.Expr, columns: Mapping[str, Field]) -> bool:
    """Whether all that a condition says of some columns alone is implied by what is pushed of it."""
    condition = condition.unnest()
    used = {column.name for column in condition.find_all(exp.Column)}
    if used <= columns.keys():
        return bool(used) and harmless(condition, columns)
    if isinstance(condition, exp.And | exp.Or):
        return _pushed(condition.left, columns) and _pushed(condition.right, columns)
    return True


def _readers(operator: Operator, above: Operator | None) -> Iterator[tuple[Scan, list[str]]]:
    """Every scan, with the conditions that whoever reads it has on its rows."""
    if isinstance(operator, Scan):
        yield operator, _on_scan(operator, above)
    for below in operator.inputs:
        yield from _readers(below, operator)


def _said(above: Operator | None) -> Sequence[exp.Expr]:
    """The conditions of whoever reads a table."""
    if isinstance(above, Filter):
        return list(conjuncts(above.condition))
    return above.conditions if isinstance(above, Join) else ()


def _on_scan(scan: Scan, above: Operator | None) -> list[str]:
    columns = {f.name: f for f in scan.columns}
    found = [implied for condition in _said(above) if (implied := _implied(condition, columns)) is not None]
    return [_over_buffer(condition, columns) for condition in found]


def _implied(condition: exp.Expr, columns: Mapping[str, Field]) -> exp.Expr | None:
    """What a condition says of some columns alone: all of it, or what follows from it; None if there is nothing."""
    condition = condition.unnest()
    used = {column.name for column in condition.find_all(exp.Column)}
    if used and used <= columns.keys() and harmless(condition, columns):
        return condition
    if isinstance(condition, exp.And):
        parts = [implied for c in conjuncts(condition) if (implied := _implied(c, columns)) is not None]
        return exp.and_(*parts, wrap=True, copy=True) if parts else None
    if isinstance(condition, exp.Or):
        sides = [_implied(condition.left, columns), _implied(condition.right, columns)]
        return exp.or_(*(side for side in sides if side), wrap=True, copy=True) if all(sides) else None
    return None


def harmless(node: exp.Expr, columns: Mapping[str, Field]) -> bool:
    """Whether an expression over these columns gives a value for every row, whatever is in it."""
    if isinstance(node, exp.Column):
        return columns[node.name].builtin
    if node.find(exp.Column) is None:
        return all(isinstance(part, (*_CONSTANTS, exp.Any)) for part in node.walk())
    if isinstance(node, exp.Cast):
        return _text_of_text(node, columns)
    if isinstance(node, Worded):
        return _is_substring(node) and harmless(node.expressions[1], columns)
    return isinstance(node, _TESTS) and all(harmless(child, columns) for child in node.iter_expressions())


def _text_of_text(cast: exp.Cast, columns: Mapping[str, Field]) -> bool:
    """Whether a column of text is cast to text."""
    column = cast.this.unnest()
    if not isinstance(column, exp.Column) or generate(cast.to).lower() != "text":
        return False
    return columns[column.name].base_type in _TEXTS and columns[column.name].builtin


def _is_substring(node: Worded) -> bool:
    """Whether it is a SUBSTRING that begins and ends at given numbers."""
    words = " ".join(part.name for part in node.expressions if isinstance(part, exp.Var))
    numbers = [part for part in node.expressions[1:] if isinstance(part, exp.Literal) and not part.is_string]
    return words == "SUBSTRING( FROM FOR )" and len(numbers) == 2


def _over_buffer(condition: exp.Expr, columns: Mapping[str, Field]) -> str:
    result = exp.Paren(this=condition.copy())
    for column in list(result.find_all(exp.Column)):
        origin = columns[column.name].origin
        assert origin is not None
        column.replace(exp.Column(this=exp.to_identifier(origin[1], quoted=True), table=exp.to_identifier("c")))
    return generate(result)
