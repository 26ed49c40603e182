"""What belongs to a query itself and not to a subquery of it: its columns, calls and relations."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from sql.canonical.from_items import ValuesQuery
from sql.canonical.row_expressions import aggregate_name


def output_names(query: exp.Expr) -> list[str]:
    """The names of a query's columns."""
    while isinstance(query, exp.SetOperation | exp.Subquery):
        query = query.this
    if isinstance(query, exp.Values | ValuesQuery):
        values = query if isinstance(query, exp.Values) else query.args["from_"].this
        row = values.expressions[0]
        return [f"column{i}" for i, _ in enumerate(row.expressions if isinstance(row, exp.Tuple) else [row], 1)]
    return [node.alias_or_name or "column" for node in query.expressions]


def own(query: exp.Select, *kinds: type[exp.Expr]) -> Iterator[exp.Expr]:
    """The nodes of some kinds in a query's select list, HAVING and ORDER BY that do not belong to a subquery."""
    for part in _parts(query):
        for node in part.walk(prune=lambda n: isinstance(n, exp.Query)):
            if isinstance(node, kinds):
                yield node


def own_aggregates(query: exp.Select, special: frozenset[str]) -> Iterator[exp.Expr]:
    """A query's own aggregate calls, with FILTER and WITHIN GROUP; one that is called over a window is none."""
    for part in _parts(query):
        yield from _calls(part, special)


def _parts(query: exp.Select) -> list[exp.Expr]:
    parts = [*query.expressions, *(query.args.get(key) for key in ("having", "order", "distinct"))]
    return [part for part in parts if part is not None]


def _calls(part: exp.Expr, special: frozenset[str]) -> Iterator[exp.Expr]:
    inside, children = part, []
    while isinstance(inside, exp.Filter | exp.WithinGroup):
        children.append(inside.expression)
        inside = inside.this
    if aggregate_name(inside, special) and not isinstance(part.parent, exp.Window):
        yield part
        return
    for child in (*inside.iter_expressions(), *children):
        if not isinstance(child, exp.Query):
            yield from _calls(child, special)


def local_aliases(query: exp.Select) -> set[str]:
    """The names in a query's own FROM."""
    found = set()
    parts = [query.args.get("from_"), *(query.args.get("joins") or ()), *(query.args.get("laterals") or ())]
    for part in [part for part in parts if part is not None]:
        for node in part.walk(prune=lambda n: isinstance(n, exp.Select | exp.SetOperation | exp.Values)):
            if isinstance(node, exp.Table | exp.DerivedTable | exp.UDTF | exp.Lateral) and node.alias_or_name:
                found.add(node.alias_or_name)
    return found
