"""What tells the rows of an operator apart, where their primary keys do."""

from __future__ import annotations

from collections.abc import Sequence

from ..columns import Field
from .filter import Filter
from .join import Join
from .matching import AntiJoin, SemiJoin
from .operator import Operator
from .ordering import KeepsRows
from .outer import FullJoin, LeftJoin
from .project import Project
from .scan import Scan


def row_key(operator: Operator) -> list[tuple[int, str]] | None:
    """The primary keys of all tables joined in an operator, NULL where padded; None if something there has no key."""
    if isinstance(operator, Project | Filter | KeepsRows):
        return row_key(operator.inputs[0])
    if isinstance(operator, Scan):
        return [(operator.number, name) for name in operator.source.key] or None
    if isinstance(operator, SemiJoin | AntiJoin):
        return row_key(operator.left)
    if isinstance(operator, Join | LeftJoin | FullJoin):
        # A side padded with NULLs has no key of all NULLs besides.
        keys = [row_key(joined) for joined in operator.inputs]
        return [part for key in keys if key is not None for part in key] if None not in keys else None
    return None


def told_apart(operator: Operator, fields: Sequence[Field]) -> bool:
    """Whether no two rows of an operator agree in these columns, primary keys being among them."""
    key = row_key(operator)
    return key is not None and set(key) <= {field.origin for field in fields}
