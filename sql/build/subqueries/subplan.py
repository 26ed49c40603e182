"""What stands for a subquery between the moment it is found in an expression and the moment it becomes an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sqlglot import exp

from sql.canonical.nodes import all_of

if TYPE_CHECKING:
    from sql.build.scope import CommonTable

PLACEHOLDER = "__pgt_subquery"

WITHIN = "within"
"""The key in a query's meta that says how many of its first columns LIMIT counts within."""


class Kind(Enum):
    """What is asked of a subquery."""

    EXISTS = "exists"
    SCALAR = "scalar"
    NOT_IN = "not in"


@dataclass(frozen=True, slots=True)
class Subplan:
    """A subquery whose outer columns are ``outer``'s ``parameters``.

    ``operands`` are the left side of NOT IN, over parameters. ``scope`` are the WITH queries that it sees.
    """

    kind: Kind
    query: exp.Expr
    outer: str
    parameters: tuple[str, ...]
    operands: tuple[exp.Expr, ...]
    scope: Mapping[str, CommonTable]

    @property
    def reads_tables(self) -> bool:
        """Whether it is more than a function of its arguments."""
        return any(isinstance(table.this, exp.Identifier) for table in all_of(self.query, exp.Table))


def placeholder(node: exp.Expr) -> bool:
    """Whether a node stands for a subquery."""
    return isinstance(node, exp.Anonymous) and node.this == PLACEHOLDER


def has_placeholder(node: exp.Expr) -> bool:
    """Whether an expression contains subqueries that are not attached yet."""
    return any(placeholder(part) for part in all_of(node, exp.Anonymous))
