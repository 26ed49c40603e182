"""Random queries that stream tables get one after the other: over the same rows, with other filters and columns."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.property.queries import Queries, Query
from tests.property.schemas import Relation


class Variants(Queries):
    """Draws queries that have their FROM and GROUP BY in common, and some of their conditions and columns."""

    def variants(self, depth: int, many: int) -> list[Query]:
        source, columns = self.source(depth, ())
        conditions = [self.predicate(columns, 1, plain=self.number(3) > 0) for _ in range(3)]
        shape = self.pick(["plain", "plain", "group", "group", "whole"])
        tail, visible = self._grouping(shape, columns) if shape != "plain" else ("", columns)
        if shape != "plain" and self.one_in(4):
            tail += f" HAVING {self.predicate(visible, 1)}"
        items = [self.pick(visible) for _ in range(self.pick([2, 3, 4]))]
        if self.one_in(4):
            kind = self.pick(sorted({kind for _, kind in visible}))
            items.append((self.scalar(kind, visible, 1, plain=True), kind))
        word = "DISTINCT " if self.one_in(8) else ""
        found: list[Query] = []
        for _ in range(many):
            chosen = items[: self.pick([len(items), len(items), len(items) - 1, 1])]
            if self.one_in(5):
                chosen = [item for item in items if self.one_in(2)] or items
            kept = [condition for condition in conditions if self.one_in(2)]
            names = [(f"c{items.index(item)}", item) for item in dict.fromkeys(chosen)]
            listed = ", ".join(f"{text} AS {name}" for name, (text, _) in names)
            where = f" WHERE {' AND '.join(kept)}" if kept else ""
            text = f"SELECT {word}{listed} FROM {source}{where}{tail}"
            found.append(self._made(text, tuple((name, kind) for name, (_, kind) in names)))
        return found


@st.composite
def variants(draw: DrawFn, relations: tuple[Relation, ...], depth: int, many: int) -> list[Query]:
    """Queries over the same rows of relations."""
    return Variants(draw, relations, budget=2 + 2 * depth).variants(depth, many)
