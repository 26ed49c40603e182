"""What the constructs of a query ask of the builder, by which they reach one another.

A construct (a join, a window, a subquery) is built by functions that take a `Builder`, and contains other constructs.
It asks the builder for these, so no construct has to import another one that may contain it. `constructs` lists them
all, and `builder` puts them together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sqlglot import exp

from sql.base.columns import Column, Field, Source
from sql.base.types import Types
from sql.build.scope import Binding, FromClause, Relation
from sql.canonical.nodes import all_of
from sql.operators import Operator


class Builder(Protocol):
    """Builds one operator tree."""

    sources: Mapping[tuple[str, str], Source]
    """The tables that the query may read, by schema and name."""
    types: Types
    special: frozenset[str]
    """The query's own functions that are aggregates, window functions or return sets."""
    used: Mapping[int, frozenset[str]] | None
    """For each scan, in order, the columns that are read; without it all are."""
    usage: dict[int, set[str]]
    """For each scan the columns that have been asked for."""
    scans: dict[int, Source]
    subplans: dict[object, tuple[int, Subplan]]
    """The subqueries taken out of expressions, with their numbers, by what makes two of them the same."""
    common: dict[int, tuple[exp.Expr, Relation]]
    """The WITH queries that are computed once, by the `id` of their text."""
    names: int
    """How many names `fresh` has given out."""

    @property
    def scope(self) -> Scope:
        """The WITH queries in scope in the query that is being built."""

    @property
    def depth(self) -> int:
        """How many queries contain the one that is being built."""

    def apart(self, used: Mapping[int, frozenset[str]] | None) -> Builder:
        """A builder for a part of the query whose scans are numbered, and used, apart."""

    def subplan(self, number: int) -> Subplan:
        """A subquery that has been taken out of an expression."""

    def fresh(self, hint: str) -> str:
        """A column name used nowhere else in the tree."""

    def query(self, query: exp.Expr, scope: Scope, output: Sequence[Column] | None = None) -> Relation:
        """A SELECT or set operation. ``output`` describes its columns where they are known."""

    def common_tables(self, query: exp.Expr, scope: Scope) -> Scope:
        """The WITH queries in scope inside a query."""

    def from_clause(self, query: exp.Select, scope: Scope) -> FromClause:
        """Everything in FROM."""

    def joins(self, left: FromClause, joins: Sequence[exp.Join], scope: Scope) -> None:
        """Joins, one after the other, onto what is there."""

    def item(self, node: exp.Expr, scope: Scope) -> FromClause:
        """One item of FROM: a table, a derived table, or a join in parentheses."""

    def scan(self, source: Source) -> Relation:
        """A reference to a source."""

    def derived_table(self, alias: str, relation: Relation, columns: exp.TableAlias | None) -> FromClause:
        """A relation under a name, its columns possibly renamed."""

    def resolve(self, node: exp.Expr, bindings: Sequence[Binding], *, condition: bool = False) -> exp.Expr:
        """An expression with the tree's column names. Of a ``condition`` it only matters whether it is true."""

    def without_subqueries(self, node: exp.Expr, bindings: Sequence[Binding], *, condition: bool = False) -> exp.Expr:
        """An expression with placeholders for its subqueries."""

    def column(self, column: exp.Column, bindings: Sequence[Binding]) -> Field:
        """The column that a reference means."""

    def combined(self, clause: FromClause, where: exp.Expr | None) -> Operator:
        """The inputs joined and filtered."""

    def filtered(self, operator: Operator, conditions: Sequence[exp.Expr]) -> Operator:
        """The rows for which all conditions are true."""

    def attached(self, operator: Operator, expressions: Sequence[exp.Expr]) -> tuple[Operator, list[exp.Expr]]:
        """The operator with the results of all subqueries in the expressions, and the expressions over its columns."""


class CommonTable(ABC):
    """What FROM can read under a plain name."""

    @abstractmethod
    def relation(self, builder: Builder) -> Relation:
        """Its rows, in a subtree of their own, whose columns have names of their own."""


Scope = Mapping[str, CommonTable]
"""What FROM can read under plain names."""


class Kind(Enum):
    """What is asked of a subquery."""

    EXISTS = "exists"
    SCALAR = "scalar"
    NOT_IN = "not in"


@dataclass(frozen=True, slots=True)
class Subplan:
    """A subquery between the moment it is found in an expression and the moment it becomes an operator.

    Its outer columns are ``outer``'s ``parameters``. ``operands`` are the left side of NOT IN, over parameters.
    ``scope`` are the WITH queries that it sees.
    """

    kind: Kind
    query: exp.Expr
    outer: str
    parameters: tuple[str, ...]
    operands: tuple[exp.Expr, ...]
    scope: Scope

    @property
    def reads_tables(self) -> bool:
        """Whether it is more than a function of its arguments."""
        return any(isinstance(table.this, exp.Identifier) for table in all_of(self.query, exp.Table))
