"""Keyed: rows that are told apart by a key within their content, ``__pgt_row_id = H(key)``.

A hash collision surfaces as a unique violation, never as a wrong row: every comparison rechecks the key itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Column, Field
from sql.base.identity import key_hash, same_content, same_key
from sql.base.text import derived, quote, select
from sql.operators import Operator
from sql.operators.plan import Plan
from sql.storage.shape import ROW_ID, Shape, W, current_rows, net_delta

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

    @property
    def described(self) -> tuple[Column, ...]:
        return (*self.key, *self.output)

    @property
    def hidden_columns(self) -> list[Column]:
        """The hidden columns, with their types as far as these matter to a comparison."""
        return [Column(name, "") for name in self.hidden]

    def row_id(self, alias: str) -> str:
        """The row id of rows that have the user's columns."""
        return key_hash(self.key, alias) if self.key else "1::bigint"

    def identified(self, rows: str) -> str:
        return select([f"{self.row_id('q')} AS {ID}", "q.*"], derived(rows, "q"))

    def same(self, left: str, right: str) -> str:
        """Whether two rows have the same row id and the same key."""
        return f"{left}.{ID} = {right}.{ID} AND {same_key(self.key, left, right)}"

    def same_keys(self, left: str, right: str) -> str:
        """Whether two rows have the same key."""
        return same_key(self.key, left, right)

    def apply(self, plan: Plan, storage: str, target: str, scope: str) -> dict[str, str]:
        """Make the storage's rows whose key is in `scope` equal to `target`.

        Both are CTEs with row ids and key columns; `target` has all columns. Rows that stay as they are are left alone.
        """
        wanted = select([], f"{target} AS n", where=[self.same("n", "s")])
        return {
            "deleted": self.delete(plan, storage, scope, f"NOT EXISTS ({wanted})"),
            "updated": self.update(plan, storage, target),
            "inserted": self.insert_missing(plan, storage, target),
        }

    def alike(self, left: str, right: str) -> str:
        """Whether two rows of one key hold the same."""
        # Of hidden columns the values count: a sum's own display scale depends on what it has been.
        return f"{same_content(self.output, left, right)} AND {same_key(self.hidden_columns, left, right)}"

    def delete(self, plan: Plan, storage: str, keys: str, *conditions: str) -> str:
        """Delete the rows (alias s) that have a key in a CTE (alias d) and satisfy conditions."""
        where = " AND ".join([self.same("s", "d"), *conditions])
        return plan.statement.modification(
            "__pgt_deleted", f"DELETE FROM {storage} AS s USING {keys} AS d WHERE {where} RETURNING 1"
        )

    def update(self, plan: Plan, storage: str, target: str, condition: str | None = None) -> str:
        """Update the rows that `target` (alias n) has with the same key; those that differ, unless told which."""
        differs = f"NOT ({self.alike('s', 'n')})"
        assignments = ", ".join(f"{quote(name)} = n.{quote(name)}" for name in self.names)
        return plan.statement.modification(
            "__pgt_updated",
            f"UPDATE {storage} AS s SET {assignments} FROM {target} AS n WHERE {self.same('s', 'n')}"
            f" AND {condition or differs} RETURNING 1",
        )

    def insert_missing(self, plan: Plan, storage: str, target: str, *conditions: str) -> str:
        """Insert the rows of `target` whose key is not stored."""
        present = select([], f"{storage} AS s", where=[self.same("s", "n")])
        columns = [f"n.{quote(name)}" for name in (ROW_ID, *self.names)]
        come = select(columns, f"{target} AS n", where=[*conditions, f"NOT EXISTS ({present})"])
        return plan.statement.modification("__pgt_inserted", f"{self.insert(storage, come)} RETURNING 1")

    def apply_full(self, plan: Plan, storage: str, rows: str) -> dict[str, str]:
        same_key = self.same_keys("s", "n")
        different = self.different(plan, storage, rows, same_key, self.alike("s", "n"))
        return {
            "deleted": self.delete_gone(plan, storage, different),
            "updated": self.update(plan, storage, different, "n.__pgt_known"),
            "inserted": self.insert_unknown(plan, storage, different),
        }


@dataclass(frozen=True, slots=True)
class KeyedRows(Keyed):
    """A projection of joined tables whose primary keys are all in the output."""

    root: Operator

    @property
    def summed(self) -> Operator | None:
        return self.root

    def core(self, plan: Plan) -> str:
        return current_rows(self.root, self.fields, plan)

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        """In the net delta a key has at most one row that goes and one that comes, and these two differ."""
        delta = plan.cte(
            "__pgt_scope", self.identified(select(["*"], net_delta(plan, self.root, self.fields, single=True)))
        )
        columns = [quote(name) for name in self.names]
        key = [quote(column.name) for column in self.key]
        other = select([], f"{delta} AS o", where=[f"o.{W} > 0", self.same("o", "d")])
        going = select(
            [f"d.{name}" for name in (ID, *key)], f"{delta} AS d", where=[f"d.{W} < 0", f"NOT EXISTS ({other})"]
        )
        gone = plan.cte("__pgt_gone", going)
        source = f"{delta} AS d LEFT JOIN {delta} AS o ON o.{W} < 0 AND {self.same('o', 'd')}"
        coming = [f"d.{name}" for name in (ID, *columns)] + [f"o.{ID} IS NOT NULL AS __pgt_known"]
        new = plan.cte("__pgt_new", select(coming, source, where=[f"d.{W} > 0"]))
        deleted = self.delete(plan, storage, gone)
        updated = self.update(plan, storage, new, "n.__pgt_known")
        fresh = select([ID, *columns], new, where=["NOT __pgt_known"])
        counts = [f"(SELECT pg_catalog.count(*) FROM {cte})" for cte in (gone, deleted, updated)]
        known = f"(SELECT pg_catalog.count(*) FROM {new} WHERE __pgt_known)"
        missing = f"SELECT {counts[0]} + {known} - {counts[1]} - {counts[2]} AS n"
        return {
            "deleted": deleted,
            "updated": updated,
            "inserted": plan.statement.modification("__pgt_inserted", f"{self.insert(storage, fresh)} RETURNING 1"),
            "missing": plan.cte("__pgt_missing", missing, materialized=False),
        }


@dataclass(frozen=True, slots=True)
class AppendedRows(KeyedRows):
    """The same where rows are expected only to come: they are inserted, and what is stored is not looked at.

    That is the usual statement (`Plan.usual`); a row that goes violates what it rests on. The other one is as before.
    """

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        if not plan.usual:
            return KeyedRows.apply_delta(self, plan, storage)
        delta = plan.cte(
            "__pgt_scope", self.identified(select(["*"], net_delta(plan, self.root, self.fields, single=True)))
        )
        plan.statement.violated(f"EXISTS ({select([], f'{delta} AS d', where=[f'd.{W} < 0'])})")
        columns = [quote(name) for name in (ROW_ID, *self.names)]
        coming = select(columns, delta, where=[f"{W} > 0"])
        return {
            "inserted": plan.statement.modification("__pgt_inserted", f"{self.insert(storage, coming)} RETURNING 1")
        }
