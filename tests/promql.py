"""Which metrics and labels a PromQL expression asks for, and which labels its result has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from server.metrics.described import DESCRIBED, documented_name

OF_PROMETHEUS = frozenset(("job", "instance"))
"""Labels that Prometheus adds to every series."""

SERIES = {"up": OF_PROMETHEUS}
"""The labels of each series that may be asked for: those of a server, and the one that Prometheus makes."""
for _each in DESCRIBED.values():
    _labels = OF_PROMETHEUS | set(_each.labels)
    if _each.kind == "histogram":
        SERIES |= {
            f"{_each.name}_sum": _labels,
            f"{_each.name}_count": _labels,
            f"{_each.name}_bucket": _labels | {"le"},
        }
    else:
        SERIES[documented_name(_each)] = _labels


def family(series: str) -> str:
    """The name in `DESCRIBED` of what a series belongs to; the name itself where it is not a server's."""
    return next(
        (name for name in (series, re.sub(r"_(total|sum|count|bucket)$", "", series)) if name in DESCRIBED), series
    )


def parse(text: str) -> Any:
    """An expression, in which Grafana may have its own variables for durations. Raises ValueError."""
    return promql.parse(text.replace("$__rate_interval", "5m"))


def selectors(expression: Any) -> Iterator[Any]:
    """What it reads."""
    if isinstance(expression, promql.VectorSelector):
        yield expression
    for part in ("vector_selector", "expr", "param", "lhs", "rhs"):
        if (child := getattr(expression, part, None)) is not None:
            yield from selectors(child)
    for child in getattr(expression, "args", ()):
        yield from selectors(child)


def labels(expression: Any) -> frozenset[str] | None:
    """The labels of its result, None of a number. Raises AssertionError where it names labels that are not there."""
    match expression:
        case promql.NumberLiteral() | promql.StringLiteral():
            return None
        case promql.VectorSelector():
            found = frozenset(SERIES[expression.name])
            assert {each.name for each in expression.matchers.matchers} <= found, expression
            return found
        case promql.MatrixSelector():
            return labels(expression.vector_selector)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return labels(expression.expr)
        case promql.Call():
            return _of_call(expression)
        case promql.AggregateExpr():
            return _of_aggregate(expression)
        case promql.BinaryExpr():
            return _of_operator(expression)
    raise AssertionError(f"unknown: {expression}")


def _of_call(expression: Any) -> frozenset[str]:
    given = [found for argument in expression.args if (found := labels(argument)) is not None]
    found = given[0] if given else frozenset()
    if expression.func.name != "histogram_quantile":
        return found
    assert "le" in found, expression
    return found - {"le"}


def _of_aggregate(expression: Any) -> frozenset[str]:
    found = labels(expression.expr)
    assert found is not None
    if str(expression.op) in ("topk", "bottomk"):
        return found
    if expression.modifier is None:
        return frozenset()
    named = frozenset(expression.modifier.labels)
    assert named <= found, expression
    return named if expression.modifier.type == promql.AggModifierType.By else found - named


def _of_operator(expression: Any) -> frozenset[str] | None:
    left, right = labels(expression.lhs), labels(expression.rhs)
    if left is None or right is None or str(expression.op) == "or":
        return right if left is None else left
    matching = expression.modifier and expression.modifier.matching
    if matching is None:
        assert left == right, f"never match: {expression}"
        return left
    named = frozenset(matching.labels)
    if matching.type == promql.LabelModifierType.Include:
        assert named <= left & right, expression
        return left if str(expression.op) in ("and", "unless") else named
    assert left - named == right - named, f"never match: {expression}"
    return left - named
