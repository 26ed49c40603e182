"""Fixpoint: a recursion whose rows at the frontier are stored, as far as its delta can be found from changes.

How it is found is in `fixpoint_delta`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sql.base.columns import Column, Field
from sql.base.text import quote, select
from sql.operators.filter import Filter
from sql.operators.joins.join import Join
from sql.operators.joins.matching import AntiJoin, SemiJoin
from sql.operators.joins.outer import LeftJoin
from sql.operators.operator import Operator, Restriction
from sql.operators.plan import Plan
from sql.operators.project import Project
from sql.operators.project_set import ProjectSet
from sql.operators.scan import Scan
from sql.operators.set_returning import SetReturning


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the recursion's rows at the frontier are: a table, its columns, and what their hash in it is made of.

    ``projected`` makes the table's columns of rows of the recursion.
    """

    table: str
    columns: tuple[tuple[str, Field], ...]
    hashed: tuple[Column, ...]
    projected: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class WorkingTable(Operator):
    """The place in a recursive term where it reads the recursion's rows."""

    columns: tuple[Field, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        """Nothing, of the right types: to be asked what becomes of them."""
        return select([f"NULL::{f.type} AS {quote(f.name)}" for f in self.columns], where=["FALSE"])

    def delta(self, plan: Plan) -> str:
        raise AssertionError("a working table does not change")

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        raise AssertionError("a working table does not change")

    def describe(self) -> str:
        return "Working table"


@dataclass(frozen=True, slots=True)
class Term:
    """One branch of a recursion: an operator, and which of its columns are the recursion's, by position."""

    operator: Operator
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Fixpoint:
    """``step`` reads the recursion at ``working``; ``columns`` are the recursion's."""

    base: Term
    step: Term
    working: WorkingTable
    distinct: bool
    columns: tuple[Field, ...]

    def sides(self) -> list[Operator] | None:
        """What the step joins with; None if it is more than joins, or equal rows can look different."""
        if self.distinct and not all(f.equality_is_identity and f.hashable for f in self.columns):
            return None
        if sum(operator is self.working for operator in self.step.operator.walk()) != 1:
            return None
        return self._sides(self.step.operator)

    def _sides(self, operator: Operator) -> list[Operator] | None:
        if operator is self.working:
            return []
        inputs = operator.inputs
        if not isinstance(
            operator, Project | Filter | Join | SetReturning | ProjectSet | SemiJoin | AntiJoin | LeftJoin
        ):
            return None
        at = next(i for i, o in enumerate(inputs) if any(below is self.working for below in o.walk()))
        if at and not isinstance(operator, Join):
            return None
        below = self._sides(inputs[at])
        return None if below is None else [*below, *(o for i, o in enumerate(inputs) if i != at)]

    def monotone(self, plan: Plan) -> bool:
        """Whether more rows in the sides that have changed never take a row from the step."""
        return not any(side.changed(plan) for side in self._falling())

    def _falling(self) -> list[Operator]:
        """The sides of which more rows can make the step give less."""
        return [
            operator.right
            for operator in self.step.operator.walk()
            if isinstance(operator, AntiJoin | LeftJoin) and any(o is self.working for o in operator.left.walk())
        ]

    def not_null(self) -> list[Field]:
        """The recursion's columns that are never NULL: not in the base, and not made so by the step."""
        terms = zip(self.columns, self.base.fields, self.step.fields, self.working.columns, strict=True)
        return [c for c, base, step, own in terms if base.not_null and (step.not_null or step.name == own.name)]

    @property
    def strategy(self) -> str:
        """How it is maintained, in words."""
        way = "delete and rederive for deletes" if self.distinct else "derivations are counted"
        scans = [scan.source for side in self._falling() for scan in side.walk() if isinstance(scan, Scan)]
        again = sorted({f"{source.schema}.{source.name}" for source in scans})
        changes = f"; computed again when {' or '.join(again)} changes" if again else ""
        return f"semi-naive for inserts, {way}{changes}"
