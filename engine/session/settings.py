"""Settings as texts, as PostgreSQL gives them: read as Boolean values and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from catalog.session import SqlError

Number = TypeVar("Number", int, float)


def is_on(name: str, value: str) -> bool:
    """A setting that is on or off. Raises SqlError 22023."""
    if value.lower() in ("on", "true", "yes", "1"):
        return True
    if value.lower() in ("off", "false", "no", "0"):
        return False
    raise SqlError("22023", f'parameter "pg_trickle.{name}" requires a Boolean value')


def number(name: str, value: str, kind: Callable[[str], Number]) -> Number:
    """A setting that is a number. Raises SqlError 22023."""
    try:
        return kind(value)
    except ValueError:
        raise SqlError("22023", f'invalid value for parameter "pg_trickle.{name}": "{value}"') from None
