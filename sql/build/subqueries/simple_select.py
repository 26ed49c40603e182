"""A subquery that is no more than FROM and WHERE, as far as it matters to whoever asks whether it has rows."""

from __future__ import annotations

from sqlglot import exp

from sql.build.protocol import Builder
from sql.canonical.from_items import ValuesQuery
from sql.canonical.local_nodes import own_aggregates


def counted(query: exp.Expr, builder: Builder) -> exp.Select:
    """``EXISTS (Q)`` as an aggregate."""
    some = exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(0))
    plain = plain_select(query)
    if plain is None:
        alias = exp.TableAlias(this=exp.to_identifier(builder.fresh("__pgt_q"), quoted=True))
        plain = exp.Select(from_=exp.From(this=exp.Subquery(this=query.copy(), alias=alias)))
    plain.set("expressions", [exp.alias_(some, "found", quoted=True)])
    return plain


def plain_select(query: exp.Expr, *, compared: bool = False) -> exp.Select | None:
    """The query without what makes no difference to whether it has rows, None if more than FROM and WHERE remains.

    ``compared``: it matters which values there are, too.
    """
    if type(query) is not exp.Select or not query.args.get("from_"):
        return None
    if compared and _chooses_rows(query):
        return None
    result = query.copy()
    limit = result.args.get("limit")
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Literal) and int(limit.expression.name) > 0:
        result.set("limit", None)
    if any(result.args.get(key) for key in ("group", "having", "limit", "offset", "windows")):
        return None
    result.set("distinct", None)
    result.set("order", None)
    return result if all(_single_value(node) for node in result.expressions) else None


def _single_value(node: exp.Expr) -> bool:
    """Whether an item of a select list gives one value for a row, surely."""
    node = node.unalias().unnest()
    return isinstance(node, exp.Column | exp.Literal | exp.Boolean | exp.Null) or (
        isinstance(node, exp.Cast) and _single_value(node.this)
    )


def split_conditions(plain: exp.Select, outer: str) -> tuple[list[exp.Expr], list[exp.Expr]] | None:
    """The conditions of WHERE without and with outer columns, None if these are used elsewhere, too."""
    where = plain.args.get("where")
    inner: list[exp.Expr] = []
    joining: list[exp.Expr] = []
    for condition in conjuncts(where.this) if where is not None else []:
        if not _mentions(condition, outer):
            inner.append(condition)
        elif condition.find(exp.Query):
            return None
        else:
            joining.append(condition)
    elsewhere = [part for key, part in plain.args.items() if key not in ("where", "expressions") and part]
    flat = [node for part in elsewhere for node in (part if isinstance(part, list) else [part])]
    for node in [*flat, *plain.expressions]:
        if isinstance(node, exp.Expr) and _mentions(node, outer):
            return None
    return inner, joining


def _chooses_rows(query: exp.Select) -> bool:
    """Whether it gives out some of its rows only."""
    first_of_each = query.args.get("distinct") and query.args["distinct"].args.get("on")
    return bool(first_of_each or query.args.get("limit") or query.args.get("offset"))


def _mentions(node: exp.Expr, table: str) -> bool:
    return any(c.table == table for c in node.find_all(exp.Column))


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    node = node.unnest()
    return [*conjuncts(node.left), *conjuncts(node.right)] if isinstance(node, exp.And) else [node]


def one_row(query: exp.Expr, special: frozenset[str]) -> bool:
    """Whether a query has exactly one row."""
    if isinstance(query, ValuesQuery) or not isinstance(query, exp.Select):
        return False
    if any(query.args.get(key) for key in ("group", "having", "limit", "offset", "distinct")):
        return False
    return any(True for _ in own_aggregates(query, special))


def at_most_one_row(query: exp.Expr, special: frozenset[str]) -> bool:
    """Whether a query has one row or none."""
    limit = query.args.get("limit")
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Literal) and limit.expression.name == "1":
        return True
    if isinstance(query, exp.Select) and not query.args.get("group"):
        return any(True for _ in own_aggregates(query, special))
    return False
