"""What questions to a register are answered with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from headwater.registers.definition import Register

R = TypeVar("R", bound=Register)
Amounts = dict[str, Any]
"""By resource: a Decimal for `numeric`, an int for integer types, a float for `real` and `double precision`."""


@dataclass(frozen=True, slots=True)
class Correction:
    """By whom and when a movement was taken back."""

    operation: str
    """`unpost`, `repost`, `update`, `delete`, …"""
    user: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Movement(Generic[R]):
    """A movement as the register has it."""

    id: UUID
    posted: R
    movement_type: str
    recorded_at: datetime
    correction: Correction | None
    """Only of movements that do not count any more."""


@dataclass(frozen=True, slots=True)
class StatementLine:
    """A day, month, quarter or year of a statement."""

    period_start: date
    turnover: Amounts
    balance: Amounts
    """At its end."""
