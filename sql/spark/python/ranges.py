"""Ranges in Spark's dialect: what makes them. (Their other functions are calls by name, see `signatures`.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sql.errors import NotExpressible
from sql.spark.protocol import Expressions
from sql.spark.python.calls import call
from sql.spark.python.signatures import BOUND_KINDS, as_text
from sql.spark.types import RANGES, UNKNOWN, Typed, column_type, is_numeral


def _made(name: str) -> Callable[[Expressions, Sequence[Any]], Typed]:
    wanted = RANGES[name]

    def render(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
        low, high, *rest = (expressions.render(node) for node in nodes)
        if len(rest) > 1 or (rest and rest[0].type.name != "text"):
            raise NotExpressible(f"function {name}")
        texts = (_bound(value, wanted, name) for value in (low, high))
        bounds = rest[0].sql if rest else "'[)'"
        kind, type_ = f"'{BOUND_KINDS[name]}'", f"'{wanted if BOUND_KINDS[name] == 'whole' else ''}'"
        return Typed(call("range_made", *texts, bounds, kind, type_), column_type(name))

    return render


def _bound(value: Typed, wanted: str, name: str) -> str:
    if value.type == UNKNOWN:
        return "CAST(NULL AS STRING)"
    number = wanted in ("bigint", "numeric") and (value.type.is_number or is_numeral(value.type))
    if value.type.name != wanted and not number:
        raise NotExpressible(f"{name} of {value.type.name}")
    return as_text(value)


RANGE_FUNCTIONS: Mapping[str, Callable[[Expressions, Sequence[Any]], Typed]] = {name: _made(name) for name in RANGES}
"""By PostgreSQL's names."""
