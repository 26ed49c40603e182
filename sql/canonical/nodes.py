"""The nodes of a syntax tree, found faster than by sqlglot's own generators: compiling a query looks at each of its
nodes many times over."""

from __future__ import annotations

from typing import TypeVar

from sqlglot import exp

Node = TypeVar("Node", bound=exp.Expr)


def nodes(root: exp.Expr) -> list[exp.Expr]:
    """A node and all below it, those nearer to it first, as `Expr.walk` has them. The tree may be changed meanwhile.

    >>> from sqlglot import parse_one
    >>> [type(node).__name__ for node in nodes(parse_one("a + f(b)"))]
    ['Add', 'Column', 'Anonymous', 'Identifier', 'Column', 'Identifier']
    """
    every = [root]
    for node in every:  # which grows meanwhile
        for value in node.args.values():
            if value.__class__ is list:
                every += [part for part in value if isinstance(part, exp.Expr)]
            elif isinstance(value, exp.Expr):
                every.append(value)
    return every


def all_of(root: exp.Expr, kind: type[Node]) -> list[Node]:
    """The nodes of one kind, in the same order.

    >>> from sqlglot import parse_one
    >>> [column.name for column in all_of(parse_one("a + f(b, c) + d"), exp.Column)]
    ['d', 'a', 'b', 'c']
    """
    return [node for node in nodes(root) if isinstance(node, kind)]


def contains(root: exp.Expr, *kinds: type[exp.Expr]) -> bool:
    """Whether a node of one of these kinds is in a tree.

    >>> from sqlglot import parse_one
    >>> contains(parse_one("a + f(b)"), exp.Window, exp.Anonymous), contains(parse_one("a + b"), exp.Window)
    (True, False)
    """
    return any(isinstance(node, kinds) for node in nodes(root))
