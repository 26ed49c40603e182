"""Z-sets consolidated: the weights of equal rows added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sql.base.columns import WEIGHT, Column, Field
from sql.base.identity import content_groups
from sql.base.text import derived, quote, repeated, select

W = quote(WEIGHT)


def consolidated(
    query: str,
    columns: Sequence[Column | Field],
    names: Sequence[str] | None = None,
    *,
    keep: str = "<> 0",
    weight: str = f"d.{W}",
) -> str:
    """A Z-set with each content once, those whose weights add up to nothing left out; ``names`` rename the columns.

    ``weight``: that of a row of the query, alias d.
    """
    by, values = content_groups(columns, "d")
    outputs = names if names is not None else [column.name for column in columns]
    return select(
        [f"{value} AS {quote(name)}" for value, name in zip(values, outputs, strict=True)]
        + [f"pg_catalog.sum({weight})::bigint AS {W}"],
        derived(query, "d"),
        group_by=by,
        having=[f"pg_catalog.sum({weight}) {keep}"],
    )


def counted_out(query: str, columns: Sequence[Column | Field], copies: Callable[[str], str] = repeated) -> str:
    """The rows of a Z-set without weights: every row as often as its weights add up to; ``copies`` repeats rows."""
    net = consolidated(query, columns, keep="> 0")
    rows = f"{derived(net, 'n')} CROSS JOIN {copies(f'n.{W}')} AS r"
    return select([f"n.{quote(column.name)}" for column in columns], rows)
