"""Order among rows: sort keys, and how ties are broken by content.

SQL leaves open which of two peers (rows that an ORDER BY does not tell apart) comes first. An operator over Z-sets must
not: it computes its old rows again and takes them away, so the same rows must come in the same order each time. Ties
are broken by what the rows look like; rows that look the same may change places without a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sql.base.columns import Field, equality_is_identity
from sql.base.identity import as_text
from sql.base.text import quote


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column of an ORDER BY."""

    column: Field
    descending: bool = False
    nulls_first: bool = False

    def sql(self) -> str:
        """The key as PostgreSQL writes it.

        >>> SortKey(Field("x", "integer")).sql(), SortKey(Field("x", "integer"), descending=True).sql()
        ('"x" NULLS LAST', '"x" DESC NULLS LAST')
        """
        return quote(self.column.name) + self.direction

    @property
    def direction(self) -> str:
        """What follows the column."""
        return f"{' DESC' if self.descending else ''} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


# Equal values look the same and sort fast.
_SORTED = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "oid",
        "boolean",
        "uuid",
        "date",
        "bytea",
        "time without time zone",
        "timestamp without time zone",
        "timestamp with time zone",
    }
)


def tie_break(columns: Sequence[Field], before: Sequence[Field] = ()) -> list[str]:
    """Sort expressions after those of ``before`` that put rows of different content in an order.

    >>> tie_break([Field("x", "integer"), Field("n", "numeric", equality_is_identity=False)], [Field("x", "integer")])
    ['(("n")::text COLLATE "C")']
    """
    done = {column.name for column in before if equality_is_identity(column)}
    by_value = [c for c in columns if c.name not in done and c.base_type in _SORTED]
    by_text = [c for c in columns if c.name not in done and c.base_type not in _SORTED]
    return [quote(c.name) for c in by_value] + [as_text(quote(c.name), c) for c in by_text]


def total_order(keys: Sequence[Field], order: Sequence[SortKey], columns: Sequence[Field]) -> list[str]:
    """Sort expressions that order the rows of one group: the group's order, and among peers their content."""
    return [key.sql() for key in order] + tie_break(columns, [*keys, *(key.column for key in order)])


def order_by(expressions: Sequence[str]) -> str:
    """An ORDER BY clause with the space before it, nothing without expressions.

    >>> order_by(["a", "b"]), order_by([])
    (' ORDER BY a, b', '')
    """
    return f" ORDER BY {', '.join(expressions)}" if expressions else ""
