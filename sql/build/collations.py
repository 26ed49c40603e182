"""The collation of a set operation's columns, where one branch says COLLATE and another does not.

PostgreSQL gives such a column the collation that was said. Below a plan's subqueries it can no longer be seen that it
was said, and the collations of the branches contradict each other; so it is said again, in every branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from sql.canonical.local_nodes import output_names
from sql.errors import NotDifferentiable

# What gives text of the collation of its arguments, each of which is text or does not say one.
_PASSING = (
    *(exp.Paren, exp.Coalesce, exp.Greatest, exp.Least, exp.DPipe, exp.Upper, exp.Lower, exp.Initcap),
    *(exp.Trim, exp.Overlay, exp.Min, exp.Max),
)
_PASSING_BY_NAME = {
    *("least", "greatest", "coalesce", "nullif", "upper", "lower", "initcap", "concat", "concat_ws", "left", "right"),
    *("substr", "replace", "btrim", "ltrim", "rtrim", "repeat", "lpad", "rpad", "reverse", "translate"),
    *("split_part", "regexp_replace"),
}
_TEXT_TYPES = (exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.CHAR)
_TEXT = ("text", "character", "name", "citext")


def agreed(branches: Sequence[exp.Expr], fresh: Callable[[str], str]) -> list[exp.Expr]:
    """The branches of a set operation, each under the collations that some of them say.

    >>> from sql.canonical.dialect import generate, parse
    >>> union = parse('SELECT a.x FROM a UNION SELECT b.x COLLATE "C" FROM b')
    >>> [generate(branch) for branch in agreed([union.left, union.right], lambda prefix: prefix)][0]
    'SELECT __pgt_q.__pgt_c0 COLLATE "C" AS "x" FROM (SELECT a.x FROM a) AS __pgt_q(__pgt_c0)'
    """
    names = output_names(branches[0])
    said = [[_explicit(item) for item in _items(branch)] or [None] * len(names) for branch in branches]
    wanted = [
        next((c for c in column if c is not None), None) if None in column else None
        for column in zip(*said, strict=True)
    ]
    if not any(wanted):
        return list(branches)
    return [_under(branch, wanted, names, fresh) for branch in branches]


def refuse_unclear(branches: Sequence[exp.Expr], types: Sequence[Sequence[str]]) -> None:
    """Raises NotDifferentiable for a column of text in which COLLATE stands so deep that its meaning is not clear."""
    for branch, columns in zip(branches, types, strict=True):
        for item, type_ in zip(_items(branch), columns, strict=False):
            text = type_.startswith(_TEXT) or type_.endswith("[]") or "." in type_
            if text and _explicit(item) is None and _mentions(item):
                raise NotDifferentiable("COLLATE within an expression of a set operation")


def _items(branch: exp.Expr) -> list[exp.Expr]:
    while isinstance(branch, exp.Subquery) and not branch.alias:
        branch = branch.this
    return list(branch.expressions) if isinstance(branch, exp.Select) else []


def _explicit(node: exp.Expr | None) -> exp.Expr | None:
    """The collation that an expression says its result has."""
    node = node.unalias() if node is not None else None
    if isinstance(node, exp.Collate):
        collation: exp.Expr = node.expression
        return collation
    parts: list[exp.Expr | None] = []
    if isinstance(node, exp.Case):
        parts = [*(branch.args.get("true") for branch in node.args["ifs"]), node.args.get("default")]
    elif isinstance(node, (exp.Window, exp.Filter)) or (isinstance(node, exp.Cast) and node.to.is_type(*_TEXT_TYPES)):
        parts = [node.this]
    elif isinstance(node, _PASSING) or (isinstance(node, exp.Anonymous) and node.name.lower() in _PASSING_BY_NAME):
        parts = [part for part in node.iter_expressions()]
    return next((found for part in parts if (found := _explicit(part)) is not None), None)


def _mentions(node: exp.Expr) -> bool:
    return any(c.find_ancestor(exp.Select) is node.find_ancestor(exp.Select) for c in node.find_all(exp.Collate))


def _under(
    branch: exp.Expr, collations: Sequence[exp.Expr | None], names: Sequence[str], fresh: Callable[[str], str]
) -> exp.Expr:
    inner = fresh("__pgt_q")
    columns = [exp.to_identifier(f"__pgt_c{i}") for i in range(len(collations))]
    table = exp.TableAlias(this=exp.to_identifier(inner), columns=columns)
    items = []
    for column, collation, name in zip(columns, collations, names, strict=True):
        value: exp.Expr = exp.column(column.copy(), inner)
        if collation is not None:
            value = exp.Collate(this=value, expression=collation.copy())
        items.append(exp.alias_(value, exp.to_identifier(name, quoted=True)))
    query = branch.unnest() if isinstance(branch, exp.Subquery) else branch
    return exp.Select(expressions=items, from_=exp.From(this=exp.Subquery(this=query.copy(), alias=table)))
