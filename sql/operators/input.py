"""Input: rows and changes that stand in a relation of the statement already, in the place of an operator.

``Q(A) = A``. With it a tree is evaluated over other inputs than its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sql.base.columns import Field
from sql.base.text import derived, select, union_all
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Input(Operator):
    """``rows`` and ``changes`` are queries with ``columns``, the latter with a weight; ``oids``: what changed."""

    columns: tuple[Field, ...]
    rows: str
    changes: str = ""
    oids: frozenset[int] = frozenset()

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    @property
    def sources(self) -> frozenset[int]:
        return self.oids

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.rows

    def delta(self, plan: Plan) -> str:
        return self.changes

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        columns = names(self.columns)
        now = select([*columns, f"1::bigint AS {W}"], derived(self.rows, "n"))
        return union_all([now, select([*columns, f"-{W} AS {W}"], derived(self.changes, "d"))])

    def describe(self) -> str:
        return "Input"


def substituted(operator: Operator, others: Mapping[int, Operator]) -> Operator:
    """A tree in which some operators, found by their node, are replaced."""
    if operator.node in others:
        return others[operator.node]
    changed: dict[str, Any] = {}
    for field in fields(operator):
        value = getattr(operator, field.name)
        if isinstance(value, Operator):
            changed[field.name] = substituted(value, others)
        elif isinstance(value, tuple) and value and all(isinstance(item, Operator) for item in value):
            changed[field.name] = tuple(substituted(item, others) for item in value)
    return replace(operator, **changed) if changed else operator
