"""A restriction: the rows that somebody wants of an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.text import quote, select


@dataclass(frozen=True, slots=True)
class Restriction:
    """A permission to leave out rows: only those whose columns agree with some row of `relation` are looked at.

    ``pairs`` maps an operator's column to the relation's column; no two rows of the relation agree in all of these. An
    operator that a planner can look through (a scan, a join) ignores the restriction, since whoever asks applies it
    again; one that aggregates applies it to its input.
    """

    relation: str
    pairs: tuple[tuple[str, Field], ...]

    def to(self, columns: Sequence[Field]) -> Restriction | None:
        """What remains of the restriction for an input that has only these columns."""
        names = {column.name for column in columns}
        return self.of(tuple(pair for pair in self.pairs if pair[0] in names))

    def of(self, pairs: tuple[tuple[str, Field], ...]) -> Restriction | None:
        """The restriction by these pairs alone. Rows that differ in other columns become one."""
        if not pairs:
            return None
        before, after = ({field.name for _, field in some} for some in (self.pairs, pairs))
        if before == after:
            return Restriction(self.relation, pairs)
        distinct = select([quote(name) for name in sorted(after)], self.relation, distinct=True)
        return Restriction(f"({distinct})", pairs)
