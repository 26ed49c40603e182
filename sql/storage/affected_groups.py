"""Touched groups: groups that are computed again when something in them changes.

``Q_new(touched) - Q_stored(touched)``: what the groups were is in the storage. A key that the query does not give out
is stored in a hidden column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sql.base.columns import Column, Field
from sql.base.text import aliased, derived, quote, select
from sql.operators import Operator, RecomputeGroups
from sql.operators.plan import NOTHING, Plan
from sql.storage.keyed import Keyed
from sql.storage.root import above, hidden_keys
from sql.storage.shape import output_columns


@dataclass(frozen=True, slots=True)
class AffectedGroups(Keyed):
    """``key`` are the storage's columns that hold the keys of ``decisive``, the operator below the `root`'s top."""

    root: Operator
    decisive: RecomputeGroups

    @property
    def hidden(self) -> tuple[str, ...]:
        return tuple(hidden_keys(self.decisive.keys, self.key, self.output))

    @property
    def summed(self) -> Operator | None:
        # Touched keys alone matter; but a change that cancels another one touches nothing.
        return None

    def _stored(self, plan: Plan, rows: str) -> str:
        return stored(plan, self.root, self.decisive, self.key, self.output, self.fields, rows)

    def core(self, plan: Plan) -> str:
        return self._stored(plan, self.decisive.new(plan))

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        decisive = self.decisive
        touched = decisive.touched(plan)
        rows = self._stored(plan, decisive.new(plan, decisive.at(touched)))
        if not self.key:
            rows = select(["*"], derived(rows, "o"), where=[f"EXISTS (SELECT FROM {touched})"])
        keys = staged_keys(plan, self.key, keys_as_stored(decisive.keys, self.key, touched))
        types = {column.name: column.type for column in (*self.key, *self.output)}
        rows = plan.statement.staged("__pgt_rows", rows, {name: types[name] for name in self.names})
        scope = plan.cte("__pgt_scope", self.identified(keys))
        return self.apply(plan, storage, plan.cte("__pgt_new", self.identified(rows)), scope)


def keys_as_stored(keys: Sequence[Field], stored: Sequence[Column], relation: str) -> str:
    """The keys in a relation under the names of the storage's columns."""
    pairs = zip(keys, stored, strict=True)
    return select([f"k.{quote(key.name)} AS {quote(column.name)}" for key, column in pairs], f"{relation} AS k")


def staged_keys(plan: Plan, stored: Sequence[Column], keys: str) -> str:
    """Touched keys, under the names of the storage's columns, as PostgreSQL is to have them."""
    return plan.statement.staged("__pgt_touched", keys, {column.name: column.type for column in stored})


def stored(
    plan: Plan,
    root: Operator,
    decisive: RecomputeGroups,
    key: tuple[Column, ...],
    output: tuple[Column, ...],
    fields: tuple[tuple[str, Field], ...],
    rows: str,
) -> str:
    """The user's columns and hidden keys, made from rows of the deciding operator."""
    hidden = hidden_keys(decisive.keys, key, output)
    columns = output_columns(fields) + [aliased(quote(field.name), name) for name, field in hidden.items()]
    return select(columns, derived(above(plan, root, rows, list(hidden.values())), "o"))


def touched_groups(
    root: Operator,
    decisive: RecomputeGroups,
    output: tuple[Column, ...],
    key: tuple[Column, ...],
    fields: tuple[tuple[str, Field], ...],
) -> AffectedGroups:
    """The shape for any operator with keys below the top of the tree."""
    rows = stored(NOTHING, root, decisive, key, output, fields, decisive.new(NOTHING))
    return AffectedGroups(rows, output, key, fields, root, decisive)
