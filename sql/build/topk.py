"""TopK: whether a query gives out its first rows only, as the catalog records it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sql.build.ordering import limited
from sql.canonical.dialect import generate, parse
from sql.errors import NotDifferentiable

MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TopK:
    """``limit`` and ``offset`` are None where there is none, or where it is not a plain number."""

    limit: int | None
    order_by: str
    offset: int | None


def topk(canonical: str) -> TopK | None:
    """ORDER BY with LIMIT, OFFSET or FETCH FIRST at the top of a canonical query, None without.

    >>> topk("SELECT a.x FROM public.a ORDER BY a.x DESC, a.y LIMIT 3 OFFSET 20")
    TopK(limit=3, order_by='a.x DESC, a.y', offset=20)
    >>> topk("SELECT a.x FROM public.a ORDER BY a.x FETCH FIRST 3 ROWS WITH TIES")
    TopK(limit=3, order_by='a.x', offset=None)
    >>> topk("SELECT a.x FROM public.a ORDER BY a.x") is None
    True
    """
    try:
        query = parse(canonical)
    except NotDifferentiable:
        return None
    order = query.args.get("order")
    if order is None or not limited(query):
        return None
    clause, offset = query.args.get("limit"), query.args.get("offset")
    count = clause.args.get("count") if isinstance(clause, exp.Fetch) else clause and clause.expression
    if isinstance(clause, exp.Fetch) and count is None:
        count = exp.Literal.number(1)
    return TopK(
        _number(count),
        ", ".join(generate(item) for item in order.expressions),
        _number(offset.expression if offset is not None else None),
    )


def _number(node: exp.Expr | None) -> int | None:
    plain = isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit()
    return int(node.name) if node is not None and plain and int(node.name) <= MAX_INT else None
