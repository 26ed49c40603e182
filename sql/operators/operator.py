"""What every operator over Z-sets answers: its delta, its new state, its old state.

A Z-set is a relation whose rows carry integer weights, as in DBSP (Budiu et al., VLDB 2023). A delta is a Z-set; a
query's result is one whose weights are positive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from sql.base.columns import WEIGHT, Field
from sql.base.text import quote
from sql.operators.plan import Plan
from sql.operators.targets.restriction import Restriction

W = quote(WEIGHT)


_NODES = count(1)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a tree, told apart from others that look the same by its number."""

    node: int = field(init=False, compare=False, repr=False, default_factory=_NODES.__next__)
    """Unlike an `id` it is never another node's, even when this one is gone."""


class Operator(Node, ABC):
    """An operator over Z-sets."""

    columns: tuple[Field, ...]

    @property
    @abstractmethod
    def inputs(self) -> tuple[Operator, ...]:
        """The operators this one reads."""

    @abstractmethod
    def delta(self, plan: Plan) -> str:
        """The Z-set of changes: a query with the operator's columns and a weight. Only asked where `changed`."""

    @abstractmethod
    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        """The rows as they are now: a query with the operator's columns, no weight."""

    @abstractmethod
    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        """The rows as they were at the frontier, as a Z-set: a query with a weight. Only asked where `changed`."""

    @abstractmethod
    def describe(self) -> str:
        """One line of the operator tree."""

    @property
    def sources(self) -> frozenset[int]:
        """The oids of the tables that this operator's rows come from."""
        return frozenset[int]().union(*(operator.sources for operator in self.inputs))

    @property
    def barrier(self) -> bool:
        """Whether PostgreSQL cannot push a join's restriction through the operator by itself."""
        return any(operator.barrier for operator in self.inputs)

    def changed(self, plan: Plan) -> bool:
        """Whether a source below has changes to be applied."""
        return bool(self.sources & plan.changed)

    def row_key(self) -> list[tuple[int, str]] | None:
        """The primary keys of all tables joined here, NULL where padded; None if something there has no key.

        They tell the rows apart. Groups are told apart by their keys as rows of a table are by its key.
        """
        return None

    def told_apart(self, fields: Sequence[Field]) -> bool:
        """Whether no two rows agree in these columns, primary keys being among them."""
        key = self.row_key()
        return key is not None and set(key) <= {field.origin for field in fields}

    def telling(self) -> tuple[Field, ...]:
        """The columns that tell the rows apart: primary keys if they are there, else all columns."""
        key = set(self.row_key() or ())
        columns = {field.origin: field for field in self.columns if field.origin in key}
        return tuple(columns.values()) if key and len(columns) == len(key) else self.columns

    def streamable(self) -> Iterator[int]:
        """The sources, once a scan, whose delta goes through nothing but linear operators, each row of it once."""
        if self.linear:
            for operator in self.inputs:
                yield from operator.streamable()

    @property
    def linear(self) -> bool:
        """Whether the delta is the operator applied to its inputs' deltas, row by row."""
        return False

    def walk(self) -> Iterator[Operator]:
        """The operator and everything below it."""
        yield self
        for operator in self.inputs:
            yield from operator.walk()

    def tree(self, depth: int = 0) -> str:
        """The operators as indented text."""
        lines = ["  " * depth + self.describe()]
        lines += [operator.tree(depth + 1) for operator in self.inputs]
        return "\n".join(lines)


def names(columns: Sequence[Field]) -> list[str]:
    """Quoted column names."""
    return [quote(column.name) for column in columns]


__all__ = ["Operator", "Restriction", "W", "names"]
