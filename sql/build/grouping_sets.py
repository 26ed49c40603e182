"""GROUPING SETS, CUBE and ROLLUP: which sets a GROUP BY has, and what it becomes.

``GROUP BY a, ROLLUP (b, c)`` has the sets (a, b, c), (a, b) and (a). It becomes an aggregate by the keys and the set's
number, over every row once for each set (see `expand`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from sqlglot import exp

from sql.base.columns import Field
from sql.build.protocol import Builder
from sql.canonical.constant_keys import uses_of_key
from sql.canonical.dialect import generate
from sql.errors import NotDifferentiable
from sql.operators import Call, Expand, Operator

Keys = tuple[exp.Expr, ...]


@dataclass(frozen=True, slots=True)
class GroupBy:
    """The expressions of a GROUP BY, and the sets of their positions that it groups by, one after the other."""

    keys: tuple[exp.Expr, ...]
    sets: tuple[frozenset[int], ...]
    doubtful: tuple[tuple[int, int], ...] = ()
    """Keys that some sets lack and that PostgreSQL may take for constants, with the number of `uses_of_key`."""


def grouped_by(group: exp.Group, resolved: Callable[[exp.Expr], exp.Expr] = lambda node: node) -> GroupBy:
    """What a GROUP BY clause says, its keys resolved.

    >>> from sqlglot import parse_one
    >>> found = grouped_by(parse_one("SELECT FROM t GROUP BY a, ROLLUP (b, c)", read="postgres").args["group"])
    >>> [key.sql() for key in found.keys], [sorted(keys) for keys in found.sets]
    (['a', 'b', 'c'], [[0, 1, 2], [0, 1], [0]])
    """
    keys: dict[str, exp.Expr] = {}
    sets = []
    for parts in product(*map(_sets, group.expressions)):
        chosen = {generate(key.unnest()): key for part in parts for key in part}
        keys = {**keys, **{text: key for text, key in chosen.items() if text not in keys}}
        sets.append(frozenset(list(keys).index(text) for text in chosen))
    if len(sets) > 1 and any(map(is_record, group.find_all(exp.Anonymous))):
        raise NotDifferentiable("ROW(...) in grouping sets")
    if group.args.get("all") is False:
        sets = list(dict.fromkeys(sets))
    lacked = [(i, key) for i, key in enumerate(keys.values()) if not all(i in some for some in sets)]
    doubtful = [(i, uses) for i, key in lacked if (uses := uses_of_key(key)) is not None]
    return GroupBy(tuple(map(resolved, keys.values())), tuple(sets), tuple(doubtful))


def _sets(item: exp.Expr) -> list[Keys]:
    """The sets that one item of GROUP BY or of GROUPING SETS stands for."""
    if isinstance(item, exp.GroupingSets):
        return [keys for part in item.expressions for keys in _sets(part)]
    parts = [_element(part) for part in item.expressions] if isinstance(item, exp.Rollup | exp.Cube) else []
    if isinstance(item, exp.Rollup):
        chosen = [tuple(parts[:size]) for size in range(len(parts), -1, -1)]
        return [sum(some, ()) for some in chosen]
    if isinstance(item, exp.Cube):
        return [sum(some, ()) for size in range(len(parts), -1, -1) for some in combinations(parts, size)]
    return [_element(item)]


def _element(node: exp.Expr) -> Keys:
    parts = node.expressions if isinstance(node, exp.Tuple) else [node]
    return tuple(leaf for part in parts for leaf in leaves(part.unnest()))


def is_record(node: exp.Expr) -> bool:
    """Whether an expression is ``ROW(...)``."""
    return isinstance(node, exp.Anonymous) and str(node.this).upper() == "ROW"


def leaves(node: exp.Expr) -> list[exp.Expr]:
    """The expression, or what a record is made of: a column cannot hold a record."""
    return [leaf for part in node.expressions for leaf in leaves(part.unnest())] if is_record(node) else [node]


def require_certain(group: GroupBy, parts: Sequence[exp.Expr], columns: int) -> None:
    """Raise NotDifferentiable where PostgreSQL has NULL for a key in one place of a query, and its value in another.

    That can be so of what its planner takes for a constant; some of that may be used once, as one of the ``columns`` of
    the query, which are the first of the ``parts``. No aggregate call is left in these.
    """
    for position, allowed in group.doubtful:
        text = generate(group.keys[position].unnest())
        uses = sum(1 for part in parts for _ in _uses(part, text))
        alone = any(generate(part.unnest()) == text for part in parts[:columns])
        if uses > (allowed if alone else 0):
            raise NotDifferentiable(
                "a constant in grouping sets that is used elsewhere",
                "Name it in a subquery in FROM, and group by that column.",
                "Where a set lacks it PostgreSQL has NULL in some of its places, and its value in others.",
            )


def _uses(node: exp.Expr, text: str) -> Iterator[exp.Expr]:
    """The parts of an expression, or the expression, that have a text, but for those in GROUPING calls."""
    if _is_grouping(node):
        return
    if generate(node.unnest()) == text:
        yield node
        return
    for child in node.iter_expressions():
        yield from _uses(child, text)


def expand(
    builder: Builder, feed: Operator, fields: Sequence[Field], sets: Sequence[frozenset[int]]
) -> tuple[Expand, list[Field]]:
    """The feed's rows for each set, and the columns that hold the keys there. ``fields`` are the keys in the feed."""
    if len({field.name for field in fields}) < len(fields):
        # A set may have the one and lack the other, whose value would be read for both.
        raise NotDifferentiable("grouping sets by two names of one column", "Group by one of them.")
    always = frozenset(range(len(fields))).intersection(*sets)
    keys = [
        field if i in always else replace(field, name=builder.fresh(field.name), not_null=False, origin=None)
        for i, field in enumerate(fields)
    ]
    number = Field(builder.fresh("grouping_set"), "integer", not_null=True, scale=0)
    present = Field(builder.fresh("present"), "boolean", not_null=True)
    return Expand(feed, tuple(zip(fields, keys, strict=True)), tuple(sets), number, present), keys


def without_absent(call: Call, expand: Expand) -> Call:
    """The call, applied to rows of the input alone."""
    return call if call.filter is not None or all(expand.sets) else replace(call, filter=expand.present)


def grouping(part: exp.Expr, positions: Mapping[str, int], sets: Sequence[frozenset[int]], feed: Operator) -> exp.Expr:
    """An expression with its GROUPING calls computed from the set's number; without an `Expand` there is one set."""

    def value(arguments: Sequence[exp.Expr], keys: frozenset[int]) -> int:
        bits = [
            "0" if all(positions[generate(leaf)] in keys for leaf in leaves(a.unnest())) else "1" for a in arguments
        ]
        return int("".join(bits), 2)

    def replaced(node: exp.Expr) -> exp.Expr:
        if not _is_grouping(node):
            return node
        if not isinstance(feed, Expand):
            return exp.Literal.number(value(node.expressions, sets[0]))
        ifs = [
            exp.If(this=exp.Literal.number(n), true=exp.Literal.number(value(node.expressions, keys)))
            for n, keys in enumerate(sets)
        ]
        return exp.Case(this=exp.column(exp.to_identifier(feed.number.name, quoted=True)), ifs=ifs)

    return part.transform(replaced) if any(map(_is_grouping, part.find_all(exp.Anonymous))) else part


def _is_grouping(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).upper() == "GROUPING"
