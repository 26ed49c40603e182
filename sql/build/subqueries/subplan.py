"""The call that stands for a subquery in an expression until the subquery becomes an operator."""

from __future__ import annotations

from sqlglot import exp

from sql.canonical.nodes import all_of

PLACEHOLDER = "__pgt_subquery"

WITHIN = "within"
"""The key in a query's meta that says how many of its first columns LIMIT counts within."""


def placeholder(node: exp.Expr) -> bool:
    """Whether a node stands for a subquery."""
    return isinstance(node, exp.Anonymous) and node.this == PLACEHOLDER


def has_placeholder(node: exp.Expr) -> bool:
    """Whether an expression contains subqueries that are not attached yet."""
    return any(placeholder(part) for part in all_of(node, exp.Anonymous))
