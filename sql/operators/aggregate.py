"""Aggregate: one row for each group, or one row for everything.

Delta and old state are those of `rescan`: touched groups are aggregated again, as they are and as they were.
At the root of the tree `storage.groups` has a shorter way: what the groups were is in the stream table.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..columns import Field
from ..render import derived, quote, select
from .operator import names
from .rescan import Rescan


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate function over columns of the input; ``argument`` None is ``*``."""

    column: Field
    function: str
    argument: Field | None
    filter: Field | None = None
    distinct: bool = False

    def sql(self, *, reproducible: bool) -> str:
        """The call as PostgreSQL writes it; ``reproducible``: the same rows give the same bits."""
        argument = quote(self.argument.name) if self.argument else "*"
        order = ""
        if reproducible and self.argument and not self.argument.faithful:
            if self.function in ("min", "max"):
                direction = "ASC" if self.function == "min" else "DESC"
                order = f'ORDER BY {argument} {direction} NULLS LAST, {argument}::text COLLATE "C"'
                return f"(pg_catalog.array_agg({argument} {order}){self.filter_sql()})[1]"
            if self.argument.base_type in ("real", "double precision") and not self.distinct:
                # Floating point addition is not associative.
                order = f" ORDER BY {argument}"
        return f"{self.function}({'DISTINCT ' if self.distinct else ''}{argument}{order}){self.filter_sql()}"

    def describe(self) -> str:
        """The call in the words of the query, as far as they are columns."""
        argument = self.argument
        words = "*" if argument is None else argument.origin[1] if argument.origin else "expression"
        return f"{self.function}({'DISTINCT ' if self.distinct else ''}{words}){' FILTER' if self.filter else ''}"

    def filter_sql(self, *conditions: str) -> str:
        """The FILTER clause, with further conditions, or nothing."""
        parts = [*([quote(self.filter.name)] if self.filter else []), *conditions]
        return f" FILTER (WHERE {' AND '.join(parts)})" if parts else ""


@dataclass(frozen=True, slots=True)
class Aggregate(Rescan):
    """``grouped`` is False without GROUP BY, when there is always one row.

    What PostgreSQL leaves open (the spelling of a key, the last bits of a sum of floats) must be ``reproducible``,
    except at the root, where the old rows are stored.
    """

    calls: tuple[Call, ...]
    grouped: bool
    reproducible: bool = True

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.keys + tuple(call.column for call in self.calls)

    def _key(self, key: Field) -> str:
        name = quote(key.name)
        if key.faithful or not self.reproducible:
            return name
        return f'(pg_catalog.array_agg({name} ORDER BY {name}::text COLLATE "C"))[1] AS {name}'

    def computed(self, rows: str) -> str:
        columns = [self._key(key) for key in self.keys]
        columns += [f"{call.sql(reproducible=self.reproducible)} AS {quote(call.column.name)}" for call in self.calls]
        by = [f"a.{name}" for name in names(self.keys)]
        return select(columns, derived(rows, "a"), group_by=by if self.grouped else None)

    def describe(self) -> str:
        return "Aggregate" + (f"({', '.join(c.function for c in self.calls)})" if self.calls else "")
