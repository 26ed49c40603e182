"""A target: what is written otherwise for one executor than for another.

Operators ask the target of their plan. It says nothing of what a rule computes, but how: what can be joined by, what
keeps a planner from a mistake, what an expression may hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlglot import exp

from sql.operators.targets.restriction import Restriction


class Target(Protocol):
    """An executor, as the rules of operators see it."""

    @property
    def one_statement(self) -> bool:
        """Whether all is one statement, so that what a rule has computed stands there for whoever comes later."""

    @property
    def special_numbers(self) -> bool:
        """Whether a numeric can be NaN or infinite, from which nothing can be subtracted."""

    def restricted(
        self,
        query: str,
        columns: Sequence[str],
        only: Restriction,
        nullable: Sequence[str] = (),
        *,
        rare: bool = False,
    ) -> str:
        """The rows of a query (given its output columns, already quoted) whose key is in a restriction.

        ``nullable`` are the columns that can be NULL. What is ``rare`` should above all be quick to plan.
        """

    def early(self, only: Restriction | None) -> Restriction | None:
        """The restriction, if it is to be applied before a function is called for each row; it is applied later too."""

    def fence(self, query: str) -> str:
        """Rows that are computed before anything is joined with them."""

    def condition(self, condition: exp.Expr) -> str:
        """A condition over columns as text."""

    def copies(self, number: str) -> str:
        """An item of FROM with as many rows as a number beside it says, none of them with columns."""

    def value(self, query: str) -> str | None:
        """An expression: the one value that a query gives, or NULL. None where no expression can hold a query."""

    def joins_by_contents(self, *, plain: bool) -> bool:
        """Whether rows are joined by their contents, by `same`. ``plain``: equal ones are the same, or match none."""

    def same(self, left: str, right: str) -> str:
        """The condition that two values that rows are joined by are the same; see `joins_by_contents`."""

    def one_of_each(self, key: str, columns: Sequence[str], rows: str) -> str:
        """A query: one row for each key, which is among the columns; rows that agree in it agree in all."""
