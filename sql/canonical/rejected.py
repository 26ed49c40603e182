"""Queries that no mode accepts, since their result is not determined or cannot be stored."""

from __future__ import annotations

from sqlglot import exp

from sql.canonical.dialect import parse
from sql.canonical.nodes import nodes
from sql.errors import NotDifferentiable


def rejected(canonical: str) -> tuple[str, str] | None:
    """The construct for which a query is refused in every mode, and a hint; None if there is none.

    >>> rejected("SELECT a.x FROM public.a LIMIT 3")
    ('LIMIT without ORDER BY', 'Add ORDER BY, so that the rows that are kept are determined.')
    >>> rejected("SELECT a.x FROM public.a ORDER BY a.x LIMIT 3") is None
    True
    """
    try:
        statement = parse(canonical)
    except NotDifferentiable:
        return None
    for node in nodes(statement):
        if isinstance(node, exp.TableSample):
            return "TABLESAMPLE", "Use a deterministic condition in WHERE instead."
        if not isinstance(node, exp.Query):
            continue
        if node.args.get("locks"):
            return "FOR UPDATE or FOR SHARE", "Remove the row-locking clause."
        limited = node.args.get("limit") or node.args.get("offset")
        if limited and not node.args.get("order"):
            construct = "LIMIT" if node.args.get("limit") else "OFFSET"
            return f"{construct} without ORDER BY", "Add ORDER BY, so that the rows that are kept are determined."
    return None
