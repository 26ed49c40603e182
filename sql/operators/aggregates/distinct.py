"""Distinct: every row once.

``δ(A)`` is an aggregate whose key is the whole row and that computes nothing; a row is there while its multiplicity is
above 0. Delta and states are the aggregate's.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.operators.aggregates.aggregate import Aggregate


@dataclass(frozen=True, slots=True)
class Distinct(Aggregate):
    """All columns of the input are keys."""

    def describe(self) -> str:
        return "Distinct"
