"""Widened: keyed rows that get columns which the query has not given out until now.

Rows that change, or come, have all of their columns anyway. The others stay what they are, and get what is new by their
key: nothing else of them is computed, compared, or looked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.text import derived, quote, select, union_all
from sql.operators.plan import Plan
from sql.storage.keyed import KeyedRows


@dataclass(frozen=True, slots=True)
class WidenedRows(KeyedRows):
    """``added`` are the columns that hold nothing yet."""

    added: tuple[str, ...]

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        changing = self.root.changed(plan)
        done = KeyedRows.apply_delta(self, plan, storage) if changing else {}
        names = dict.fromkeys((*(column.name for column in self.key), *self.added))
        rows = select([f"w.{quote(name)}" for name in names], derived(self.rows, "w"))
        touched = select([], f"{quote('__pgt_scope')} AS d", where=[self.same("d", "r")])
        rest = select(["r.*"], derived(self.identified(rows), "r"), where=[f"NOT EXISTS ({touched})"] * changing)
        new = plan.cte("__pgt_wider", rest)
        assignments = ", ".join(f"{quote(name)} = n.{quote(name)}" for name in self.added)
        filled = plan.statement.modification(
            "__pgt_filled",
            f"UPDATE {storage} AS s SET {assignments} FROM {new} AS n WHERE {self.same('s', 'n')} RETURNING 1",
        )
        lost = f"SELECT (SELECT pg_catalog.count(*) FROM {new}) - (SELECT pg_catalog.count(*) FROM {filled}) AS n"
        missing, updated = [lost], [f"SELECT 1 FROM {filled}"]
        if changing:
            missing.append(f"SELECT m.n FROM {done['missing']} AS m")
            updated.append(f"SELECT 1 FROM {done['updated']}")
        return done | {
            "updated": plan.cte("__pgt_written", union_all(updated), materialized=False),
            "missing": plan.cte("__pgt_lost", union_all(missing), materialized=False),
        }
