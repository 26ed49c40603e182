"""Whether a query as its user wrote it gives out `*`, which PostgreSQL replaces by the columns that there are."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError


def gives_out_star(query: str) -> bool:
    """Whether a column of the query itself is a star, as in TABLE; False, too, where sqlglot cannot read it.

    >>> gives_out_star("SELECT t.*, 1 FROM t"), gives_out_star("WITH c AS (SELECT 1) (SELECT * FROM c) UNION SELECT 2")
    (True, True)
    >>> gives_out_star("SELECT count(*), a * b FROM (SELECT * FROM t) AS q"), gives_out_star("TABLE t")
    (False, True)
    """
    try:
        statement = sqlglot.parse_one(query, read="postgres")
    except (SqlglotError, RecursionError):
        return False
    return any(_star(branch) for branch in _branches(statement))


def _branches(node: exp.Expr) -> list[exp.Select]:
    node = node.unnest() if isinstance(node, exp.Subquery) else node
    if isinstance(node, exp.SetOperation):
        return [*_branches(node.left), *_branches(node.right)]
    return [node] if isinstance(node, exp.Select) else []


def _star(branch: exp.Select) -> bool:
    return any(
        isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))
        for item in branch.expressions
    )
