"""Bag: rows without a key, duplicates counted.

The copies of a content have ordinals 1 … n. Copies that go are those with the highest ordinals, copies that come are
appended, so ordinals stay dense. ``__pgt_row_id = H(content) # H(ordinal)``; all copies are found through the index on
``__pgt_hash = H(content)``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Column, Field
from sql.base.identity import SALT, content_hash, content_partition, same_content
from sql.base.text import derived, quote, select
from sql.operators import Operator
from sql.operators.plan import Plan
from sql.storage.shape import ROW_ID, Shape, W, current_rows, net_delta

HASH = quote("__pgt_hash")
ORDINAL = quote("__pgt_ordinal")
ORDINAL_SEED = 0x517CC1B727220A95


def _row_id(content: str, ordinal: str) -> str:
    # PostgreSQL's hash of a bigint has but 32 bits of its argument; the content's 64 must not go through it. Another
    # seed than the content's: else row (1) with ordinal 1 and row (2) with ordinal 2 would both come to 0.
    return f"{content} # pg_catalog.hashint8extended({ordinal}, {SALT} # {ORDINAL_SEED})"


@dataclass(frozen=True, slots=True)
class Bag(Shape):
    """``root`` is None for a query that is only ever evaluated in full."""

    rows: str
    output: tuple[Column, ...]
    root: Operator | None = None
    fields: tuple[tuple[str, Field], ...] = ()

    @property
    def keyed(self) -> bool:
        return False

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.numbers

    @property
    def numbers(self) -> tuple[str, ...]:
        return ("__pgt_hash", "__pgt_ordinal")

    @property
    def summed(self) -> Operator | None:
        return self.root

    def core(self, plan: Plan) -> str:
        return current_rows(self.root, self.fields, plan) if self.root is not None else self.rows

    def create(self, storage: str) -> tuple[str, ...]:
        return (*Shape.create(self, storage), f"CREATE INDEX ON {storage} ({HASH})")

    def identified(self, rows: str) -> str:
        hashed = select(["q.*", f"{content_hash(self.output, 'q')} AS {HASH}"], derived(rows, "q"))
        partition = ", ".join([f"h.{HASH}", *content_partition(self.output, "h")])
        ordinal = f"pg_catalog.row_number() OVER (PARTITION BY {partition}) AS {ORDINAL}"
        numbered = select(["h.*", ordinal], derived(hashed, "h"))
        return select([f"{_row_id(f'b.{HASH}', f'b.{ORDINAL}')} AS {quote(ROW_ID)}", "b.*"], derived(numbered, "b"))

    def apply_full(self, plan: Plan, storage: str, rows: str) -> dict[str, str]:
        different = self.different(plan, storage, rows, "FALSE", same_content(self.output, "s", "n"))
        return {
            "deleted": self.delete_gone(plan, storage, different),
            "inserted": self.insert_unknown(plan, storage, different),
        }

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        assert self.root is not None
        delta = net_delta(plan, self.root, self.fields)
        hashed = select(["d.*", f"{content_hash(self.output, 'd')} AS {HASH}"], f"{delta} AS d")
        same = f"s.{HASH} = h.{HASH} AND {same_content(self.output, 's', 'h')}"
        highest = select([f"pg_catalog.max(s.{ORDINAL})"], f"{storage} AS s", where=[same])
        counted = plan.cte(
            "__pgt_counted", select(["h.*", f"coalesce(({highest}), 0) AS {ORDINAL}"], derived(hashed, "h"))
        )
        drop = f"h.{W} < 0 AND {same} AND s.{ORDINAL} > h.{ORDINAL} + h.{W}"
        columns = [f"h.{quote(column.name)}" for column in self.output]
        ordinal = f"h.{ORDINAL} + g.n"
        come = select(
            [_row_id(f"h.{HASH}", ordinal), *columns, f"h.{HASH}", ordinal],
            f"{counted} AS h CROSS JOIN LATERAL pg_catalog.generate_series(1, h.{W}) AS g(n)",
            where=[f"h.{W} > 0"],
        )
        missing = select([f"-(h.{ORDINAL} + h.{W}) AS n"], f"{counted} AS h", where=[f"h.{ORDINAL} + h.{W} < 0"])
        return {
            "deleted": plan.statement.modification(
                "__pgt_deleted", f"DELETE FROM {storage} AS s USING {counted} AS h WHERE {drop} RETURNING 1"
            ),
            "inserted": plan.statement.modification("__pgt_inserted", f"{self.insert(storage, come)} RETURNING 1"),
            "missing": plan.cte("__pgt_missing", missing, materialized=False),
        }
