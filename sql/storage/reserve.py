"""Reserve: the rows after those that are stored of a query's first rows, handed on from one refresh to the next.

Where one of the first rows goes, the next one moves up. It is not stored, and to find it the query would be computed.
So a refresh hands on some rows more, as far as they are known; they count as stored ones that nobody sees.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sql.base.text import all_of, derived, quote, select, text
from sql.operators import Limit
from sql.operators.aggregates.cached_accumulators import known, remembered_rows, remembering
from sql.operators.operator import names
from sql.operators.ordering import order_by
from sql.operators.plan import NOTHING, Plan

MOST = 500
"""So many rows a reserve has at most."""
LARGEST = 1_000_000
"""The largest limit that has a reserve: of more rows the next ones hardly matter."""
BYTES = 100_000
"""So many bytes of text a reserve has at most."""

POSITION, SIZE = quote("__pgt_position"), quote("__pgt_size")
_TEXTS = frozenset({"text", "character varying", "character"})
_TRAVEL = _TEXTS | {
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "real",
    "double precision",
    "boolean",
    "uuid",
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
}
"""Types whose values a text gives back as they were."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """What is handed on under a ``name``, of the rows after the first ``count`` of a limit."""

    name: str
    limit: Limit

    @property
    def count(self) -> int:
        """How many rows there are with those that are stored, at most."""
        return int(str(self.limit.count)) + MOST

    def full(self, otherwise: str) -> str:
        """The condition that there may be rows beyond; ``otherwise``, where nothing has been handed on."""
        complete = f"($1->'memory'->{text(self.name)}->>0)::boolean"
        return f"CASE WHEN {known(self.name)} THEN NOT {complete} ELSE {otherwise} END"

    def before(self) -> str:
        """The rows that have been handed on."""
        fields = self.limit.input.columns
        rows = remembered_rows(self.name, [(field.name, field.type) for field in fields], first=1)
        return select([f"e.{name}" for name in names(fields)], rows)

    def not_after(self, plan: Plan, stored: str, full: str) -> list[str]:
        """Conditions on changes (alias d): no more than what comes, by the first sort key, after all ``stored`` rows.

        What comes after the last of the rows that are known does not matter if there may be rows between.
        """
        if not self.limit.order:
            return []
        key = self.limit.order[0]
        column = quote(key.column.name)
        backwards = f"{'' if key.descending else ' DESC'} NULLS {'LAST' if key.nulls_first else 'FIRST'}"
        last = select([column], derived(stored, "s")) + f" ORDER BY {column}{backwards} LIMIT 1"
        last = f"(SELECT {column} FROM {plan.cte('__pgt_last', last)})"
        ordered = f"d.{column} {'>=' if key.descending else '<='} {last}"
        null = f"d.{column}" if key.nulls_first else last
        return [f"(NOT {full} OR {ordered} OR {null} IS NULL)"]

    def first(self, rows: str) -> str:
        """Those of some rows that are stored or handed on."""
        return f"{select(['*'], derived(rows, 'l'))}{order_by(self.limit.total)} LIMIT {self.count}"

    def hand_on(self, plan: Plan, first: str, complete: str) -> str:
        """Hand on what follows the limit's rows among the ``first`` ones; a query of those.

        ``complete`` is the condition that these rows are the first of all that there are, not of those that are known.
        """
        columns = names(self.limit.input.columns)
        place = f"pg_catalog.row_number() OVER ({order_by(self.limit.total).strip()}) AS {POSITION}"
        numbered = plan.cte("__pgt_first", select([*columns, place], derived(first, "f")))
        later = [f"f.{POSITION} > {self.limit.count}"]
        sized = select(
            ["f.*", f"{self._bytes()} OVER (ORDER BY f.{POSITION}) AS {SIZE}"], f"{numbered} AS f", where=later
        )
        after = plan.cte("__pgt_after", sized)
        whole = [
            complete,
            f"(SELECT pg_catalog.count(*) FROM {numbered}) < {self.count}",
            f"NOT EXISTS (SELECT FROM {after} WHERE {SIZE} > {BYTES})",
        ]
        kept = f"({select(columns, after, where=[f'{SIZE} <= {BYTES}'])})"
        plan.statement.memory[self.name] = remembering(kept, columns, self.count, [f"({all_of(whole)})"])
        return select(columns, numbered, where=[f"{POSITION} <= {self.limit.count}"])

    def _bytes(self) -> str:
        """An aggregate: how long the texts of rows (alias f) are."""
        texts = [f"f.{quote(field.name)}" for field in self.limit.input.columns if field.base_type in _TEXTS]
        lengths = [f"coalesce(pg_catalog.octet_length({column}), 0)" for column in texts]
        return f"pg_catalog.sum({' + '.join(lengths or ['0'])})"


def reserve_name(limit: Limit) -> str | None:
    """Under which name the rows after the limit's are handed on, which tells what they are; None if they cannot be."""
    columns = limit.input.columns
    if (
        limit.ties
        or int(str(limit.count)) > LARGEST
        or not columns
        or not all(field.base_type in _TRAVEL for field in columns)
    ):
        return None
    return hashlib.sha256(f"rows after {limit.new(NOTHING)}".encode()).hexdigest()[:16]
