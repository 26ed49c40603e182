"""What the rule of a construct asks of the rendering that it is part of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sql.errors import NotExpressible
from sql.spark.numbers.exact import Layers
from sql.spark.text.collations import Collations
from sql.spark.types import Typed
from sql.spark.user_defined.functions import SqlFunction


@dataclass(frozen=True, slots=True)
class Environment:
    """What values depend on beside rows: the database's ``collations``; ``utc``: that is the session's time zone.

    ``enums`` have the labels of each enum in order, by its name as `format_type` gives it. ``functions`` are those of
    users that the query calls.
    """

    collations: Collations = field(default_factory=Collations)
    utc: bool = False
    enums: tuple[tuple[str, tuple[str, ...]], ...] = ()
    functions: tuple[SqlFunction, ...] = ()

    def labels(self, enum: str) -> tuple[str, ...]:
        """The labels of an enum, in order. Raises NotExpressible."""
        found = dict(self.enums).get(enum)
        if found is None:
            raise NotExpressible(f"order of enum {enum}")
        return found


class Expressions(Protocol):
    """Renders expressions."""

    clause: str
    """What follows an aggregate call: FILTER, OVER."""

    environment: Environment

    def with_clause(self, clause: str) -> Expressions:
        """The same with another clause after aggregate calls."""

    def layered(self, what: str) -> Layers:
        """Where a division's steps go. Raises NotExpressible where there may be none."""

    def once(self, sql: str) -> str:
        """Part of a key or of an aggregate call, as something that Sail knows again where it stands more than once."""

    def render(self, node: Any) -> Typed:
        """The expression in Spark SQL. Raises NotExpressible."""

    def boolean(self, node: Any) -> str:
        """A condition."""


Rule = Callable[[Expressions, Any], Typed]
"""How a construct is rendered."""
