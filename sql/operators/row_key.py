"""What tells the rows of an operator apart, where their primary keys do.

In a join a table says nothing more about which row it is if its whole primary key is equated with columns of the other
tables: each of their rows goes with one row of it at most. So a fact table joined with its dimensions has the fact
table's key.
"""

from __future__ import annotations

from collections.abc import Sequence

from sql.base.columns import Field
from sql.operators.aggregate import Aggregate
from sql.operators.filter import Filter
from sql.operators.join import Join
from sql.operators.match import Match
from sql.operators.matching import AntiJoin, SemiJoin
from sql.operators.operator import Operator
from sql.operators.ordering import KeepsRows
from sql.operators.outer import FullJoin, LeftJoin
from sql.operators.project import Project
from sql.operators.scan import Scan


def row_key(operator: Operator) -> list[tuple[int, str]] | None:
    """The primary keys of all tables joined in an operator, NULL where padded; None if something there has no key.

    Groups are told apart by their keys as rows of a table are by its key.
    """
    if isinstance(operator, Project | Filter | KeepsRows):
        return row_key(operator.inputs[0])
    if isinstance(operator, Scan):
        return [(operator.number, name) for name in operator.source.key] or None
    if isinstance(operator, SemiJoin | AntiJoin):
        return row_key(operator.left)
    if isinstance(operator, Aggregate):
        keys = [field.origin for field in operator.keys]
        return [origin for origin in keys if origin] if keys and None not in keys else None
    if isinstance(operator, Join):
        return _join_key(operator)
    if isinstance(operator, LeftJoin) and _one_match(operator):
        return row_key(operator.left)
    if isinstance(operator, FullJoin) and _grouped(operator.left) and _grouped(operator.right):
        # Either side can have a group of NULLs without a match, and both would look like padding.
        return None
    if isinstance(operator, LeftJoin | FullJoin):
        # A side padded with NULLs has no key of all NULLs besides.
        sides = [row_key(joined) for joined in operator.inputs]
        return [part for key in sides if key is not None for part in key] if None not in sides else None
    return None


def _grouped(operator: Operator) -> bool:
    return any(isinstance(part, Aggregate) for part in operator.walk())


def _join_key(join: Join) -> list[tuple[int, str]] | None:
    """The keys of as few inputs as determine all the others."""
    keys = [row_key(joined) for joined in join.inputs]
    known = [key for key in keys if key is not None]
    if len(known) < len(keys):
        return None
    equal = {pair for i in range(len(keys)) for j in range(len(keys)) if i != j for pair in _equal(join, i, j)}
    needed = set(range(len(keys)))
    for i in reversed(range(len(keys))):
        if _determined(needed - {i}, known, equal) == set(range(len(keys))):
            needed -= {i}
    return [part for i in sorted(needed) for part in known[i]]


def _equal(join: Join, i: int, j: int) -> list[tuple[int, int, tuple[int, str]]]:
    """(i, j, a column of i) for each column of an input that is equated with one of another."""
    return [(i, j, mine.origin) for mine, _ in join.equalities(i, j) if mine.origin]


def _determined(
    inputs: set[int], keys: list[list[tuple[int, str]]], equal: set[tuple[int, int, tuple[int, str]]]
) -> set[int]:
    """The inputs of which there is one row at most for each row of the given ones."""
    found = set(inputs)
    while more := {
        i
        for i, key in enumerate(keys)
        if i not in found and all(any((i, j, part) in equal for j in found) for part in key)
    }:
        found |= more
    return found


def _one_match(join: LeftJoin) -> bool:
    """Whether a row on the left has one match at most."""
    key = row_key(join.right)
    pairs = Match(join.conditions, join.left.columns, join.right.columns).pairs
    matched = {
        pair.right_field.origin
        for pair in pairs
        if pair.left_field and pair.right_field and pair.left_field.type == pair.right_field.type
    }
    return key is not None and set(key) <= matched


def told_apart(operator: Operator, fields: Sequence[Field]) -> bool:
    """Whether no two rows of an operator agree in these columns, primary keys being among them."""
    key = row_key(operator)
    return key is not None and set(key) <= {field.origin for field in fields}


def telling(operator: Operator) -> tuple[Field, ...]:
    """The columns that tell an operator's rows apart: primary keys if they are there, else all columns."""
    key = set(row_key(operator) or ())
    columns = {field.origin: field for field in operator.columns if field.origin in key}
    return tuple(columns.values()) if key and len(columns) == len(key) else operator.columns
