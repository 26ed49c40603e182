"""What the clauses of a query hand to each other while its operator tree is built: relations, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from sql.base.columns import Field
from sql.operators import Operator
from sql.operators.ordering import SortKey


@dataclass(frozen=True, slots=True)
class Relation:
    """An operator, and which of its columns a query gives out under which names."""

    operator: Operator
    output: tuple[tuple[str, Field], ...]
    order: tuple[SortKey, ...] = ()
    """What its ORDER BY sorts by, where that decides which rows there are."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A name in FROM and the columns it stands for."""

    alias: str
    columns: Mapping[str, Field]
    merged: frozenset[str] = frozenset()


@dataclass(slots=True)
class FromClause:
    """The inputs of a SELECT, the conditions between them, and the names they have."""

    operators: list[Operator] = field(default_factory=list)
    conditions: list[exp.Expr] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    visible: list[tuple[str, str | None]] = field(default_factory=list)
    """All columns in order: the name, and the tree's name for it unless nobody reads it."""
    lateral: list[exp.Expr] = field(default_factory=list)
    """Of a LATERAL subquery: the conditions that its rows belong to those of what stands to its left."""

    def add(self, other: FromClause) -> None:
        """A further item."""
        self.operators += other.operators
        self.conditions += other.conditions
        self.bindings += other.bindings
        self.visible += other.visible
