"""An aggregate by the general rule: each touched group is computed again, as it is and as it was."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sql.base.columns import Field
from sql.base.identity import any_alike, as_text
from sql.base.text import derived, quote, select
from sql.operators.aggregates.call import Call
from sql.operators.aggregates.recompute_groups import RecomputeGroups
from sql.operators.operator import names
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class RecomputedAggregate(RecomputeGroups):
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

    def row_key(self) -> list[tuple[int, str]] | None:
        keys = [field.origin for field in self.keys]
        return [origin for origin in keys if origin] if keys and None not in keys else None

    def computed(self, plan: Plan, rows: str) -> str:
        chosen = _Chosen(self.keys)
        columns = [
            quote(key.name)
            if key.equality_is_identity or not self.reproducible
            else f"{any_alike(key)} AS {quote(key.name)}"
            for key in self.keys
        ]
        for call in self.calls:
            written = call.sql(reproducible=self.reproducible, chosen=partial(chosen.name, condition=call.filter))
            columns.append(f"{written} AS {quote(call.column.name)}")
        by = [f"a.{name}" for name in names(self.keys)]
        return select(columns, derived(chosen.added(rows), "a"), group_by=by if self.grouped else None)

    def describe(self) -> str:
        return "Aggregate" + (f"({', '.join(c.function for c in self.calls)})" if self.calls else "")


class _Chosen:
    """Further columns of the input: for each row the one of the group's equal values that is chosen."""

    def __init__(self, keys: tuple[Field, ...]):
        self._keys = keys
        self._columns: dict[tuple[Field, Field | None], str] = {}

    def name(self, column: Field, *, condition: Field | None) -> str:
        """The column that holds the chosen values of `column` among the rows that satisfy a FILTER."""
        return self._columns.setdefault((column, condition), quote(f"__pgt_chosen_{len(self._columns)}"))

    def added(self, rows: str) -> str:
        """The input's rows with the columns."""
        if not self._columns:
            return rows
        columns = ["c.*"]
        for (column, condition), name in self._columns.items():
            value = f"c.{quote(column.name)}"
            parts = [f"c.{key}" for key in names(self._keys)]
            parts += [f"c.{quote(condition.name)} IS TRUE"] if condition else []
            window = f"PARTITION BY {', '.join([*parts, value])} ORDER BY {as_text(value, column)}"
            columns.append(f"pg_catalog.first_value({value}) OVER ({window}) AS {name}")
        return select(columns, derived(rows, "c"))
