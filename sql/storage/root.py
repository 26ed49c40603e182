"""The top of the tree: projections and filters (the select list, HAVING) over the operator that decides on the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from sql.base.columns import Column, Field
from sql.operators import Filter, Operator, Project
from sql.operators.plan import Plan


def top(root: Operator) -> Iterator[Project | Filter]:
    """The projections and filters at the top, from the root downwards."""
    while isinstance(root, Project | Filter):
        yield root
        root = root.input


def below_projections(root: Operator) -> Operator:
    """The operator that decides which rows there are, under nothing but projections and filters."""
    for operator in top(root):
        root = operator.input
    return root


def above(plan: Plan, root: Operator, rows: str, extra: Sequence[Field]) -> str:
    """The root's rows, made from those of the deciding operator; ``extra`` columns of these are passed on."""
    for operator in reversed(list(top(root))):
        if isinstance(operator, Filter):
            rows = operator.filtered(plan, rows)
        else:
            own = {column.name for column in operator.columns}
            passed = tuple(field for field in extra if field.name not in own)
            references = tuple(exp.column(exp.to_identifier(field.name, quoted=True)) for field in passed)
            wider = replace(operator, expressions=operator.expressions + references, columns=operator.columns + passed)
            rows = wider.projected(rows)
    return rows


def stored_keys(keys: Sequence[Field], known: dict[str, Column]) -> tuple[Column, ...]:
    """The storage's columns that hold the keys: the query's own, or else hidden ones."""
    return tuple(
        known.get(key.name) or Column(f"__pgt_key{i}", key.type, key.not_null, key.hashable, key.equality_is_identity)
        for i, key in enumerate(keys, 1)
    )


def hidden_keys(keys: Sequence[Field], stored: Sequence[Column], output: Sequence[Column]) -> dict[str, Field]:
    """By the names of the hidden columns, the keys in them."""
    own = {column.name for column in output}
    return {column.name: key for key, column in zip(keys, stored, strict=True) if column.name not in own}
