"""Keyed: rows that are told apart by a key within their content, ``__pgt_row_id = H(key)``.

A hash collision surfaces as a unique violation, never as a wrong row: every comparison rechecks the key itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..columns import Column, Field
from ..identity import key_hash, same_content, same_key
from ..operators import Aggregate, Operator
from ..plan import Plan
from ..render import derived, quote, select
from .shape import ROW_ID, Shape, W, net_delta, output_columns

ID = quote(ROW_ID)


@dataclass(frozen=True, slots=True)
class Keyed(Shape):
    """``key`` are the user's columns that tell rows apart; without any there is at most one row."""

    rows: str
    output: tuple[Column, ...]
    key: tuple[Column, ...]
    fields: tuple[tuple[str, Field], ...]

    @property
    def keyed(self) -> bool:
        return True

    @property
    def hidden(self) -> tuple[str, ...]:
        return ()

    def row_id(self, alias: str) -> str:
        """The row id of rows that have the user's columns."""
        return key_hash(self.key, alias) if self.key else "1::bigint"

    def identified(self, rows: str) -> str:
        return select([f"{self.row_id('q')} AS {ID}", "q.*"], derived(rows, "q"))

    def _same(self, left: str, right: str) -> str:
        return f"{left}.{ID} = {right}.{ID} AND {same_key(self.key, left, right)}"

    def apply(self, plan: Plan, storage: str, target: str, scope: str | None) -> dict[str, str]:
        """Make the storage's rows whose key is in `scope` (None: all rows) equal to `target`.

        Both are CTEs with row ids and key columns; `target` has all columns. Rows that stay as they are are left alone.
        """
        every = [quote(name) for name in self.names]
        wanted = select([], f"{target} AS n", where=[self._same("n", "s")])
        using = f" USING {scope} AS d WHERE {self._same('s', 'd')} AND" if scope else " WHERE"
        deleted = f"DELETE FROM {storage} AS s{using} NOT EXISTS ({wanted}) RETURNING 1"
        compared = [*self.output, *(Column(name, "") for name in self.hidden)]
        assignments = ", ".join(f"{name} = n.{name}" for name in every)
        updated = (
            f"UPDATE {storage} AS s SET {assignments} FROM {target} AS n"
            f" WHERE {self._same('s', 'n')} AND NOT {same_content(compared, 's', 'n')} RETURNING 1"
        )
        present = select([], f"{storage} AS s", where=[self._same("s", "n")])
        come = select(
            [f"n.{ID}", *(f"n.{name}" for name in every)], f"{target} AS n", where=[f"NOT EXISTS ({present})"]
        )
        return {
            "deleted": plan.modification("__pgt_deleted", deleted),
            "updated": plan.modification("__pgt_updated", updated),
            "inserted": plan.modification("__pgt_inserted", f"{self.insert(storage, come)} RETURNING 1"),
        }

    def apply_full(self, plan: Plan, storage: str, rows: str) -> dict[str, str]:
        return self.apply(plan, storage, plan.cte("__pgt_new", self.identified(rows)), None)


@dataclass(frozen=True, slots=True)
class KeyedRows(Keyed):
    """A projection of joined tables whose primary keys are all in the output."""

    root: Operator

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        delta = net_delta(plan, self.root, self.fields)
        scope = plan.cte("__pgt_scope", self.identified(select(["*"], delta)))
        target = plan.cte("__pgt_new", select(["*"], scope, where=[f"{W} > 0"]), materialized=False)
        return self.apply(plan, storage, target, scope)


@dataclass(frozen=True, slots=True)
class TouchedGroups(Keyed):
    """Groups that are computed again when something in them changes: ``Q_new(touched) - Q_stored(touched)``."""

    root: Operator
    aggregate: Aggregate

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        touched = self.aggregate.touched(plan)
        rows = select(output_columns(self.fields), derived(self.root.new(plan, self.aggregate.at(touched)), "o"))
        if not self.key:
            rows = select(["*"], derived(rows, "o"), where=[f"EXISTS (SELECT FROM {touched})"])
        names = {f.name: name for name, f in reversed(self.fields)}
        keys = select(
            [f"k.{quote(key.name)} AS {quote(names[key.name])}" for key in self.aggregate.keys], f"{touched} AS k"
        )
        scope = plan.cte("__pgt_scope", self.identified(keys))
        return self.apply(plan, storage, plan.cte("__pgt_new", self.identified(rows)), scope)
