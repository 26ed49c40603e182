"""Rewrite #0: a view in FROM becomes the subquery that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.canonical.dialect import generate, parse


@dataclass(frozen=True, slots=True)
class View:
    """A view that a query reads; ``text`` is its ``pg_get_viewdef`` under an empty search_path."""

    schema: str
    name: str
    columns: tuple[str, ...]
    text: str


def inline_views(query: exp.Query, views: Sequence[View]) -> exp.Query:
    """The query with its views replaced by their definitions, and the views in these, down to tables.

    Raises NotDifferentiable for a definition that sqlglot cannot read.

    >>> from .dialect import generate
    >>> views = [View("public", "v", ("a", "b"), " SELECT t.x AS a, t.y AS b FROM public.t;")]
    >>> generate(inline_views(parse("SELECT q.a FROM public.v q"), views))
    'SELECT q.a FROM (SELECT t.x AS a, t.y AS b FROM public.t) AS q'
    """
    known = {(view.schema, view.name): view for view in views}

    def inlined(node: exp.Expr) -> exp.Expr:
        view = known.get((node.db, node.name)) if isinstance(node, exp.Table) else None
        if view is None:
            return node
        body = inline_views(parse(view.text), views)
        alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(view.name, quoted=True))
        renamed = [column.name for column in alias.columns]
        names = renamed + list(view.columns[len(renamed) :])
        if names != body.named_selects:
            alias.set("columns", [exp.to_identifier(name, quoted=True) for name in names])
        joins = [join.transform(inlined) for join in node.args.get("joins") or ()]
        return exp.Subquery(this=body, alias=alias, joins=joins or None)

    if not known:
        return query
    result = query.copy().transform(inlined)
    assert isinstance(result, exp.Query)
    return result


def inlined(canonical: str, views: Sequence[View]) -> str:
    """A canonical query as text, with its views replaced. Raises NotDifferentiable as `inline_views`.

    >>> inlined("SELECT v.a FROM public.v", [View("public", "v", ("a",), " SELECT t.x AS a FROM public.t;")])
    'SELECT v.a FROM (SELECT t.x AS a FROM public.t) AS "v"'
    """
    return generate(inline_views(parse(canonical), views))
